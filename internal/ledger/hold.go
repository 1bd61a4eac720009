package ledger

import (
	"cmp"
	"maps"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// HoldParams describe a hold to create.
type HoldParams struct {
	BizNo    string
	From, To string // To may be empty
	Asset    string
	Amount   amount.Decimal
	Form     Form
	Life     time.Duration
	Metadata map[string]string
}

// HoldCommand creates a hold. Its answer is a *Hold in its current state.
type HoldCommand struct {
	commit.Caller
	HoldParams
	name     *holdName
	from, to *Account
}

// Need names the biz_no and the accounts.
func (c *HoldCommand) Need(tx *Tx) {
	c.name = tx.holdName(c.Tenant, c.BizNo)
	c.from = tx.account(c.Tenant, c.From, c.Asset)
	c.to = nil
	if c.To != "" {
		c.to = tx.account(c.Tenant, c.To, c.Asset)
	}
}

// Apply creates the hold, or returns the existing one with the biz_no.
func (c *HoldCommand) Apply(tx *Tx) (any, error) {
	if c.from.overdue {
		return nil, commit.ErrLater
	}
	if h := c.name.h; h != nil {
		if d := c.differences(h); len(d) > 0 {
			return nil, tx.bizNoTaken("hold", c.BizNo, h.ID, d)
		}
		return commit.Repeat{First: h.copy()}, nil
	}
	if !c.from.exists {
		return nil, notFound(c.from, "from")
	}
	if c.to != nil && !c.to.exists {
		return nil, notFound(c.to, "to")
	}
	n, err := minor(c.Amount, c.from)
	if err != nil {
		return nil, inField(err, "amount")
	}
	switch c.from.State {
	case Closed:
		return nil, c.from.closed()
	case Frozen:
		return nil, c.from.frozen()
	}
	if n, err = c.from.resolve(c.Form, n); err != nil {
		return nil, err
	}
	if err := c.from.mayPay(n); err != nil {
		return nil, err
	}
	if _, ok := c.from.Balance.Sub(n); !ok {
		return nil, c.from.tooLarge()
	}
	held, ok := c.from.Held.Add(n)
	if !ok {
		return nil, amount.TooLarge.New("the held balance of %s would have more than 38 digits",
			c.from.Code).With("account", c.from.Code)
	}
	h := &Hold{Tenant: c.Tenant, ID: tx.newID(), BizNo: c.BizNo, AccountID: c.from.ID, From: c.From, Asset: c.Asset,
		Scale: c.from.Scale, To: c.To, Amount: n, State: Held, Life: c.Life, ExpiresAt: tx.at.Now.Add(c.Life),
		CreatedAt: tx.at.Now,
		Metadata:  c.Metadata, Principal: c.Principal, RequestID: c.RequestID, fresh: true}
	if c.Form != Exact {
		h.Form = formText(c.Form, c.Amount)
	}
	tx.touch(c.from)
	c.from.Held = held
	tx.expectExpiry(c.from, h)
	c.name.h = tx.keepHold(h)
	tx.newHolds = append(tx.newHolds, madeHold{h, c.name})
	return h.copy(), nil
}

// copy is a snapshot of the hold: later commands of the batch may change it.
func (h *Hold) copy() *Hold {
	c := *h
	return &c
}

func (c *HoldCommand) differences(h *Hold) (fields []string) {
	if c.From != h.From {
		fields = append(fields, "from")
	}
	if c.To != h.To {
		fields = append(fields, "to")
	}
	if c.Asset != h.Asset {
		fields = append(fields, "asset")
	}
	if f := formDifference(formText(c.Form, c.Amount), cmp.Or(h.Form, exactForm)); f != "" {
		fields = append(fields, f)
	} else if c.Form == Exact && amount.NewDecimal(h.Amount, h.Scale) != c.Amount {
		fields = append(fields, "amount")
	}
	if c.Life != h.Life {
		fields = append(fields, "life")
	}
	if !maps.Equal(c.Metadata, h.Metadata) {
		fields = append(fields, "metadata")
	}
	return fields
}

// holdTarget identifies a command's hold by id or, if id is 0, by biz_no.
type holdTarget struct {
	HoldID    int64
	HoldBizNo string
	byID      *holdRef
	byName    *holdName
}

// need declares the hold. Discover finds its account and the accounts of to ("": the hold's default
// destination).
func (t *holdTarget) need(tx *Tx, tenant int32, to ...string) {
	var wants *holdWants
	if t.HoldID != 0 {
		t.byID = tx.holdRef(tenant, t.HoldID)
		wants = &t.byID.holdWants
	} else {
		t.byName = tx.holdName(tenant, t.HoldBizNo)
		wants = &t.byName.holdWants
	}
	wants.account = true
	wants.to = append(wants.to, to...)
}

// get returns the hold with its account.
func (t *holdTarget) get(tx *Tx) (*Hold, *Account, error) {
	var h *Hold
	if t.byID != nil {
		h = t.byID.h
	} else {
		h = t.byName.h
	}
	if h == nil && t.byID != nil && t.byID.late {
		return nil, nil, commit.ErrMoreRows
	}
	if h == nil {
		if t.HoldID != 0 {
			return nil, nil, holdNotFound("hold_id", t.HoldID)
		}
		return nil, nil, holdNotFound("hold_biz_no", t.HoldBizNo)
	}
	a := tx.accounts[AccountKey{h.Tenant, h.From, h.Asset}]
	if a == nil || !a.exists {
		return nil, nil, commit.ErrMoreRows // committed after Discover ran
	}
	if a.overdue {
		return nil, nil, commit.ErrLater
	}
	return h, a, nil
}

func holdNotFound(name string, value any) error {
	return HoldNotFound.New("there is no hold %v", value).With(name, value).
		WithField(name, "must name a hold that exists")
}

// mustBeHeld refuses a hold that has ended.
func (h *Hold) mustBeHeld() error {
	switch h.State {
	case Held:
		return nil
	case Expired:
		return HoldExpired.New("hold %s expired at %s", h.BizNo, h.ExpiresAt.Format(time.RFC3339)).
			With("state", h.State).With("expire_time", h.ExpiresAt.Format(time.RFC3339Nano))
	}
	return HoldNotHeld.New("hold %s is already %s", h.BizNo, h.State).With("state", h.State)
}

// ReleaseCommand releases the remaining amount of a hold. Its answer is a *Hold.
type ReleaseCommand struct {
	commit.Caller
	holdTarget
}

// ReleaseOf makes the command for a hold by id or, if id is 0, by biz_no.
func ReleaseOf(c commit.Caller, holdID int64, holdBizNo string) *ReleaseCommand {
	return &ReleaseCommand{Caller: c, holdTarget: holdTarget{HoldID: holdID, HoldBizNo: holdBizNo}}
}

// Need names the hold.
func (c *ReleaseCommand) Need(tx *Tx) { c.need(tx, c.Tenant) }

// Apply releases the hold. Releasing a released hold is a repeat.
func (c *ReleaseCommand) Apply(tx *Tx) (any, error) {
	h, a, err := c.get(tx)
	if err != nil {
		return nil, err
	}
	if h.State == Released {
		return commit.Repeat{First: h.copy()}, nil
	}
	if err := h.mustBeHeld(); err != nil {
		return nil, err
	}
	tx.end(a, h, Released)
	return h.copy(), nil
}

// end releases the remaining amount of the hold. The state records whether a capture or a release ended it, so
// that the later one of the two is refused.
func (tx *Tx) end(a *Account, h *Hold, state string) {
	tx.touch(a)
	tx.touchHold(h)
	a.Held, _ = a.Held.Sub(h.Remaining())
	h.State, h.ClosedAt = state, tx.at.Now
}

// ExpireCommand makes the due holds of an account expire, by loading the account.
type ExpireCommand struct {
	Account AccountKey
	account *Account
}

// Need names the account.
func (c *ExpireCommand) Need(tx *Tx) {
	c.account = tx.account(c.Account.Tenant, c.Account.Code, c.Account.Asset)
}

// Apply returns ErrLater while due holds remain; loading did the work.
func (c *ExpireCommand) Apply(*Tx) (any, error) {
	if c.account.overdue {
		return nil, commit.ErrLater
	}
	return nil, nil
}
