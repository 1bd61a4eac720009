package rpc

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// approvalOf returns fault APPROVAL_REQUIRED if a policy requires an approval for a message, or for a message within
// it.
func approvalOf(policies *access.Policies, m protoreflect.Message) (err error) {
	p := policies.For(operationOf(m.Descriptor().FullName()))
	if p.ApprovalRequired && (p.ApprovalAbove == nil || isAbove(m.Interface(), *p.ApprovalAbove)) {
		return p.NeedsApproval()
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() || f.Message() == nil || !strings.HasPrefix(string(f.Message().FullName()), "ledgerd."):
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = approvalOf(policies, v.List().Get(i).Message())
			}
		default:
			err = approvalOf(policies, v.Message())
		}
		return err == nil
	})
	return err
}

// operationOf returns the operation of a request, or of an item of GrabMany. Empty: the message is neither.
func operationOf(name protoreflect.FullName) string {
	if name == "ledgerd.sale.v1.Grab" {
		return grabName
	}
	return byRequest[name].operation
}

// withAmount lists the operations with an amount: a policy may have approval_above for them.
var withAmount = []string{"ledger.create_accounts", holdName, reverseName, transferName,
	updateAccountName}

// isAbove reports whether the amount of a request is greater than n. The amount of a reversal is known only when it
// runs: see allowReversal.
func isAbove(m proto.Message, n amount.Decimal) bool {
	above := func(s string) bool { // also invalid text, which the decoder has refused
		d, err := amount.ParseDecimal(s)
		return err != nil || amount.NewDecimal(d.Coef.Abs(), d.Scale).Cmp(n) > 0
	}
	switch r := m.(type) {
	case *ledgerv1.TransferRequest:
		// A posting of all that is available has no amount, so it counts as above.
		return slices.ContainsFunc(r.GetPostings(), func(p *ledgerv1.Posting) bool { return above(p.GetAmount()) })
	case *ledgerv1.HoldRequest:
		return above(r.GetAmount())
	case *ledgerv1.CreateAccountsRequest:
		return slices.ContainsFunc(r.GetAccounts(), func(a *ledgerv1.NewAccount) bool {
			return a.GetUnbounded() || a.MinBalance != nil && above(a.GetMinBalance())
		})
	case *ledgerv1.UpdateAccountRequest:
		return r.GetUnbounded() || r.GetClearMaxBalance() || r.MinBalance != nil && above(r.GetMinBalance()) ||
			r.MaxBalance != nil && above(r.GetMaxBalance())
	}
	return false
}

// allowReversal returns the check of the greatest amount of a reversal. Nil: no policy limits it.
func (c *call) allowReversal() func(greatest amount.Decimal) error {
	p := c.identity.Policies.For(reverseName)
	if p.ApprovalAbove == nil {
		return nil
	}
	return func(greatest amount.Decimal) error {
		if greatest.Cmp(*p.ApprovalAbove) > 0 {
			return p.NeedsApproval()
		}
		return nil
	}
}

// neverApproved lists prefixes of operations that cannot require approval: programs wait for their answers, or their
// effects survive a refusal. GrabMany cannot, because each of its grabs can.
var neverApproved = []string{"idempotency.", "inbox.", "lock.", "notify.send_code", "notify.verify_code", grabManyName}

// approvable reports whether an operation can be requested, and policies can require its approval.
func approvable(operation string) bool {
	return operation == executeName ||
		slices.ContainsFunc(executable(), func(name string) bool { return name == operation }) &&
			!slices.ContainsFunc(neverApproved, func(p string) bool { return strings.HasPrefix(operation, p) })
}

// executable returns the names of the operations that an Execute supports.
func executable() (names []string) {
	for _, o := range operations {
		names = append(names, o.name)
	}
	return names
}

// CheckPolicy checks that the operation of a policy exists, and supports what the policy requires. Returns fault
// FIELD_INVALID.
func CheckPolicy(p access.Policy) error {
	field, problem := "", ""
	names := Operations()
	switch {
	case p.Operation != access.Others && !slices.Contains(names, p.Operation):
		field, problem = "operation", fmt.Sprintf("%s is no operation: use * or one of %v", p.Operation, names)
	case p.ApprovalRequired && p.Operation != access.Others && !approvable(p.Operation):
		field, problem = "approval_required", fmt.Sprintf("%s cannot be requested for approval", p.Operation)
	case p.ApprovalAbove != nil && !slices.Contains(withAmount, p.Operation):
		field, problem = "approval_above", fmt.Sprintf("%s has no amount: only %s have one", p.Operation,
			strings.Join(withAmount, ", "))
	default:
		return nil
	}
	return fault.InvalidField(field, "%s", problem)
}
