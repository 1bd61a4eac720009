package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// Nothing pays no order: a flag of no amount can only be written off.
func TestNothingIsNotAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("0", "CNY")), "flagged")
	m.says(notice("n2", amountOf("0", "UGX"), of("p1", "t2"), func(s *payment.Said) { s.Asset = "" }), "flagged")
	for n := range 2 {
		m.gets(m.resolve(n, flow.ResolveFlag{Resolution: payment.Accept}), "FIELD_INVALID")
	}
	m.is("o awaiting_payment, p1 suspended; wrong_amount 0, second_transaction 0")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "wrong_amount write_off")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "second_transaction write_off")
	m.verify()
}

// Money on the suspense account cannot be accepted for an order whose payee that is.
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
