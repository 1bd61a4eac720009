package flow

import (
	"cmp"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/order"
)

// ClaimGuard claims a key, such as a page id, for a command. The claim survives if the command fails with a
// fault of class Refusal or Duplicate, and is undone by any other failure.
type ClaimGuard struct {
	Caller commit.Caller
	Params claim.Params

	row *claim.Row
	use claim.Use
}

// NewClaimGuard returns a guard. A key without a life is claimed permanently and refuses every second use, even
// by its owner, so that the guarded command runs once.
func NewClaimGuard(c commit.Caller, p claim.Params) *ClaimGuard {
	p.FirstOnly = p.FirstOnly || p.Life == 0
	return &ClaimGuard{Caller: c, Params: p}
}

// Need names the key.
func (c *ClaimGuard) Need(tx *Tx) {
	c.row, c.use = tx.Claims().Want(c.Params.At(c.Caller.Tenant)), claim.Use{}
}

// Guard claims the key.
func (c *ClaimGuard) Guard(tx *Tx) (err error) {
	c.use, err = tx.Claims().Use(c.row, c.Caller, &c.Params)
	return err
}

// Apply does nothing: Guard has claimed the key.
func (c *ClaimGuard) Apply(*Tx) error { return nil }

// Done records the name of the resource that the first use made: the caller's own name for it, or its business number.
func (c *ClaimGuard) Done(tx *Tx, r Result) {
	if !c.use.Existed {
		tx.Claims().Name(c.row, cmp.Or(c.Params.Result, resultName(r.Value)))
	}
}

// Uses returns how many uses there are, from 1. It is 0 for a replay, for which Guard does not run. It is valid after
// the command has succeeded.
func (c *ClaimGuard) Uses() int64 { return c.use.Count }

// resultName returns the business number or code of the resource that a command made, or "".
func resultName(answer any) string {
	switch a := answer.(type) {
	case *ledger.Transfer:
		return a.BizNo
	case *ledger.Hold:
		return a.BizNo
	case ledger.Capture:
		return a.Transfer.BizNo
	case *ledger.Account:
		return a.Code
	case order.View:
		return a.OrderNo
	case coupon.View:
		return a.Code
	case Grabbed:
		return cmp.Or(a.OrderNo, a.Coupon)
	}
	return ""
}
