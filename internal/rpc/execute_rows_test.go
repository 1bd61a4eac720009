package rpc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
)

// An operation has to wait for batches in which thousands of holds expire. Those that refer to it wait with it.
func TestReferencesToAnOperationThatWaits(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for n := range 6 {
		var all []*batchv1.Operation
		for i := range 1000 {
			h := keep(fmt.Sprintf("h-%d-%d", n, i), "u:a", "", "0.01")
			h.Life = durationpb.New(time.Hour)
			all = append(all, operation("", h))
		}
		c.executed(execute(all...))
	}
	if _, err := c.Pool.Exec(t.Context(), `with h as (update ledger_holds set expires_at = now() - interval '1 s'
		where tenant_id = $1 and biz_no like 'h-%' and state = 'held' returning 1)
		update ledger_accounts set next_expiry_at = now() - interval '1 s' where tenant_id = $1 and code = 'u:a'`,
		c.tenant()); err != nil {
		t.Fatal(err)
	}
	c.executed(execute(operation("k", keep("k", "u:a", "", "1")),
		operation("", &ledgerv1.ReleaseRequest{}, "hold_id=k:hold.id")))
}

// In the first attempt the order of all units lacks rows, so the grabs win, and need more ids than a batch has. In the
// second attempt no unit is left for them.
func TestLostAttemptsMayNeedTooManyIDs(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	c.executed(execute(operation("", restock("tv", "more", 19990))))
	ok(c, "Machine.DefineMachine", ownMachine("own", machinev1.OrderParts_ORDER_PARTS_CANCEL),
		new(machinev1.DefineMachineResponse))
	s := saleOf("lost", "tv", "COIN")
	s.GetOrder().Machine = "own"
	c.putSale(s)
	c.wantGrab("lost", "first", won) // the server knows the sale
	r := execute(operation("", plainOrder("all", "tv", 19999)))
	for i := range 9 {
		m := &salev1.GrabManyRequest{Sale: "lost"}
		for j := range 1000 {
			m.Grabs = append(m.Grabs, &salev1.Grab{Buyer: fmt.Sprintf("b-%d-%d", i, j)})
		}
		r.Operations = append(r.Operations, operation("", m))
	}
	c.executed(r)
	c.wantItem("tv", "0/20000/0/20000")
}
