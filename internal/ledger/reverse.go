package ledger

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Reversal is the type of a transfer that reverses another.
const Reversal = "reversal"

// ReverseParams asks for the opposite of a transfer, named by id or, when id is 0, by biz_no.
type ReverseParams struct {
	TransferID    int64
	TransferBizNo string
	BizNo         string
	Metadata      map[string]string
	EffectiveAt   time.Time
}

// ReverseCommand reverses a transfer, once. Its answer is a *Transfer.
type ReverseCommand struct {
	Caller
	ReverseParams
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

// Apply posts the opposite, last posting first.
func (c *ReverseCommand) Apply(tx *Tx) (any, error) {
	target := c.target()
	if target == nil && c.byID != nil && c.byID.late {
		return nil, commit.ErrMoreRows
	}
	if first := c.name.t; first != nil {
		if d := c.differences(first, target); len(d) > 0 {
			return nil, bizNoTaken("transfer", c.BizNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	if target == nil {
		return nil, TransferNotFound.New("there is no such transfer")
	}
	if target.ReversedByID != 0 {
		return nil, AlreadyReversed.New("transfer %s was already reversed", target.BizNo).
			With("reversed_by_id", target.ReversedByID)
	}
	var accounts []*Account
	for _, e := range target.Entries {
		a := tx.accounts[AccountKey{c.Tenant, e.Account, e.Asset}]
		if a == nil || !a.found {
			return nil, commit.ErrMoreRows // committed after Discover looked
		}
		if a.lapsing {
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

func (c *ReverseCommand) differences(t, target *Transfer) (fields []string) {
	if t.ReversesID == 0 {
		return []string{"kind"}
	}
	if target == nil || t.ReversesID != target.ID {
		fields = append(fields, "target")
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, c.EffectiveAt, t.EffectiveAt)...)
}

func bizNoTaken(what, bizNo string, id int64, fields []string) error {
	slices.Sort(fields)
	fields = slices.Compact(fields)
	f := BizNoExistsDifferent.New("the biz_no %s is already used by another %s: %s differ", bizNo, what,
		strings.Join(fields, ", ")).
		With("biz_no", bizNo).With("first_id", id).With("differs", strings.Join(fields, ","))
	for _, name := range fields {
		f = f.WithField(name, "differs from the first request with this biz_no")
	}
	return f
}

func notFound(a *Account) error {
	return AccountNotFound.New("there is no account %s in asset %s", a.Code, a.Asset).With("account",
		a.Code).With("asset", a.Asset)
}

func isTooPrecise(err error) bool { return errors.Is(err, amount.ErrTooPrecise) }
