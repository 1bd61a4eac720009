package payment_test

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// A payment of an ended order is closed, despite later notices that it is pending or declined, and even if the batch
// that ended the order created it.
func TestPaymentsOfEndedOrdersAreClosed(t *testing.T) {
	t.Parallel()
	d := newPlans(t)
	cancel := func(no string) flow.Command {
		return &flow.MoveOrder{Caller: caller, OrderNo: no, Cancel: true, Params: machine.MoveParams{Cause: "c"}}
	}
	d.do(created("a"), created("b"), pays("a"), pays("b"))
	d.do(cancel("a"))
	d.do(told(gateway.Pending, "a", "2"))
	d.do(cancel("b"), told(gateway.Declined, "b", "2"))
	d.do(created("c"))
	d.do(pays("c"), cancel("c"))
	var calls string
	if err := d.super.QueryRow(context.Background(), `select string_agg(number || ' ' || state || ' ' || call, ', '
		order by number)
		from payment_calls join machine_instances on machine = 'payment' and key = number`).Scan(&calls); err != nil {
		t.Fatal(err)
	}
	if calls != "a submitted close, b declined close, c created close" {
		t.Error(calls)
	}
}
