package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// A flag of amount 0 cannot pay an order: it can only be written off.
func TestNothingIsNotAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("0", "CNY")), "flagged")
	m.says(notice("n2", amountOf("0", "UGX"), of("p1", "t2"), func(s *payment.Received) { s.Asset = "" }), "flagged")
	for n := range 2 {
		m.gets(m.resolve(n, flow.ResolveFlag{Resolution: payment.Accept}), "FIELD_INVALID")
	}
	m.is("o awaiting_payment, p1 suspended; wrong_amount 0, second_transaction 0")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "wrong_amount write_off")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "second_transaction write_off")
	m.verify()
}

// Money on the suspense account cannot be accepted for an order whose payee is the suspense account.
func TestMoneyOnThePayeesAccountIsNotAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside, func(c *flow.CreateOrder) { c.Payee = "sus" })
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	f := m.fault(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}))
	if f == nil || len(f.Fields) != 1 || f.Fields[0].Path != "resolution" {
		t.Errorf("%+v", f)
	}
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "wrong_amount write_off")
	m.verify()
}

// done adds a second state that confirms the parts of an order, after paid.
func done(d *machine.Definition) {
	d.States = append(d.States, machine.State{Name: "done", Parts: machine.ConfirmParts})
	d.Moves = append(d.Moves, machine.Allowed{From: []string{"paid"}, To: "done"})
}

// returning adds the state refunding, with a move from paid and one back to paid.
func returning(d *machine.Definition) {
	d.States = append(d.States, machine.State{Name: "refunding"})
	d.Moves = append(d.Moves, machine.Allowed{From: []string{"paid"}, To: "refunding"},
		machine.Allowed{From: []string{"refunding"}, To: "paid"})
}

// An order that one payment has paid is not paid by another, even if its machine would allow the move.
func TestAnOrderIsPaidByOnePayment(t *testing.T) {
	t.Parallel()
	ten := amountOf("10", "CNY")
	for name, c := range map[string]struct {
		machine func(*machine.Definition)
		move    string
	}{"a state follows that confirms too": {done, ""}, "an order that goes back": {returning, "refunding"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			m.define("own", "cancelled", c.machine)
			m.wants(newOrder("o", plain, at("own"), func(c *flow.CreateOrder) { c.Payee = user(3) }), "o pending")
			m.create("o", "p1")
			m.gets(creates("p2", "app"), "p2 created")
			m.gets(creates("p3", "web"), "p3 created")
			m.says(notice("n9", amountOf("9", "CNY"), of("p3", "t9")), "flagged")
			if got := m.together(hears(notice("n1", ten)), creates("p4", "x"),
				hears(notice("n2", ten, of("p2", "t2")))); got != "applied, p1 succeeded existed, flagged" {
				t.Error(got)
			}
			if c.move != "" {
				m.wants(moveOrder("o", c.move, "x"), "o "+c.move)
			}
			m.gets(creates("p2", "app"), "p1 succeeded existed")
			m.gets(creates("p5", "web"), "p1 succeeded existed")
			m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "ORDER_NOT_PAYABLE")
			m.says(notice("n4", ten, of("p2", "t4")), "flagged")
			if got := m.text("select string_agg(kind || ' ' || transaction_id, ', ' order by flag_id) " +
				"from payment_flags"); got != "wrong_amount t9, second_transaction t2, second_transaction t4" {
				t.Error(got)
			}
			m.calls("none")
			m.verify()
		})
	}
}

// An order that has moved, and that no payment has paid, can be paid, although it has flagged money.
func TestAnOrderThatHasMovedIsPaidOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.define("own", "", done)
	m.wants(newOrder("o", plain, at("own"), func(c *flow.CreateOrder) { c.Payee = user(3) }), "o pending")
	m.create("o", "p1")
	m.wants(moveOrder("o", "asleep", "x"), "o asleep")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.gets(creates("p2", ""), "p2 created")
	m.gets(creates("p3", "app"), "p3 created")
	ten := amountOf("10", "CNY")
	m.says(notice("n2", ten, of("p2", "t2")), "applied")
	m.says(notice("n3", ten, of("p3", "t3")), "flagged")
	m.verify()
}

// An order that was cancelled and reopened can be paid: its new payment is not closed.
func TestAnOrderThatIsOpenedAgainCanBePaid(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.define("own", "", func(d *machine.Definition) {
		d.Moves = append(d.Moves, machine.Allowed{From: []string{"cancelled"}, To: "pending"})
	})
	m.wants(newOrder("o", plain, at("own"), func(c *flow.CreateOrder) { c.Payee = user(3) }), "o pending")
	m.wants(moveOrder("o", "cancelled", "x"), "o cancelled")
	m.wants(moveOrder("o", "pending", "y"), "o pending")
	m.create("o", "p1")
	m.calls("g p1 submit")
	m.verify()
	m.wants(moveOrder("o", "cancelled", "z"), "o cancelled")
	m.calls("g p1 close")
	m.verify()
}

// The cancellation, the reopening and the payment share one batch: the payment is closed only if the order ends after
// it.
func TestAPaymentOfABatchIsClosedIfItsOrderEndsAfterIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, calls string }{{"create after", "g p1 submit"}, {"create before", "g p1 close"},
		{"create between", "g p1 close"}} {
		m := newTill(t)
		m.define("own", "", func(d *machine.Definition) {
			d.Moves = append(d.Moves, machine.Allowed{From: []string{"cancelled"}, To: "pending"})
		})
		m.wants(newOrder("o", plain, at("own"), func(c *flow.CreateOrder) { c.Payee = user(3) }), "o pending")
		end, begin, create := moveOrder("o", "cancelled", "x"), moveOrder("o", "pending", "y"), creates("p1", "")
		declined, pending := hears(notice("d1", kind(gateway.Declined))), hears(notice("d2", kind(gateway.Pending)))
		switch c.name {
		case "create after":
			m.together(end, begin, create)
		case "create before":
			m.together(create, end, begin)
		case "create between":
			m.together(end, begin, create, declined, moveOrder("o", "cancelled", "z"), pending)
		}
		m.calls(c.calls)
		m.verify()
	}
}
