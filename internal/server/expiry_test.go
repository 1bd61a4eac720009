package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// Orders that expire together are cancelled in one batch. Each move has a request id of its own, so that the story of
// an order has only its own event.
func TestOrdersThatExpireTogetherHaveTheirOwnEvents(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	c.OK("Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "shop", Url: "https://hooks.example.com/shop"},
		new(notifyv1.CreateEndpointResponse))
	const orders = 20
	for n := range orders {
		c.OK("Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: fmt.Sprint("o-", n), Subject: "ann",
			Asset:  "COIN",
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

// The commit that cancels an expired order also frees its units and its hold: the tasks that expire reservations and
// holds run later.
func TestAnOrderExpiresInOneCommit(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	const orders = 12
	for n := range orders {
		name, item := fmt.Sprint("buyer-", n), fmt.Sprint("item-", n)
		fund(c, name)
		c.OK("Stock.PutItem", &stockv1.PutItemRequest{Item: item}, new(stockv1.PutItemResponse))
		c.OK("Stock.Restock", &stockv1.RestockRequest{Item: item, ChangeNo: "1", Quantity: 1},
			new(stockv1.RestockResponse))
		c.OK("Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: fmt.Sprint("o-", n), Subject: "ann",
			Asset:  "COIN",
			Amount: "2", Lines: []*orderv1.OrderLine{{Item: item, Quantity: 1}}, Reserve: true, Payee: "world",
			Balance:   &orderv1.BalancePart{Account: "u:" + name, Amount: "1"},
			PayWithin: durationpb.New(time.Second + time.Duration(n)*100*time.Millisecond)},
			new(orderv1.CreateOrderResponse))
	}
	servertest.Eventually(t, 20*time.Second, "the orders are cancelled", func() bool {
		return s.Count("select count(*) from machine_instances where state = 'cancelled'") == orders
	})
	if n := s.Count(`select count(*) from machine_instances i
		join ledger_holds h on h.biz_no = i.key || '/hold' and h.state <> 'held' and h.xmin = i.xmin
		join stock_reservations r on r.reservation_no = i.key || '/1' and r.state <> 'reserved'
		and r.xmin = i.xmin`); n != orders {
		t.Errorf("%d of %d orders expired in one commit", n, orders)
	}
}

// Payments race the timers of orders and the worker that sends messages. A buyer gets the expiry message if the order
// has expired, and only then.
func TestBuyersGetMessagesOfTheEndThatTheirOrdersHave(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	name := filepath.Join(t.TempDir(), "notify.yaml")
	file := "sms: [{kind: file, path: '" + filepath.Join(t.TempDir(), "messages") + "'}]"
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := provider.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s.Server.Stop()
	s.Start(server.Options{Notify: f})
	c := writer(s)
	fund(c, "a")
	const orders = 80
	var wg sync.WaitGroup
	for n := range orders {
		wg.Go(func() {
			no, made := fmt.Sprint("o-", n), new(orderv1.CreateOrderResponse)
			expired := text()
			expired.GetContent().Text = no + " has expired"
			c.OK("Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: no, Subject: "ann", Asset: "COIN",
				Amount:    "1",
				PayWithin: durationpb.New(time.Second), ExpiryMessages: []*notifyv1.SendRequest{expired}}, made)
			around := time.Duration(5*(n-3*orders/4)) * time.Millisecond // most before: calls may be slow
			payAt := made.GetOrder().GetTimerTime().AsTime().Add(around)
			<-time.After(time.Until(payAt))
			c.Call(servertest.ConnectProto, "Order.MoveOrder",
				&orderv1.MoveOrderRequest{OrderNo: no, To: "paid", Cause: "till"})
		})
	}
	wg.Wait()
	servertest.Eventually(t, 20*time.Second, "all orders and messages have ended", func() bool {
		return s.Count("select count(*) from machine_instances where state = 'awaiting_payment'") == 0 &&
			s.Count("select count(*) from notify_queue") == 0
	})
	if n := s.Count("select count(*) from audit.orders where state = 'paid'"); n == 0 || n == orders {
		t.Errorf("%d of %d orders are paid", n, orders)
	}
	if n := s.Count(`select count(*) from audit.orders o
		join audit.notifications n on n.biz_no = o.order_no || '/message/1'
		where (o.state, n.state) in (('paid', 'cancelled'), ('cancelled', 'sent'))`); n != orders {
		t.Errorf("the messages of %d of %d orders say what happened", n, orders)
	}
}
