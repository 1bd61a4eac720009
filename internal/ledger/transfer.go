package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Form says how the amount of a posting is determined.
type Form uint8

const (
	Exact        Form = iota
	UpTo              // the lesser of the amount and the available balance
	AllAvailable      // all available; the amount is unset
)

// Posting moves an amount from one account to another.
type Posting struct {
	From, To, Asset string
	Amount          amount.Decimal // positive; unset with AllAvailable
	Form            Form
}

// Condition is a requirement on an account, checked before the first posting.
type Condition struct {
	Code, Asset    string
	Version        *int64
	BalanceAtLeast *amount.Decimal
}

// TransferParams describe a transfer: 1 to 1,000 postings, applied in their order, and at most 100 conditions. The API
// checks these numbers, the BizNo (1 to 128 printable ASCII characters) and that EffectiveAt is at most 24 h ahead.
type TransferParams struct {
	BizNo       string
	Type        string
	Postings    []Posting
	Metadata    map[string]string
	EffectiveAt time.Time // zero: now
	Conditions  []Condition
}

// TransferCommand makes a transfer. Its answer is a *Transfer.
type TransferCommand struct {
	commit.Caller
	TransferParams
	name     *transferName
	from, to []*Account
	on       []*Account // accounts of the conditions
}

// Need names the biz_no and the accounts.
func (c *TransferCommand) Need(tx *Tx) {
	n := len(c.Postings)
	c.name = tx.transferName(c.Tenant, c.BizNo)
	c.name.want(n + 1) // one more, so that a longer first transfer differs
	accounts := make([]*Account, 2*n+len(c.Conditions))
	c.from, c.to, c.on = accounts[:n], accounts[n:2*n], accounts[2*n:]
	for i := range c.Postings {
		p := &c.Postings[i]
		c.from[i] = tx.account(c.Tenant, p.From, p.Asset)
		c.to[i] = tx.account(c.Tenant, p.To, p.Asset)
	}
	for i, k := range c.Conditions {
		c.on[i] = tx.account(c.Tenant, k.Code, k.Asset)
	}
}

// Apply makes the transfer, or returns the existing one with the biz_no. Faults: BIZ_NO_EXISTS_DIFFERENT,
// ACCOUNT_NOT_FOUND, AMOUNT_TOO_PRECISE, AMOUNT_TOO_LARGE, STALE_VERSION, BALANCE_CONDITION_FAILED; by posting
// ACCOUNT_CLOSED, ACCOUNT_FROZEN, AVAILABLE_UNBOUNDED, INSUFFICIENT_FUNDS, BALANCE_LIMIT_EXCEEDED.
func (c *TransferCommand) Apply(tx *Tx) (any, error) {
	if first := c.name.t; first != nil {
		if d := c.differences(first); len(d) > 0 {
			return nil, tx.bizNoTaken("transfer", c.BizNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	for n, accounts := range [...][]*Account{c.from, c.to, c.on} {
		for i, a := range accounts {
			if !a.exists {
				return nil, notFound(a, fmt.Sprintf(accountFields[n], i))
			}
			if a.overdue {
				return nil, commit.ErrLater
			}
		}
	}
	amounts := make([]amount.Int, 0, len(c.Postings))
	for i := range c.Postings {
		n, err := minor(c.Postings[i].Amount, c.from[i])
		if err != nil {
			return nil, inField(err, fmt.Sprintf("postings[%d].amount", i))
		}
		amounts = append(amounts, n)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	t := tx.newTransfer(c.Caller, c.name, c.TransferParams, len(c.Postings))
	for i, p := range c.Postings {
		if err := tx.move(t, c.from[i], c.to[i], p.Form, amounts[i], amount.Int{}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// accountFields are the fields of a request that name TransferCommand.from, to and on.
var accountFields = [...]string{"postings[%d].from", "postings[%d].to", "conditions[%d].account"}

// minor converts an amount to minor units of the account's asset.
func minor(d amount.Decimal, a *Account) (amount.Int, error) {
	n, err := d.Minor(a.Scale)
	if err != nil {
		return n, amount.Refused(err, d, a.Asset, a.Scale)
	}
	return n, nil
}

// inField adds the field path to an error of minor.
func inField(err error, path string) error {
	f := fault.Of(err)
	return f.WithField(path, f.Message)
}

// check evaluates the conditions: first invalid amounts, then all versions, then all balances.
func (c *TransferCommand) check() error {
	if len(c.Conditions) == 0 {
		return nil
	}
	least := make([]amount.Int, len(c.Conditions))
	for i, k := range c.Conditions {
		if k.BalanceAtLeast == nil {
			continue
		}
		var err error
		if least[i], err = minor(*k.BalanceAtLeast, c.on[i]); err != nil {
			return inField(err, fmt.Sprintf("conditions[%d].balance_at_least", i))
		}
	}
	for i, k := range c.Conditions {
		if a := c.on[i]; k.Version != nil && *k.Version != a.Version {
			return StaleVersion.New("account %s has version %d, not %d", a.Code, a.Version, *k.Version).
				With("account", a.Code).With("asset", a.Asset).With("version", a.Version)
		}
	}
	for i, k := range c.Conditions {
		if a := c.on[i]; k.BalanceAtLeast != nil && a.Balance.Cmp(least[i]) < 0 {
			return BalanceConditionFailed.New("account %s has less than %s %s", a.Code, k.BalanceAtLeast, a.Asset).
				With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance))
		}
	}
	return nil
}

// newTransfer reserves the name and makes the transfer, without entries.
func (tx *Tx) newTransfer(c commit.Caller, name *transferName, p TransferParams, postings int) *Transfer {
	t := &Transfer{Tenant: c.Tenant, ID: tx.newID(), BizNo: p.BizNo, Type: p.Type, RecordedAt: tx.at.Recorded,
		EffectiveAt: p.EffectiveAt, Forms: p.forms(), Metadata: p.Metadata, Principal: c.Principal,
		RequestID: c.RequestID,
		Entries:   make([]Entry, 0, 2*postings), complete: true}
	name.t = t
	tx.made = append(tx.made, madeTransfer{Transfer: t, name: name})
	return t
}

// forms records the requested amounts if any was not exact; exact amounts can be read from the entries.
func (p *TransferParams) forms() string {
	if !slices.ContainsFunc(p.Postings, func(p Posting) bool { return p.Form != Exact }) {
		return ""
	}
	forms := make([]string, len(p.Postings))
	for i, p := range p.Postings {
		forms[i] = formText(p.Form, p.Amount)
	}
	return strings.Join(forms, ";")
}

const exactForm = "exact"

func formText(f Form, d amount.Decimal) string {
	switch f {
	case UpTo:
		return "up_to:" + d.String()
	case AllAvailable:
		return "all_available"
	}
	return exactForm
}

// formDifference returns which part of two formText texts differs: the form, the amount, or none.
func formDifference(x, y string) string {
	if x == y {
		return ""
	}
	form, _, _ := strings.Cut(x, ":")
	if other, _, _ := strings.Cut(y, ":"); form != other {
		return "form"
	}
	return "amount"
}

// differences returns the fields in which a request differs from the existing transfer with its biz_no.
func (c *TransferCommand) differences(t *Transfer) (fields []string) {
	if t.HoldID != 0 || t.ReversesID != 0 {
		return []string{fault.OtherCall} // a capture or a reversal
	}
	if c.Type != t.Type {
		fields = append(fields, "type")
	}
	if 2*len(c.Postings) != len(t.Entries) {
		fields = append(fields, "postings")
	} else {
		forms, form := strings.Split(t.Forms, ";"), exactForm
		for i, p := range c.Postings {
			if t.Forms != "" {
				form = forms[i]
			}
			fields = append(fields, p.differences(i, form, &t.Entries[2*i], &t.Entries[2*i+1])...)
		}
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, c.EffectiveAt, t.EffectiveAt)...)
}

func (p *Posting) differences(i int, form string, debit, credit *Entry) (fields []string) {
	add := func(field string) { fields = append(fields, fmt.Sprintf("postings[%d].%s", i, field)) }
	if p.From != debit.Account {
		add("from")
	}
	if p.To != credit.Account {
		add("to")
	}
	if p.Asset != credit.Asset {
		add("asset")
	} else if f := formDifference(formText(p.Form, p.Amount), form); f != "" {
		add(f)
	} else if p.Form == Exact && amount.NewDecimal(credit.Amount, credit.Scale) != p.Amount {
		add("amount")
	}
	return fields
}

// sharedDifferences compares the fields common to all requests. An omitted time is not a difference.
func sharedDifferences(m, first map[string]string, at, firstAt time.Time) (fields []string) {
	if !maps.Equal(m, first) {
		fields = append(fields, "metadata")
	}
	if !at.IsZero() && !at.Equal(firstAt) {
		fields = append(fields, "effective_time")
	}
	return fields
}

// move makes one posting, which is two entries. unheld is the part paid from a hold; a hold's amount was not
// available before, so the available balance is not checked for it.
func (tx *Tx) move(t *Transfer, from, to *Account, form Form, n, unheld amount.Int) error {
	if from.State == Closed {
		return from.closed()
	}
	if to.State == Closed {
		return to.closed()
	}
	if from.State == Frozen {
		return from.frozen()
	}
	n, err := from.resolve(form, n)
	if err != nil {
		return err
	}
	if unheld.IsZero() { // the amount of a hold is guaranteed
		if err := from.mayPay(n); err != nil {
			return err
		}
	}
	if err := to.mayReceive(n); err != nil {
		return err
	}
	if _, ok := from.Balance.Sub(n); !ok {
		return from.tooLarge()
	}
	if _, ok := to.Balance.Add(n); !ok {
		return to.tooLarge()
	}
	tx.touch(from)
	tx.touch(to)
	from.Held, _ = from.Held.Sub(unheld)
	posting := int16(len(t.Entries) / 2)
	tx.addEntry(t, from, posting, n.Neg())
	tx.addEntry(t, to, posting, n)
	return nil
}

func (tx *Tx) addEntry(t *Transfer, a *Account, posting int16, n amount.Int) {
	before := a.Balance
	a.Balance, _ = before.Add(n) // move checked the limit of 38 digits
	a.Version++
	a.LastEntryAt = tx.at.Recorded
	t.Entries = append(t.Entries, Entry{AccountID: a.ID, Account: a.Code, Asset: a.Asset, Scale: a.Scale,
		Version:    a.Version,
		TransferID: t.ID, Posting: posting, Amount: n, Before: before, After: a.Balance, RecordedAt: tx.at.Recorded,
		EffectiveAt: t.EffectiveAt})
}

func (a *Account) closed() error {
	return AccountClosed.New("account %s is closed", a.Code).With("account", a.Code).With("asset", a.Asset)
}

func (a *Account) frozen() error {
	return AccountFrozen.New("account %s is frozen", a.Code).With("account", a.Code).With("asset", a.Asset)
}

func (a *Account) tooLarge() error {
	return amount.TooLarge.New("the balance of %s would have more than 38 digits", a.Code).With("account", a.Code)
}

func (a *Account) mayPay(n amount.Int) error {
	if available, bounded := a.Available(); bounded && available.Cmp(n) < 0 {
		f := a.insufficient()
		f.Message += ", less than " + a.Format(n)
		return f.With("needed", a.Format(n))
	}
	return nil
}

func (a *Account) insufficient() *fault.Fault {
	available, _ := a.Available()
	return InsufficientFunds.New("account %s has %s %s available", a.Code, a.Format(available), a.Asset).
		With("account", a.Code).With("asset", a.Asset).With("available", a.Format(available)).
		With("balance", a.Format(a.Balance)).With("held", a.Format(a.Held))
}

func (a *Account) mayReceive(n amount.Int) error {
	if a.Max == nil {
		return nil
	}
	if after, ok := a.Balance.Add(n); !ok || after.Cmp(*a.Max) > 0 {
		return BalanceLimitExceeded.New("account %s may have at most %s %s", a.Code, a.Format(*a.Max), a.Asset).
			With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance)).With("max_balance",
			a.Format(*a.Max))
	}
	return nil
}

// resolve computes the amount that a posting moves.
func (a *Account) resolve(form Form, n amount.Int) (amount.Int, error) {
	if form == Exact {
		return n, nil
	}
	available, bounded := a.Available()
	if !bounded {
		switch {
		case form == UpTo:
			return n, nil
		case a.Min == nil:
			return n, AvailableUnbounded.New("account %s has no min_balance, so its available balance is unlimited: "+
				"name an amount", a.Code).With("account", a.Code).With("asset", a.Asset)
		}
		return n, amount.TooLarge.New("the available balance of %s has more than 38 digits", a.Code).With("account",
			a.Code)
	}
	if available.Sign() <= 0 {
		return n, a.insufficient()
	}
	if form == AllAvailable {
		return available, nil
	}
	return amount.Lesser(n, available), nil
}
