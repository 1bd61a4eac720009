package ledger

import (
	"fmt"
	"maps"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// NewAsset is an asset to create.
type NewAsset struct {
	Code  string
	Scale uint8
}

// CreateAssetsCommand creates assets. Its answer is a []Asset.
type CreateAssetsCommand struct {
	commit.Caller
	Assets  []NewAsset
	handles []*Asset
}

// Need names the assets.
func (c *CreateAssetsCommand) Need(tx *Tx) {
	c.handles = c.handles[:0]
	for _, a := range c.Assets {
		c.handles = append(c.handles, tx.asset(c.Tenant, a.Code))
	}
}

// Apply creates the missing assets.
func (c *CreateAssetsCommand) Apply(tx *Tx) (any, error) {
	made := make([]Asset, 0, len(c.Assets))
	for i, want := range c.Assets {
		a := c.handles[i]
		if a.exists && a.Scale != want.Scale {
			return nil, AssetExistsDifferent.New("asset %s has scale %d, not %d", a.Code, a.Scale, want.Scale).
				With("asset", a.Code).With("scale", a.Scale).With("differs", "scale").
				WithField(fmt.Sprintf("assets[%d].scale", i), "differs from that of the existing asset")
		}
		if !a.exists {
			a.exists, a.fresh, a.Scale, a.CreatedAt = true, true, want.Scale, tx.at.Now
			tx.newAssets = append(tx.newAssets, a)
		}
		made = append(made, *a)
	}
	return made, nil
}

// NewAccount is an account to create.
type NewAccount struct {
	Code, Asset string
	Kind        string
	Min         *amount.Decimal // nil: unbounded
	Max         *amount.Decimal // nil: no limit
	Metadata    map[string]string
}

// CreateAccountsCommand creates accounts. Its answer is a CreatedAccounts.
type CreateAccountsCommand struct {
	commit.Caller
	Accounts []NewAccount
	handles  []*Account
	assets   []*Asset
	changes  []audit.Change
}

// CreatedAccounts holds the accounts and how many of them existed before.
type CreatedAccounts struct {
	Accounts []Account
	Existed  int
}

// Need names the accounts and their assets.
func (c *CreateAccountsCommand) Need(tx *Tx) {
	c.handles, c.assets = c.handles[:0], c.assets[:0]
	for _, a := range c.Accounts {
		c.handles = append(c.handles, tx.accountWithDetails(c.Tenant, a.Code, a.Asset))
		c.assets = append(c.assets, tx.asset(c.Tenant, a.Asset))
	}
}

// Apply creates the missing accounts.
func (c *CreateAccountsCommand) Apply(tx *Tx) (any, error) {
	made := CreatedAccounts{Accounts: make([]Account, 0, len(c.Accounts))}
	c.changes = nil
	for i, want := range c.Accounts {
		a := c.handles[i]
		existed := a.exists
		if err := c.create(tx, a, c.assets[i], want); err != nil {
			return nil, fault.In(fmt.Sprintf("accounts[%d].", i), err)
		}
		if existed {
			made.Existed++
		}
		made.Accounts = append(made.Accounts, *a)
	}
	return made, nil
}

// create creates an account, or checks that the existing one has the same content.
func (c *CreateAccountsCommand) create(tx *Tx, a *Account, asset *Asset, want NewAccount) error {
	if !asset.exists {
		return assetNotFound(asset.Code)
	}
	lo, hi, err := limits(want.Min, want.Max, &Account{AccountKey: a.AccountKey, Scale: asset.Scale})
	if err != nil {
		return err
	}
	if a.exists {
		return a.sameAs(want, lo, hi)
	}
	outside := ""
	switch {
	case lo != nil && hi != nil && lo.Cmp(*hi) > 0:
		return fault.InvalidField("max_balance", "must be at least min_balance, by default 0").With("account", a.Code)
	case lo != nil && lo.Sign() > 0:
		outside = "min_balance"
	case hi != nil && hi.Sign() < 0:
		outside = "max_balance"
	}
	if outside != "" {
		return AccountLimitViolated.New("account %s would start outside its limits: its first balance is 0", a.Code).
			With("account", a.Code).WithField(outside, "must allow a balance of 0")
	}
	tx.touch(a)
	a.exists, a.fresh, a.ID, a.Scale, a.Kind, a.State = true, true, tx.newID(), asset.Scale, want.Kind, Open
	a.Min, a.Max, a.Metadata, a.CreatedAt, a.madeBy = lo, hi, want.Metadata, tx.at.Now, c.RequestID
	if lo == nil || lo.Sign() < 0 {
		c.changes = append(c.changes, a.change(nil))
	}
	return nil
}

// Changes returns the new accounts that are unbounded or have an overdraft. The audit log omits other new accounts.
func (c *CreateAccountsCommand) Changes() (commit.Caller, []audit.Change) { return c.Caller, c.changes }

// settings are the settings of an account in the audit log.
type settings struct {
	Min      *string           `json:"min_balance"` // null: unbounded
	Max      *string           `json:"max_balance"` // null: no limit
	State    string            `json:"state"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (a *Account) settings() settings {
	decimal := func(n *amount.Int) *string {
		if n == nil {
			return nil
		}
		s := a.Format(*n)
		return &s
	}
	return settings{Min: decimal(a.Min), Max: decimal(a.Max), State: a.State, Metadata: a.Metadata}
}

// change returns the audit entry of a change from the settings before to the present ones.
func (a *Account) change(before any) audit.Change {
	return audit.Change{Kind: audit.Account, Name: a.Code + " " + a.Asset, Before: before, After: a.settings()}
}

// limits converts limits to minor units of the account's asset.
func limits(lo, hi *amount.Decimal, a *Account) (low, high *amount.Int, err error) {
	if lo != nil {
		n, err := minor(*lo, a)
		if err != nil {
			return nil, nil, inField(err, "min_balance")
		}
		low = &n
	}
	if hi != nil {
		n, err := minor(*hi, a)
		if err != nil {
			return nil, nil, inField(err, "max_balance")
		}
		high = &n
	}
	return low, high, nil
}

// sameAs refuses a request whose content differs from the existing account. Metadata is not compared, because
// it may have changed since.
func (a *Account) sameAs(want NewAccount, lo, hi *amount.Int) error {
	var fields []string
	if want.Kind != a.Kind {
		fields = append(fields, "kind")
	}
	if !sameLimit(lo, a.Min) {
		fields = append(fields, "min_balance")
	}
	if !sameLimit(hi, a.Max) {
		fields = append(fields, "max_balance")
	}
	if len(fields) == 0 {
		return nil
	}
	return AccountExistsDifferent.New("account %s in asset %s exists already", a.Code, a.Asset).
		Differing(fields, "code and asset").With("account", a.Code).With("asset", a.Asset)
}

func sameLimit(a, b *amount.Int) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// AccountChange is the change that UpdateAccountCommand makes.
type AccountChange struct {
	Min       *amount.Decimal
	Unbounded bool
	Max       *amount.Decimal
	ClearMax  bool
	Metadata  map[string]string // an empty value removes the name
	State     string            // "": unchanged
}

// UpdateAccountCommand changes an account. Its answer is an *Account.
type UpdateAccountCommand struct {
	commit.Caller
	Code, Asset string
	Change      AccountChange
	account     *Account
	change      audit.Change
}

// Need names the account.
func (c *UpdateAccountCommand) Need(tx *Tx) {
	c.account = tx.accountWithDetails(c.Tenant, c.Code, c.Asset)
}

// Changes returns the change of the account.
func (c *UpdateAccountCommand) Changes() (commit.Caller, []audit.Change) {
	return c.Caller, []audit.Change{c.change}
}

func (c *UpdateAccountCommand) Apply(tx *Tx) (any, error) {
	a := c.account
	if !a.exists {
		return nil, notFound(a, "account")
	}
	if a.overdue {
		return nil, commit.ErrLater
	}
	if a.State == Closed && c.Change.State != Closed {
		return nil, AccountClosed.New("account %s is closed", a.Code).With("account", a.Code).With("asset", a.Asset)
	}
	lo, hi, err := limits(c.Change.Min, c.Change.Max, a)
	if err != nil {
		return nil, err
	}
	before := a.settings()
	tx.touch(a)
	a.changed = true
	if lo != nil || c.Change.Unbounded {
		a.Min = lo
	}
	if hi != nil || c.Change.ClearMax {
		a.Max = hi
	}
	if !a.withinLimits() {
		return nil, AccountLimitViolated.New(
			"account %s has balance %s, of which %s is held: not within the new limits", a.Code,
			a.Format(a.Balance), a.Format(a.Held)).
			With("account", a.Code).With("balance", a.Format(a.Balance)).With("held", a.Format(a.Held))
	}
	if len(c.Change.Metadata) > 0 {
		m := maps.Clone(a.Metadata)
		if m == nil {
			m = map[string]string{}
		}
		maps.Copy(m, c.Change.Metadata)
		maps.DeleteFunc(m, func(_, v string) bool { return v == "" })
		if err := checkMetadata(m); err != nil {
			return nil, err
		}
		a.Metadata = m
		tx.newDetails = append(tx.newDetails, a)
	}
	switch c.Change.State {
	case Closed:
		if !a.Balance.IsZero() || !a.Held.IsZero() {
			return nil, AccountNotEmpty.New("account %s has balance %s, of which %s is held: "+
				"only an empty account can be closed", a.Code, a.Format(a.Balance), a.Format(a.Held)).
				With("account", a.Code).With("balance", a.Format(a.Balance)).With("held", a.Format(a.Held))
		}
		a.State = Closed
	case Open, Frozen:
		a.State = c.Change.State
	}
	c.change = a.change(before)
	now := *a
	return &now, nil
}

// withinLimits reports whether the account's balance and held amount respect its limits. It compares without
// Available, because sums of amounts near 38 digits may exceed 38 digits.
func (a *Account) withinLimits() bool {
	if a.Min != nil {
		if least, ok := a.Held.Add(*a.Min); !ok || a.Balance.Cmp(least) < 0 {
			return false
		}
	}
	return a.Max == nil || a.Balance.Cmp(*a.Max) <= 0
}

// Limits of an account's stored metadata. The API has the same limits for the metadata of one request.
const maxMetadataPairs, maxMetadataBytes = 64, 16 << 10

func checkMetadata(m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if len(m) <= maxMetadataPairs && size <= maxMetadataBytes {
		return nil
	}
	const problem = "would have more than 64 names or 16 KiB, together with the account's present metadata"
	return fault.FieldInvalid.New("metadata: "+problem).WithField("metadata", problem)
}
