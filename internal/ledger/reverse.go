package ledger

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reversal is the type of a transfer that reverses another.
const Reversal = "reversal"

// ReverseParams name a transfer to reverse by id or, if id is 0, by biz_no.
type ReverseParams struct {
	TransferID    int64
	TransferBizNo string
	BizNo         string
	Metadata      map[string]string
	EffectiveAt   time.Time
}

// ReverseCommand reverses a transfer, once. Its answer is a *Transfer.
type ReverseCommand struct {
	commit.Caller
	ReverseParams
	// Allow refuses a reversal by the greatest amount that it moves. Nil: every reversal is allowed.
	Allow func(greatest amount.Decimal) error

	name   *transferName
	byName *transferName
	byID   *transferRef
}

// Need names the biz_no of the reversal and the transfer to reverse.
func (c *ReverseCommand) Need(tx *Tx) {
	c.name = tx.transferName(c.Tenant, c.BizNo)
	c.name.all = true
	if c.TransferID != 0 {
		c.byID = tx.transferRef(c.Tenant, c.TransferID)
		return
	}
	c.byName = tx.transferName(c.Tenant, c.TransferBizNo)
	c.byName.reverse, c.byName.all = true, true
}

func (c *ReverseCommand) target() *Transfer {
	if c.byID != nil {
		return c.byID.t
	}
	return c.byName.t
}

// Apply posts the opposite postings, last one first.
func (c *ReverseCommand) Apply(tx *Tx) (any, error) {
	target := c.target()
	if target == nil && c.byID != nil && c.byID.late {
		return nil, commit.ErrMoreRows
	}
	if first := c.name.t; first != nil {
		if d := c.differences(first, target); len(d) > 0 {
			return nil, tx.bizNoTaken("transfer", c.BizNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	if target == nil {
		if c.TransferID != 0 {
			return nil, transferNotFound("transfer_id", c.TransferID)
		}
		return nil, transferNotFound("transfer_biz_no", c.TransferBizNo)
	}
	if target.ReversedByID != 0 {
		return nil, AlreadyReversed.New("transfer %s was already reversed", target.BizNo).
			With("reversed_by_id", target.ReversedByID)
	}
	if c.Allow != nil {
		if err := c.Allow(target.greatest()); err != nil {
			return nil, err
		}
	}
	var accounts []*Account
	for _, e := range target.Entries {
		a := tx.accounts[AccountKey{c.Tenant, e.Account, e.Asset}]
		if a == nil || !a.exists {
			return nil, commit.ErrMoreRows // committed after Discover ran
		}
		if a.overdue {
			return nil, commit.ErrLater
		}
		accounts = append(accounts, a)
	}
	t := tx.newTransfer(c.Caller, c.name, TransferParams{BizNo: c.BizNo, Type: Reversal, Metadata: c.Metadata,
		EffectiveAt: c.EffectiveAt}, len(target.Entries)/2)
	t.ReversesID = target.ID
	for i := len(accounts) - 2; i >= 0; i -= 2 {
		debited, credited := accounts[i], accounts[i+1]
		if err := tx.move(t, credited, debited, Exact, target.Entries[i+1].Amount, amount.Int{}); err != nil {
			return nil, err
		}
	}
	target.ReversedByID = t.ID
	tx.made[len(tx.made)-1].reversed = target
	return t, nil
}

// greatest returns the greatest amount of the transfer's postings.
func (t *Transfer) greatest() (n amount.Decimal) {
	for i := 1; i < len(t.Entries); i += 2 { // the side that receives
		if d := amount.NewDecimal(t.Entries[i].Amount, t.Entries[i].Scale); d.Cmp(n) > 0 {
			n = d
		}
	}
	return n
}

func (c *ReverseCommand) differences(t, target *Transfer) (fields []string) {
	if t.ReversesID == 0 {
		return []string{fault.OtherCall}
	}
	if target == nil || t.ReversesID != target.ID {
		fields = append(fields, nameField("transfer", c.TransferID))
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, c.EffectiveAt, t.EffectiveAt)...)
}

// nameField returns the field by which a request names an object: the id, unless it is 0, or the biz_no.
func nameField(object string, id int64) string {
	if id != 0 {
		return object + "_id"
	}
	return object + "_biz_no"
}

// bizNoTaken refuses a biz_no that a transfer or hold with other content already has. The error names its id, unless
// the current command made it: that object is undone with the command.
func (tx *Tx) bizNoTaken(what, bizNo string, id int64, fields []string) error {
	slices.Sort(fields)
	fields = slices.Compact(fields)
	f := BizNoExistsDifferent.New("the biz_no %s is already used by another %s", bizNo, what)
	if tx.madeByCommand(id) {
		f = BizNoExistsDifferent.New("the biz_no %s is used by another %s of the same call", bizNo, what)
	} else {
		f = f.With("first_id", id)
	}
	return f.Differing(fields, "biz_no").With("biz_no", bizNo)
}

func transferNotFound(name string, value any) error {
	return TransferNotFound.New("there is no transfer %v", value).With(name, value).
		WithField(name, "must name a transfer that exists")
}

// notFound is the fault for the account that a field of the request names.
func notFound(a *Account, field string) error {
	return AccountNotFound.New("there is no account %s in asset %s", a.Code, a.Asset).With("account",
		a.Code).With("asset", a.Asset).WithField(field, "must be an account that exists, in this asset")
}
