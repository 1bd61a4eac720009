package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// A reservation that another session holds expires when it is released. Until then the item's other due reservations
// expire, and their units can be sold.
func TestAHeldReservationDelaysNoSale(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	ctx := context.Background()
	m.wants(flow.Stock(&stock.PutItemCommand{Caller: caller, Item: "cup"}), "ok")
	m.wants(flow.Stock(&stock.ChangeCommand{Caller: caller, Item: "cup", ChangeNo: "c", Kind: stock.Restock,
		Quantity: 2}), "ok")
	reserve := func(no string, life time.Duration) flow.Command {
		return flow.Stock(&stock.ReserveCommand{Caller: caller, Item: "cup", ReservationNo: no, Quantity: 1,
			Life: life})
	}
	m.wants(reserve("r1", time.Second), "ok")
	m.wants(reserve("r2", time.Second), "ok")
	m.clock.Set(t, time.Minute)
	held, err := m.super.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(ctx) }()
	if _, err := held.Exec(ctx, "select from stock_reservations where reservation_no = 'r1' for update"); err != nil {
		t.Fatal(err)
	}
	quickly, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	sell := func(no string) error {
		_, err := m.engines[0].Do(quickly, flow.Submission{Tenant: 1, RequestID: "r", Rows: 2, Bytes: 100,
			Command: reserve(no, 0)})
		return err
	}
	if err := sell("s1"); err != nil {
		t.Errorf("the unit of the other reservation: %v", err)
	}
	if err := sell("s2"); !fault.Is(err, fault.RowsLocked) {
		t.Errorf("the unit of the held reservation: %v", err)
	}
	made := make(chan string, 1)
	go func() {
		made <- m.batch(0, newOrder("o", plain, func(c *flow.CreateOrder) {
			c.Reserve, c.Lines = true, []order.Line{{Item: "cup", Quantity: 1}}
		}))[0]
	}()
	select {
	case got := <-made:
		t.Errorf("before the reservation was released: %s", got)
	case <-time.After(200 * time.Millisecond):
	}
	if got := m.text("select string_agg(reservation_no || ' ' || state, ', ' order by reservation_no) " +
		"from stock_reservations"); got != "r1 reserved, r2 expired, s1 sold" {
		t.Error(got)
	}
	if err := held.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-made; got != "o awaiting_payment" {
		t.Error(got)
	}
	if got := m.text("select format('%s %s %s', available, reserved, sold) from stock_items " +
		"where item = 'cup'"); got != "0 1 1" {
		t.Error(got)
	}
}
