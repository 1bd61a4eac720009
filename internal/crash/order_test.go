package crash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// buyers is the number of callers that create orders, besides those with baskets. ordered is their item.
const (
	buyers  = 6
	ordered = "ordered"
)

// newPurchase is an order that reserves units and holds 0.50 of a user. It is paid, cancelled, left alone until its
// time is over, or paid at about that time.
func newPurchase(n, i int) *basket {
	name := fmt.Sprintf("order-%d-%d", n, i)
	b := &basket{name: name, item: ordered, quantity: 1 + rand.Int64N(3)}
	add := func(call call) {
		b.steps = append(b.steps, &step{key: fmt.Sprint(name, "/", len(b.steps)), call: call})
	}
	life := durationpb.New(time.Hour)
	if i%4 >= 2 {
		life = durationpb.New(time.Second)
	}
	add(func(ctx context.Context, c *client.Client) (existing, error) {
		return c.Orders.CreateOrder(ctx, &orderv1.CreateOrderRequest{OrderNo: name, Subject: name, Asset: "CNY",
			Amount:  "2",
			Lines:   []*orderv1.OrderLine{{Item: ordered, Quantity: b.quantity}, {Item: ordered, Quantity: 1}},
			Reserve: true, Payee: "world", Balance: &orderv1.BalancePart{Account: user(n % users), Amount: "0.50"},
			PayWithin: life, Machine: "simple_order"})
	})
	switch i % 4 {
	case 0, 3:
		add(func(ctx context.Context, c *client.Client) (existing, error) {
			return c.Orders.MoveOrder(ctx, &orderv1.MoveOrderRequest{OrderNo: name, To: "paid", Cause: "pay"})
		})
	case 1:
		add(func(ctx context.Context, c *client.Client) (existing, error) {
			return c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: name, Cause: "changed my mind"})
		})
	}
	return b
}

// beginOrders stocks the item of orders.
func (w *world) beginOrders() {
	c := w.once()
	defer c.Close()
	_, err := c.Stock.PutItem(context.Background(), &stockv1.PutItemRequest{Item: ordered, Segments: 4})
	if err == nil {
		_, err = c.Stock.Restock(context.Background(),
			&stockv1.RestockRequest{Item: ordered, ChangeNo: "first", Quantity: 10 * units})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// judgePurchases compares the answers with the orders and the states of their parts.
func (w *world) judgePurchases(all []*basket) {
	w.until("recorded", func() bool { // by the scheduler
		return query[bool](w, w.db, "select count(*) = 0 from machine_instances where timer_at <= now()")
	})
	got, ends, left := w.orderRows(), map[string]int{}, int64(10*units)
	for _, b := range all {
		want := "nothing"
		if b.steps[0].answer != "" { // empty: the order was refused
			want = "pending creation, reserved reserved, hold held"
		}
		end := "pending"
		switch {
		case b.steps[0].answer == "":
			end = "refused"
		case len(b.steps) == 1 && !strings.HasPrefix(got[b.name], want):
			end = "expired"
		case len(b.steps) == 2 && b.steps[1].refused != "":
			end = "expired"
		case len(b.steps) == 2 && b.steps[1].answer != "":
			end = map[bool]string{true: "cancelled", false: "paid"}[strings.Contains(got[b.name], "changed my mind")]
		}
		switch end {
		case "paid":
			want = "paid pay, sold sold, hold captured, transfer"
			left -= b.quantity + 1
		case "cancelled":
			want = "cancelled changed my mind, cancelled cancelled, hold released"
		case "expired":
			want = "expired timer, expired expired, hold expired"
		case "pending":
			left -= b.quantity + 1
		}
		if ends[end]++; got[b.name] != want && !(want == "nothing" && got[b.name] == "") {
			w.t.Errorf("%s is %s, and was acknowledged as %s", b.name, got[b.name], want)
		}
		delete(got, b.name)
	}
	for name, line := range got {
		w.t.Errorf("%s is %s, and no caller knows it", name, line)
	}
	if n := query[int64](w, w.db, "select sum(available)::bigint from stock_items where item = 'ordered'"); n != left {
		w.t.Errorf("%d units are left, and should be %d", n, left)
	}
	if w.t.Logf("orders %v, %d units left", ends, left); ends["paid"] == 0 || ends["cancelled"] == 0 ||
		ends["expired"] == 0 {
		w.t.Error("the test exercised too little")
	}
}

// orderRows returns the buyers' orders in the database, with their parts, as text by number. It includes parts without
// an order.
func (w *world) orderRows() map[string]string {
	rows, err := pgtest.Pool(w.t, w.db.SuperDSN).Query(context.Background(), `
		select no, concat_ws(', ', (select state || ' ' || cause from machine_instances where key = no),
			(select string_agg(state, ' ') from stock_reservations where reservation_no like no || '/%'),
			(select 'hold ' || state from ledger_holds where biz_no = no || '/hold'),
			(select 'transfer' from ledger_transfers where biz_no = no || '/pay'))
		from (select order_no from order_orders where order_no like 'order-%' union
			select key from machine_instances where key like 'order-%' union
			select split_part(reservation_no, '/', 1) from stock_reservations where reservation_no like 'order-%' union
			select split_part(biz_no, '/', 1) from ledger_holds) o (no)`)
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]string{}
	var name, line string
	if _, err := pgx.ForEachRow(rows, []any{&name, &line},
		func() error { found[name] = line; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return found
}
