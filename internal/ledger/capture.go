package ledger

import (
	"cmp"
	"errors"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// CaptureParams describe a capture.
type CaptureParams struct {
	holdTarget
	BizNo       string
	Amount      *amount.Decimal // nil: all that remains
	To          string          // "": the hold's default destination
	ReleaseRest bool
	Type        string
	Metadata    map[string]string
}

// CaptureOf makes the params for a hold by id or, if id is 0, by biz_no.
func CaptureOf(holdID int64, holdBizNo string) CaptureParams {
	return CaptureParams{holdTarget: holdTarget{HoldID: holdID, HoldBizNo: holdBizNo}}
}

// Capture is the answer to a CaptureCommand.
type Capture struct {
	Transfer *Transfer
	Hold     *Hold
}

// CaptureCommand pays out of a hold. Its answer is a Capture.
type CaptureCommand struct {
	commit.Caller
	CaptureParams
	name  *transferName
	asset string // the hold's asset, learned in Apply: a hold of the same batch cannot be discovered
}

// Need names the biz_no, the hold, and the destination.
func (c *CaptureCommand) Need(tx *Tx) {
	c.name = tx.transferName(c.Tenant, c.BizNo)
	c.name.want(1 + 1) // one more, so that a longer first transfer differs
	c.need(tx, c.Tenant, c.To)
	if c.asset != "" && c.To != "" {
		tx.account(c.Tenant, c.To, c.asset)
	}
}

// Apply pays, or returns the existing transfer with the biz_no.
func (c *CaptureCommand) Apply(tx *Tx) (any, error) {
	h, from, err := c.get(tx)
	if errors.Is(err, commit.ErrMoreRows) || errors.Is(err, commit.ErrLater) {
		return nil, err
	}
	if first := c.name.t; first != nil {
		if d := c.differences(first, h); len(d) > 0 {
			return nil, tx.bizNoTaken("transfer", c.BizNo, first.ID, d)
		}
		return commit.Repeat{First: Capture{first, h.copy()}}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := h.mustBeHeld(); err != nil {
		return nil, err
	}
	code := cmp.Or(c.To, h.To)
	if code == "" {
		return nil, DestinationMissing.New("neither the capture nor hold %s names an account to pay", h.BizNo)
	}
	to := tx.accounts[AccountKey{h.Tenant, code, h.Asset}]
	if to == nil {
		c.asset = h.Asset
		return nil, commit.ErrMoreRows
	}
	if !to.exists {
		return nil, notFound(to, "to")
	}
	if to == from {
		return nil, fault.FieldInvalid.New("to: a capture cannot pay the account of its hold").
			WithField("to", "must not be the account of the hold")
	}
	n := h.Remaining()
	if c.Amount != nil {
		if n, err = minor(*c.Amount, from); err != nil {
			return nil, inField(err, "amount")
		}
	}
	if n.Cmp(h.Remaining()) > 0 {
		return nil, CaptureExceedsHold.New("hold %s has only %s %s left", h.BizNo, from.Format(h.Remaining()), h.Asset).
			With("remaining", from.Format(h.Remaining()))
	}
	t := tx.newTransfer(c.Caller, c.name, TransferParams{BizNo: c.BizNo, Type: c.Type, Metadata: c.Metadata}, 1)
	t.HoldID, t.Forms = h.ID, c.form()
	if err := tx.move(t, from, to, Exact, n, n); err != nil {
		return nil, err
	}
	tx.touchHold(h)
	h.Captured, _ = h.Captured.Add(n)
	if c.ReleaseRest || h.Remaining().IsZero() {
		tx.end(from, h, Captured)
	}
	return Capture{t, h.copy()}, nil
}

// Stored forms of a capture's request, in addition to its amount.
const allHeld, restBack = "all_held", "release_rest"

func (c *CaptureCommand) form() string {
	switch {
	case c.Amount == nil:
		return allHeld
	case c.ReleaseRest:
		return restBack
	}
	return ""
}

func (c *CaptureCommand) differences(t *Transfer, h *Hold) (fields []string) {
	if t.HoldID == 0 || len(t.Entries) != 2 {
		return []string{fault.OtherCall}
	}
	if h == nil || t.HoldID != h.ID {
		return []string{nameField("hold", c.HoldID)}
	}
	if t.Entries[1].Account != cmp.Or(c.To, h.To) {
		fields = append(fields, "to")
	}
	if (c.Amount == nil) != (t.Forms == allHeld) || c.Amount != nil &&
		amount.NewDecimal(t.Entries[1].Amount, h.Scale) != *c.Amount {
		fields = append(fields, "amount")
	} else if c.form() != t.Forms {
		fields = append(fields, "release_rest")
	}
	if c.Type != t.Type {
		fields = append(fields, "type")
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, time.Time{}, time.Time{})...)
}
