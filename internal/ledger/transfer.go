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
func (c *TransferCommand) Need(tx *Tx) {
	n := len(c.Postings)
	c.name = tx.transferName(c.Tenant, c.BizNo)
	c.name.want(n + 1)
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

// Apply makes the transfer, or answers the one that has the biz_no.
func (c *TransferCommand) Apply(tx *Tx) (any, error) {
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
			if a.lapsing {
				return nil, commit.ErrLater
			}
		}
	}
	var few [4]amount.Int
	amounts := few[:0]
	for i := range c.Postings {
		n, err := minor(c.Postings[i].Amount, c.from[i])
		if err != nil {
			return nil, err
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

// check holds the conditions against the accounts: first what is wrong with them, then all versions,
// then all balances.
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
			return err
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
			return BalanceConditionFailed.New("account %s has less than %s", a.Code, k.BalanceAtLeast).
				With("account", a.Code).With("asset", a.Asset).With("balance", a.Format(a.Balance))
		}
	}
	return nil
}

// newTransfer takes the name and makes the transfer, still without entries.
func (tx *Tx) newTransfer(c Caller, name *transferName, p TransferParams, postings int) *Transfer {
	t := &Transfer{Tenant: c.Tenant, ID: tx.newID(), BizNo: p.BizNo, Type: p.Type, RecordedAt: tx.at.Recorded,
		EffectiveAt: p.EffectiveAt, Forms: p.forms(), Metadata: p.Metadata, Principal: c.Principal,
		RequestID: c.RequestID,
		Entries:   make([]Entry, 0, 2*postings), complete: true}
	name.t = t
	tx.made = append(tx.made, madeTransfer{Transfer: t, name: name})
	return t
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

// formDifference names what differs between two texts of formText: the form, the amount, or nothing.
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
	} else {
		forms, form := strings.Split(t.Forms, ";"), exactForm
		for i, p := range c.Postings {
			if t.Forms != "" {
				form = forms[i]
			}
			fields = append(fields, p.differences(form, &t.Entries[2*i], &t.Entries[2*i+1])...)
		}
	}
	return append(fields, sharedDifferences(c.Metadata, t.Metadata, c.EffectiveAt, t.EffectiveAt)...)
}

func (p *Posting) differences(form string, debit, credit *Entry) (fields []string) {
	if p.From != debit.Account {
		fields = append(fields, "postings.from")
	}
	if p.To != credit.Account {
		fields = append(fields, "postings.to")
	}
	if p.Asset != credit.Asset {
		fields = append(fields, "postings.asset")
	} else if f := formDifference(formText(p.Form, p.Amount), form); f != "" {
		fields = append(fields, "postings."+f)
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
