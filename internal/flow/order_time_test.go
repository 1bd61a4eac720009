package flow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/order"
)

// read returns an order and the lists of orders by state, as the reads outside the engine see them.
func (m *market) read(no string, states ...string) string {
	m.Helper()
	r := order.NewReader(m.app)
	v, err := r.Order(m.Context(), order.Key{Tenant: 1, OrderNo: no})
	if err != nil {
		m.Fatal(err)
	}
	got := fmt.Sprintf("%s %d %s", v.State.State, v.Revision, v.Cause)
	if !v.TimerAt.IsZero() {
		got += " until " + v.TimerAt.Sub(v.CreatedAt).String()
	}
	for _, state := range states {
		got += "; " + state + ":"
		list, _, err := r.Orders(m.Context(), 1, order.Filter{Machine: v.Machine, State: state}, order.Page{})
		if err != nil {
			m.Fatal(err)
		}
		for _, x := range list {
			got += " " + x.OrderNo
		}
	}
	return got
}

func (m *market) equal(what, got, want string) {
	m.Helper()
	if got != want {
		m.Errorf("%s\n got %s\nwant %s", what, got, want)
	}
}

const late = "order, cancelled 2 timer, 3 tea expired, hold expired"

// Past its time to pay, an order counts as cancelled for all callers, before the scheduler records that: its units and
// its money are free, and the first command that is not refused records the move.
func TestOrderPastItsTime(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	for _, no := range []string{"read", "again", "paid", "cancelled", "fired"} {
		m.wants(newOrder(no), no+" awaiting_payment")
	}
	lists := []string{"awaiting_payment", "cancelled"}
	m.clock.Set(t, 29*time.Minute)
	m.equal("before", m.read("read", lists...), "awaiting_payment 1 creation until 30m0s; "+
		"awaiting_payment: fired cancelled paid again read; cancelled:")
	m.clock.Set(t, 31*time.Minute)
	m.equal("after", m.read("read", lists...), "cancelled 2 timer; awaiting_payment:; cancelled: "+
		"fired cancelled paid again read")
	m.wants(pay("paid"), "MOVE_NOT_ALLOWED")
	m.wants(cancelOrder("cancelled"), "STATE_TAKEN")
	for _, no := range []string{"read", "paid", "cancelled"} { // refused, so nothing was written
		if got := m.rowsOfOrder(no); !strings.HasPrefix(got, "order, awaiting_payment 1 creation") {
			t.Errorf("%s: %s", no, got)
		}
	}
	m.wants(newOrder("again"), "again cancelled existed")
	m.wantRows("again", late)
	m.wants(newOrder("again", plain), "ORDER_EXISTS_DIFFERENT")
	m.wants(fire("fired", "order"), "true")
	m.wants(fire("fired", "order"), "false")
	m.wantRows("fired", late)
	m.wants(fire("none", "order"), "false")
	m.wants(newOrder("all", func(c *flow.CreateOrder) {
		c.Lines[0].Quantity, c.Balance.Amount, c.Amount = 100,
			dec("50"), dec("51")
	}),
		"all awaiting_payment")
	m.equal("recorded", m.read("again", lists...), "cancelled 2 timer; awaiting_payment: all; cancelled: "+
		"fired cancelled paid again read")
	for _, no := range []string{"read", "paid", "cancelled"} {
		m.wants(fire(no, "order"), "true")
		m.wantRows(no, late)
	}
}

// The time to pay of a purchase's first order is over, and not recorded: the next call records that, and creates its
// own order.
func TestSamePurchaseAfterTheTimeOfTheFirst(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled")
	for no, machineName := range map[string]string{"a": "order", "b": "own", "c": "simple_order"} {
		if got := m.batch(0, newOrder(no, sameAs(no), at(machineName)))[0]; strings.ToUpper(got) == got {
			t.Fatal(got)
		}
		m.wants(newOrder(no+"-too", sameAs(no)),
			map[string]string{"a": "a awaiting_payment existed", "b": "b pending existed",
				"c": "c pending existed"}[no])
	}
	m.clock.Set(t, 29*time.Minute)
	refuse := func(c *flow.CreateOrder) { c.Purchase.Refuse = true }
	m.wants(newOrder("x", sameAs("a"), refuse), "PURCHASE_REPEATED")
	m.wants(newOrder("x", sameAs("c"), refuse), "PURCHASE_REPEATED")
	m.clock.Set(t, 31*time.Minute)
	if got := m.batch(1, newOrder("a2", sameAs("a"), refuse), newOrder("a3", sameAs("a")),
		newOrder("a4", sameAs("a"), refuse)); strings.Join(got, ", ") !=
		"a2 awaiting_payment, a2 awaiting_payment existed, PURCHASE_REPEATED" {
		t.Error(got)
	}
	m.wants(newOrder("c2", sameAs("c"), at("own")), "c2 pending")
	m.wants(newOrder("x", sameAs("b"), refuse), "PURCHASE_REPEATED")
	m.clock.Set(t, 59*time.Minute)
	m.wants(newOrder("x", sameAs("b"), refuse), "PURCHASE_REPEATED")
	m.wantRows("a", late)
	m.wantRows("a2", open+", purchase")
	m.wantRows("c", "order, simple_order expired 2 timer, 3 tea expired, hold expired")
	// The purchase life of the first order is over as well: its recorded end leaves the claim of the new order.
	m.clock.Set(t, 61*time.Minute)
	m.wants(newOrder("b2", sameAs("b")), "b2 awaiting_payment")
	m.wants(fire("b", "own"), "true")
	m.wantRows("b2", open+", purchase")
	m.wants(newOrder("b3", sameAs("b")), "b2 awaiting_payment existed")
}

// This order needs the most attempts: the first order of the purchase follows a machine of the tenant's own, both
// publish events, the machine of the second is not stored yet, and no lines raise the limit on attempts.
func TestOrderThatNeedsManyRowsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled", func(d *machine.Definition) {
		for i := range d.Moves {
			d.Moves[i].Publish = fmt.Sprint("own.", d.Moves[i].To)
		}
	})
	first := newOrder("first", sameAs("x"), at("own"), func(c *flow.CreateOrder) { c.Purchase.Life = 24 * time.Hour })
	m.wants(first, "first pending")
	for _, name := range []string{"all", "too"} {
		m.wants(flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: name, URL: "https://example.com"}), "ok")
	}
	m.clock.Set(t, 61*time.Minute)
	free := newOrder("free", sameAs("x"), plain, func(c *flow.CreateOrder) {
		c.Lines, c.Amount, c.Purchase.Life = nil, dec("0"), 24*time.Hour
	})
	if got := m.batch(1, free)[0]; got != "free paid" {
		t.Error(got)
	}
	m.wantRows("first", "order, own cancelled 2 timer, 3 tea expired, hold expired")
	m.wantRows("free", "order, paid 2 balance, purchase")
	m.equal("events", m.text("select string_agg(recipient || ' ' || business_type, ', ' order by message_id) "+
		"from notify_messages join notify_contents using (message_id)"), "all own.cancelled, too own.cancelled, "+
		"all order.paid, too order.paid")
}

// The clock is set back after orders have expired: a call that has got their units keeps them.
func TestOrderWithAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.clock.Set(t, time.Hour)
	for _, no := range []string{"a", "b", "c"} {
		m.wants(newOrder(no), no+" awaiting_payment")
	}
	m.clock.Set(t, 2*time.Hour)
	m.wants(fire("a", "order"), "true")
	m.wants(deduct("else", 100), "ok") // the other reservations expire, as the holds did when a was recorded
	m.clock.Set(t, time.Hour)
	m.wants(pay("a"), "MOVE_NOT_ALLOWED")
	m.wants(pay("b"), "RESERVATION_ENDED")
	m.wants(cancelOrder("b"), "b cancelled")
	m.wantRows("b", "order, cancelled 2 cancel, 3 tea expired, hold expired")
	m.clock.Set(t, 0)
	m.wants(fire("c", "order"), "false")
	m.wants(pay("c"), "RESERVATION_ENDED")
	m.wantRows("c", "order, awaiting_payment 1 creation, 3 tea expired, hold expired")
	m.wantLeft("tea 0, milk 100, ann 50 held 0")
}
