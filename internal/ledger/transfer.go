package ledger

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Form says how an amount is meant.
type Form uint8

// The forms of an amount.
const (
	Exact        Form = iota
	UpTo              // the lesser of the amount and what is available
	AllAvailable      // no amount is given
)

// Posting asks to move an amount from an account to another.
type Posting struct {
	From, To, Asset string
	Amount          amount.Decimal // above zero; unused with AllAvailable
	Form            Form
}

// Condition is what an account must fulfil before the first posting.
type Condition struct {
	Code, Asset    string
	Version        *int64
	BalanceAtLeast *amount.Decimal
}

// TransferParams is a transfer as asked for.
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
	Caller
	TransferParams
	name     *transferName
	from, to []*Account
	on       []*Account // of the conditions
}

// Need names the biz_no and the accounts.
func (c *TransferCommand) Need(b *Book) {
	c.name = b.transferName(c.Tenant, c.BizNo)
	c.from, c.to, c.on = c.from[:0], c.to[:0], c.on[:0]
	for i := range c.Postings {
		p := &c.Postings[i]
		c.from = append(c.from, b.account(c.Tenant, p.From, p.Asset))
		c.to = append(c.to, b.account(c.Tenant, p.To, p.Asset))
	}
	for _, k := range c.Conditions {
		c.on = append(c.on, b.account(c.Tenant, k.Code, k.Asset))
	}
}

// Apply makes the transfer, or answers the one that has the biz_no.
func (c *TransferCommand) Apply(b *Book) (any, error) {
	if first := c.name.t; first != nil {
		if d := c.differences(first); len(d) > 0 {
			return nil, bizNoTaken("transfer", c.BizNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	for _, accounts := range [...][]*Account{c.from, c.to, c.on} {
		for _, a := range accounts {
			if !a.found {
				return nil, notFound(a)
			}
		}
	}
	amounts := make([]amount.Int, len(c.Postings))
	for i, p := range c.Postings {
		var err error
		if amounts[i], err = minor(p.Amount, c.from[i]); err != nil {
			return nil, err
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	t := b.newTransfer(c.Caller, c.name, c.TransferParams, len(c.Postings))
	for i, p := range c.Postings {
		n, err := c.from[i].resolve(p.Form, amounts[i])
		if err != nil {
			return nil, err
		}
		if err := b.move(t, c.from[i], c.to[i], n, amount.Int{}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// minor is an amount in the minor units of an account's asset.
func minor(d amount.Decimal, a *Account) (amount.Int, error) {
	n, err := d.Minor(a.Scale)
	switch {
	case err == nil:
		return n, nil
	case isTooPrecise(err):
		return n, AmountTooPrecise.New("%s has more decimals than %s, which has %d", d, a.Asset, a.Scale).
			With("asset", a.Asset).With("scale", a.Scale)
	}
	return n, AmountTooLarge.New("%s %s has more than 38 digits", d, a.Asset).With("asset", a.Asset)
}

// check holds the conditions against the accounts.
func (c *TransferCommand) check() error {
	for i, k := range c.Conditions {
		a := c.on[i]
		if k.Version != nil && *k.Version != a.Version {
			return StaleVersion.New("account %s has version %d, not %d", a.Code, a.Version, *k.Version).
				With("account", a.Code).With("asset", a.Asset).With("version", a.Version)
		}
		if k.BalanceAtLeast == nil {
			continue
		}
		least, err := minor(*k.BalanceAtLeast, a)
		if err != nil {
			return err
		}
		if a.Balance.Cmp(least) < 0 {
			return BalanceConditionFailed.New("account %s has less than %s", a.Code, k.BalanceAtLeast).
				With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance))
		}
	}
	return nil
}

// resolve is the amount that a posting moves.
func (a *Account) resolve(form Form, n amount.Int) (amount.Int, error) {
	if form == Exact {
		return n, nil
	}
	available, bounded := a.Available()
	if !bounded {
		if form == AllAvailable {
			return n, AvailableUnbounded.New("account %s has no least balance", a.Code).With("account", a.Code).With("asset", a.Asset)
		}
		return n, nil
	}
	if available.Sign() <= 0 {
		return n, a.insufficient()
	}
	if form == AllAvailable {
		return available, nil
	}
	return amount.Lesser(n, available), nil
}

// newTransfer takes the name and makes the transfer, still without entries.
func (b *Book) newTransfer(c Caller, name *transferName, p TransferParams, postings int) *Transfer {
	t := &Transfer{Tenant: c.Tenant, ID: b.newID(), BizNo: p.BizNo, Type: p.Type, RecordedAt: b.now,
		EffectiveAt: p.EffectiveAt, Forms: p.forms(), Metadata: p.Metadata, Principal: c.Principal, RequestID: c.RequestID,
		Entries: make([]Entry, 0, 2*postings), complete: true}
	name.t = t
	b.made = append(b.made, madeTransfer{Transfer: t, name: name})
	return t
}

// move makes one posting: two entries. unheld is how much of a hold it takes, so that what goes out
// was not available before.
func (b *Book) move(t *Transfer, from, to *Account, n, unheld amount.Int) error {
	if err := from.mayPay(n, unheld); err != nil {
		return err
	}
	if err := to.mayReceive(n); err != nil {
		return err
	}
	b.touch(from)
	b.touch(to)
	from.Held, _ = from.Held.Sub(unheld)
	posting := int16(len(t.Entries) / 2)
	b.enter(t, from, posting, n.Neg())
	b.enter(t, to, posting, n)
	return nil
}

func (b *Book) enter(t *Transfer, a *Account, posting int16, n amount.Int) {
	before := a.Balance
	a.Balance, _ = before.Add(n) // within 38 digits: mayPay and mayReceive saw to it
	a.Version++
	a.LastEntryAt = b.now
	t.Entries = append(t.Entries, Entry{AccountID: a.ID, Account: a.Code, Asset: a.Asset, Scale: a.Scale, Version: a.Version,
		TransferID: t.ID, Posting: posting, Amount: n, Before: before, After: a.Balance, RecordedAt: b.now,
		EffectiveAt: t.EffectiveAt})
}

func (a *Account) mayPay(n, unheld amount.Int) error {
	switch a.State {
	case Closed:
		return AccountClosed.New("account %s is closed", a.Code).With("account", a.Code).With("asset", a.Asset)
	case Frozen:
		return AccountFrozen.New("account %s is frozen", a.Code).With("account", a.Code).With("asset", a.Asset)
	}
	if _, ok := a.Balance.Sub(n); !ok {
		return AmountTooLarge.New("the balance of %s would have more than 38 digits", a.Code).With("account", a.Code)
	}
	if !unheld.IsZero() {
		return nil // what a hold keeps is there
	}
	if available, bounded := a.Available(); bounded && available.Cmp(n) < 0 {
		return a.insufficient()
	}
	return nil
}

func (a *Account) insufficient() error {
	available, _ := a.Available()
	return InsufficientFunds.New("account %s has %s %s available", a.Code, a.Format(available), a.Asset).
		With("account", a.Code).With("asset", a.Asset).With("available", a.Format(available)).
		With("balance", a.Format(a.Balance)).With("held", a.Format(a.Held))
}

func (a *Account) mayReceive(n amount.Int) error {
	if a.State == Closed {
		return AccountClosed.New("account %s is closed", a.Code).With("account", a.Code).With("asset", a.Asset)
	}
	after, ok := a.Balance.Add(n)
	if !ok {
		return AmountTooLarge.New("the balance of %s would have more than 38 digits", a.Code).With("account", a.Code)
	}
	if a.Max != nil && after.Cmp(*a.Max) > 0 {
		return BalanceLimitExceeded.New("account %s may have at most %s %s", a.Code, a.Format(*a.Max), a.Asset).
			With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance)).With("max_balance", a.Format(*a.Max))
	}
	return nil
}

// forms writes down the amounts as asked for, when one of them was not exact: else the entries tell.
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

func formText(f Form, d amount.Decimal) string {
	switch f {
	case UpTo:
		return "up_to:" + d.String()
	case AllAvailable:
		return "all_available"
	}
	return "exact"
}

// differences names the fields in which a request differs from the transfer that has its biz_no.
func (c *TransferCommand) differences(t *Transfer) (fields []string) {
	if t.HoldID != 0 || t.ReversesID != 0 {
		return []string{"kind"} // a capture or a reversal
	}
	if c.Type != t.Type {
		fields = append(fields, "type")
	}
	if 2*len(c.Postings) != len(t.Entries) {
		fields = append(fields, "postings")
	} else if f := c.forms(); f != t.Forms {
		fields = append(fields, "postings.form")
	} else {
		for i, p := range c.Postings {
			fields = append(fields, p.differences(&t.Entries[2*i], &t.Entries[2*i+1])...)
		}
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, c.EffectiveAt, t.EffectiveAt)...)
}

func (p *Posting) differences(debit, credit *Entry) (fields []string) {
	if p.From != debit.Account {
		fields = append(fields, "postings.from")
	}
	if p.To != credit.Account {
		fields = append(fields, "postings.to")
	}
	if p.Asset != credit.Asset {
		fields = append(fields, "postings.asset")
	} else if p.Form == Exact && amount.NewDecimal(credit.Amount, credit.Scale) != p.Amount {
		fields = append(fields, "postings.amount")
	}
	return fields
}

// sharedDifferences compares what all journal things have. A time that is not said is no difference.
func sharedDifferences(m, first map[string]string, at, firstAt time.Time) (fields []string) {
	if !maps.Equal(m, first) {
		fields = append(fields, "metadata")
	}
	if !at.IsZero() && !at.Equal(firstAt) {
		fields = append(fields, "effective_time")
	}
	return fields
}
