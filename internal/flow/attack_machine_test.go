package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// A tenant's own order machine may restrict a move in ways that a notice cannot meet: an input, a principal or a stay.
// The refund ends nevertheless, and the order stays until a caller moves it.
func TestARefundEndsThoughItsOrderCannotMove(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*machine.Allowed){
		"input":     func(a *machine.Allowed) { a.Require = []string{machine.ReasonInput} },
		"principal": func(a *machine.Allowed) { a.Principals = []string{"boss"} },
		"stay":      func(a *machine.Allowed) { a.StayMs = 60_000 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			d := *machine.Shipped[machine.OrderMachine]
			d.Moves = append([]machine.Allowed{}, d.Moves...)
			for i := range d.Moves {
				if d.Moves[i].Back || d.Moves[i].To == "refunded" {
					change(&d.Moves[i])
				}
			}
			m.wants(flow.Machine(machine.NewDefine(caller, machine.OrderMachine, &d)), "ok")
			m.payableOrder("o", outside)
			m.create("o", "p1")
			m.says(notice("n1", amountOf("10", "CNY")), "applied")
			m.gets(refund("r1", ""), "r1 requested")
			m.says(notice("m1", ofRefund("r1", gateway.RefundFailed)), "applied")
			m.gets(refund("r2", ""), "r2 requested")
			m.says(notice("m2", amountOf("10", "CNY"), ofRefund("r2", gateway.Refunded)), "applied")
			m.is("o refunding, p1 succeeded, r1 failed, r2 succeeded")
			m.verify()
		})
	}
}
