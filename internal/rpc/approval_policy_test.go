package rpc

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// An effect that survives a refusal would commit without approval, each time that an approval is tried.
func TestApprovableOperationsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	c := &call{gate: &Gate{Memory: flow.NewMemory(), NewOrderNo: func() (string, error) { return "n", nil },
		Gateway: func(payment.GatewayKey) *gateway.Configured { return nil }}}
	stay := 0
	for name, o := range operations {
		typ, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			t.Fatal(err)
		}
		m := o.read(c, &decoder{}, typ.New().Interface())
		if flow.SurvivesRefusal(m.command) {
			stay++
			if approvable(o.name) {
				t.Errorf("%s leaves something behind", o.name)
			}
		}
	}
	if stay < 4 {
		t.Errorf("only %d operations leave something behind", stay)
	}
}

func TestPoliciesOfApprovalsAreChecked(t *testing.T) {
	t.Parallel()
	n := amount.NewDecimal(amount.FromInt64(10), 0)
	for _, x := range []struct {
		p     access.Policy
		field string
	}{
		{access.Policy{Operation: "ledger.reverse", ApprovalRequired: true, ApprovalAbove: &n}, ""},
		{access.Policy{Operation: "ledger.freeze_account", ApprovalRequired: true}, ""},
		{access.Policy{Operation: "batch.execute", ApprovalRequired: true}, ""},
		{access.Policy{Operation: "ledger.transfer_batch", KeyRequired: true}, ""},
		{access.Policy{Operation: "approval.approve", KeyRequired: true}, ""},
		{access.Policy{Operation: access.Others, KeyRequired: true}, ""},
		{access.Policy{Operation: "ledger.nothing", ApprovalRequired: true}, "operation"},
		{access.Policy{Operation: "ledger.transfer_batch", ApprovalRequired: true}, "approval_required"},
		{access.Policy{Operation: "approval.approve", ApprovalRequired: true}, "approval_required"},
		{access.Policy{Operation: "lock.acquire", ApprovalRequired: true}, "approval_required"},
		{access.Policy{Operation: "notify.verify_code", ApprovalRequired: true}, "approval_required"},
		{access.Policy{Operation: "idempotency.issue_tokens", ApprovalRequired: true}, "operation"},
		{access.Policy{Operation: "ledger.freeze_account", ApprovalRequired: true, ApprovalAbove: &n},
			"approval_above"},
	} {
		err := CheckPolicy(x.p)
		if f := fault.Of(err); (err != nil) != (x.field != "") || f != nil && f.Fields[0].Path != x.field {
			t.Errorf("%+v: %v", x.p, err)
		}
	}
}
