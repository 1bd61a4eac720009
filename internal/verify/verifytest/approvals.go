package verifytest

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/approval"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// approvals makes an API key, a policy, and three requests of tester: the boss approved the first, which changes the
// metadata of the account fees, and rejected the second; the third is open.
func (b *Books) approvals() {
	b.t.Helper()
	if err := access.Administer(b.super).PutPolicy(b.t.Context(), Demo, access.Policy{Operation: "ledger.hold",
		ApprovalRequired: true}); err != nil {
		b.t.Fatal(err)
	}
	rights := access.Rights{Role: access.Write, CallRate: 10, Expires: time.Now().Add(24 * time.Hour)}
	if _, err := access.Administer(b.super).CreateKey(b.t.Context(), Demo, access.NewKey{Principal: "boss",
		Rights: rights}); err != nil {
		b.t.Fatal(err)
	}
	boss := commit.Caller{Tenant: Demo, Principal: "boss"}
	var ids []int64
	for _, operation := range []string{"ledger.update_account", "ledger.reverse", "ledger.close_account"} {
		made := b.ask("req-wish", flow.Approval(&approval.RequestCommand{Caller: caller(Demo, "req-wish"),
			Operation: operation, Bytes: []byte("a request"), Details: []byte(`{"account": "fees"}`),
			Reason: "month end", Life: approval.DefaultLife}))
		ids = append(ids, made.(approval.Request).ID)
	}
	boss.RequestID = approval.Key{Tenant: Demo, ID: ids[0]}.RequestID()
	change := &ledger.UpdateAccountCommand{Caller: caller(Demo, boss.RequestID), Code: "fees", Asset: "CNY",
		Change: ledger.AccountChange{Metadata: map[string]string{"owner": "finance"}}}
	change.ApprovedBy = boss.Principal
	b.ask(boss.RequestID, &approve{Command: flow.Ledger(change), by: boss, id: ids[0]})
	reject := &approval.RejectCommand{Caller: boss, ID: ids[1], Note: "no"}
	reject.RequestID = "req-reject"
	b.ask("req-reject", flow.Approval(reject))
}

// approve approves a request, and runs a command in place of the requested one.
type approve struct {
	flow.Command
	by  commit.Caller
	id  int64
	row *approval.Row
}

func (c *approve) Need(tx *flow.Tx) {
	c.row = tx.Approvals().Want(approval.Key{Tenant: Demo, ID: c.id})
	c.Command.Need(tx)
}

func (c *approve) Apply(tx *flow.Tx) (any, error) {
	answer, err := c.Command.Apply(tx)
	tx.Approvals().Decide(c.row, approval.Approved, c.by, "", []byte("a response"))
	return answer, err
}
