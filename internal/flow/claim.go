package flow

import (
	"cmp"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// ClaimCondition is a use of a key before a command: a page id. The use stays when the command is refused for
// business reasons, and is given back with everything else when the command fails otherwise.
type ClaimCondition struct {
	Caller commit.Caller
	Params claim.Params

	row *claim.Row
	use claim.Use
}

// NewClaimCondition makes one. A key without a life is taken for ever, and what guards a command by one may happen
// once: it always refuses a second use, also its owner's.
func NewClaimCondition(c commit.Caller, p claim.Params) *ClaimCondition {
	p.FirstOnly = p.FirstOnly || p.Life == 0
	return &ClaimCondition{Caller: c, Params: p}
}

// Need names the key.
func (c *ClaimCondition) Need(tx *Tx) {
	c.row, c.use = tx.Claims().Want(c.Params.At(c.Caller.Tenant)), claim.Use{}
}

// Guard uses it.
func (c *ClaimCondition) Guard(tx *Tx) (err error) {
	c.use, err = tx.Claims().Use(c.row, c.Caller, &c.Params)
	return err
}

// Apply has nothing left to do.
func (c *ClaimCondition) Apply(*Tx) error { return nil }

// Done names what the first use made, as the caller does, or else the business.
func (c *ClaimCondition) Done(tx *Tx, answer any, _ bool) error {
	if !c.use.Existed {
		tx.Claims().Name(c.row, cmp.Or(c.Params.Result, resultName(answer)))
	}
	return nil
}

// Count is which use it was; 0: the answer was recorded, so that it was not looked at. Read it when the command went
// well.
func (c *ClaimCondition) Count() int64 { return c.use.Count }

// resultName is the business's own name of what a command made, or empty.
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
	}
	return ""
}
