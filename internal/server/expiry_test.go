package server_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// Orders that expire together are cancelled in one batch. Each has a request id of its own, by which its story has its
// own event.
func TestOrdersThatExpireTogetherHaveTheirOwnEvents(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	c.OK("Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "shop", Url: "https://hooks.example.com/shop"},
		new(notifyv1.CreateEndpointResponse))
	const orders = 20
	for n := range orders {
		c.OK("Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: fmt.Sprint("o-", n), Subject: "ann", Asset: "COIN",
			Amount: "1", PayWithin: durationpb.New(time.Second)}, new(orderv1.CreateOrderResponse))
	}
	servertest.Eventually(t, 20*time.Second, "the orders are cancelled", func() bool {
		return s.Count("select count(*) from machine_history where actor = 'timer'") == orders
	})
	if n := s.Count("select count(distinct recorded_at) from machine_history where actor = 'timer'"); n > orders/2 {
		t.Errorf("%d orders were cancelled in %d batches", orders, n)
	}
	if n := s.Count("select count(*) from audit.order_story where what = 'message'"); n != orders {
		t.Errorf("the stories of %d orders have %d events", orders, n)
	}
}

// The commit that cancels an order which has expired also frees its units and its hold: the tasks that let reservations
// and holds lapse come later.
func TestAnOrderExpiresInOneCommit(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	const orders = 12
	for n := range orders {
		name, item := fmt.Sprint("buyer-", n), fmt.Sprint("item-", n)
		fund(c, name)
		c.OK("Stock.PutItem", &stockv1.PutItemRequest{Item: item}, new(stockv1.PutItemResponse))
		c.OK("Stock.Restock", &stockv1.RestockRequest{Item: item, ChangeNo: "1", Quantity: 1}, new(stockv1.RestockResponse))
		c.OK("Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: fmt.Sprint("o-", n), Subject: "ann", Asset: "COIN",
			Amount: "2", Lines: []*orderv1.OrderLine{{Item: item, Quantity: 1}}, Reserve: true, Payee: "world",
			Balance:   &orderv1.BalancePart{Account: "u:" + name, Amount: "1"},
			PayWithin: durationpb.New(time.Second + time.Duration(n)*100*time.Millisecond)}, new(orderv1.CreateOrderResponse))
	}
	servertest.Eventually(t, 20*time.Second, "the orders are cancelled", func() bool {
		return s.Count("select count(*) from machine_instances where state = 'cancelled'") == orders
	})
	if n := s.Count(`select count(*) from machine_instances i
		join ledger_holds h on h.biz_no = i.key || '/hold' and h.state <> 'held' and h.xmin = i.xmin
		join stock_reservations r on r.reservation_no = i.key || '/1' and r.state <> 'reserved' and r.xmin = i.xmin`); n != orders {
		t.Errorf("%d of %d orders expired in one commit", n, orders)
	}
}
