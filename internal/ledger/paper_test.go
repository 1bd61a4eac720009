package ledger

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Paper is a Tx without a database. It runs commands like the engine: Need, Mark, Apply, and Undo on failure.
// Only rows passed to Give exist, and all commands belong to one batch.
type Paper struct {
	*Tx
	t   tester
	ids int64
}

// tester is a test or a property test.
type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

func NewPaper(t tester, now time.Time) *Paper {
	p := &Paper{Tx: NewTx(), t: t}
	p.Start(commit.Times{Now: now, Recorded: now}, func() int64 { p.ids++; return p.ids })
	return p
}

// Give adds an account as if it had been loaded.
func (p *Paper) Give(a Account) {
	p.ids++
	a.ID, a.exists = p.ids, true
	*p.account(a.Tenant, a.Code, a.Asset) = a
}

// Row is the account's current row, or nil.
func (p *Paper) Row(k AccountKey) *Account {
	if a := p.accounts[k]; a != nil && a.exists {
		return a
	}
	return nil
}

// Tick sets the time of the following commands and makes due holds expire, like the load.
func (p *Paper) Tick(now time.Time) {
	p.Start(commit.Times{Now: now, Recorded: now}, p.newID)
	for _, a := range p.dueAccounts() {
		a.NextExpiryAt, a.dirty = time.Time{}, true
		for _, h := range p.holds {
			if h.State == Held && h.AccountID == a.ID {
				p.expireIfDue(a, h)
			}
		}
	}
}

// Do runs a command twice. The first run is always undone and must leave no trace: the engine also undoes a
// command whose answer cannot be encoded.
func (p *Paper) Do(c commit.Command[*Tx]) (answer any, err error) {
	p.t.Helper()
	for range 3 {
		c.Need(p.Tx)
		p.resolveRefs()
		p.Mark()
		before := p.image()
		_, err = c.Apply(p.Tx)
		p.Undo()
		if after := p.image(); !reflect.DeepEqual(before, after) {
			p.t.Fatalf("%T ended with %v, was undone, and left a trace:\nbefore %+v\nafter  %+v", c, err, before, after)
		}
		if err == nil {
			p.Mark()
			return c.Apply(p.Tx)
		}
		if !errors.Is(err, commit.ErrMoreRows) {
			return nil, err
		}
	}
	return nil, err
}

// resolveRefs finds rows named by id, like the look-up.
func (p *Paper) resolveRefs() {
	for k, r := range p.holdRefs {
		r.h = p.holds[k]
	}
	for k, r := range p.transferRefs {
		for _, t := range p.made {
			if t.Tenant == k.tenant && t.ID == k.id {
				r.t = t.Transfer
			}
		}
	}
}

// image is a deep copy of everything that a command can change.
type image struct {
	Accounts  map[AccountKey]Account
	Assets    map[assetKey]Asset
	Transfers map[nameKey]*Transfer
	HoldNames map[nameKey]*Hold
	Holds     map[idKey]Hold
	Made      []int64
	NewHolds  []int64
	Details   []AccountKey
	NewAssets []assetKey
}

func (p *Paper) image() image {
	m := image{map[AccountKey]Account{}, map[assetKey]Asset{}, map[nameKey]*Transfer{}, map[nameKey]*Hold{},
		map[idKey]Hold{},
		nil, nil, nil, nil}
	for k, a := range p.accounts {
		m.Accounts[k] = copyAccount(*a)
	}
	for k, a := range p.assets {
		m.Assets[k] = *a
	}
	for k, n := range p.transferNames {
		m.Transfers[k] = nil
		if n.t != nil {
			t := *n.t
			t.Entries = append([]Entry(nil), t.Entries...)
			m.Transfers[k] = &t
		}
	}
	for k, n := range p.holdNames {
		m.HoldNames[k] = nil
		if n.h != nil {
			m.HoldNames[k] = n.h.copy()
		}
	}
	for k, h := range p.holds {
		m.Holds[k] = *h
	}
	for _, t := range p.made {
		m.Made = append(m.Made, t.ID)
	}
	for _, h := range p.newHolds {
		m.NewHolds = append(m.NewHolds, h.ID)
	}
	for _, a := range p.newDetails {
		m.Details = append(m.Details, a.AccountKey)
	}
	for _, a := range p.newAssets {
		m.NewAssets = append(m.NewAssets, assetKey{a.Tenant, a.Code})
	}
	return m
}

func copyAccount(a Account) Account {
	clone := func(n *amount.Int) *amount.Int {
		if n == nil {
			return nil
		}
		m := *n
		return &m
	}
	a.Min, a.Max, a.Metadata = clone(a.Min), clone(a.Max), maps.Clone(a.Metadata)
	return a
}

// The helpers below keep test tables short.

var (
	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	me   = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}
)

func dec(s string) amount.Decimal {
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

func decOf(s string) *amount.Decimal {
	d := dec(s)
	return &d
}

// units parses an amount in minor units of two decimals.
func units(s string) amount.Int {
	n, err := dec(s).Minor(2)
	if err != nil {
		panic(err)
	}
	return n
}

func unitsOf(s string) *amount.Int {
	n := units(s)
	return &n
}

// newTown is a paper with CNY accounts: world is unbounded, ann and bob have 100.00, cid has nothing.
func newTown(t tester) *Paper {
	p := NewPaper(t, noon)
	p.give("world", "-200", func(a *Account) { a.Min = nil })
	p.give("ann", "100")
	p.give("bob", "100")
	p.give("cid", "0")
	return p
}

func (p *Paper) give(code, balance string, change ...func(*Account)) {
	a := Account{AccountKey: AccountKey{1, code, "CNY"}, Scale: 2, Kind: KindLiability, State: Open,
		Balance: units(balance),
		Min:     new(amount.Int)}
	for _, c := range change {
		c(&a)
	}
	p.Give(a)
}

func state(s string) func(*Account)  { return func(a *Account) { a.State = s } }
func least(s string) func(*Account)  { return func(a *Account) { a.Min = unitsOf(s) } }
func most(s string) func(*Account)   { return func(a *Account) { a.Max = unitsOf(s) } }
func of(asset string) func(*Account) { return func(a *Account) { a.Asset = asset } }
func unbounded(a *Account)           { a.Min = nil }

// post is a posting of CNY; the amount may be "up to 5" or "all".
func post(from, to, n string) Posting {
	p := Posting{From: from, To: to, Asset: "CNY"}
	p.Amount, p.Form = form(n)
	return p
}

func form(n string) (amount.Decimal, Form) {
	if n == "all" {
		return amount.Decimal{}, AllAvailable
	}
	if most, ok := strings.CutPrefix(n, "up to "); ok {
		return dec(most), UpTo
	}
	return dec(n), Exact
}

func move(bizNo string, postings ...Posting) *TransferCommand {
	return &TransferCommand{Caller: me, TransferParams: TransferParams{BizNo: bizNo, Type: "transfer",
		Postings: postings}}
}

func hold(bizNo, from, to, n string) *HoldCommand {
	c := &HoldCommand{Caller: me, HoldParams: HoldParams{BizNo: bizNo, From: from, To: to, Asset: "CNY",
		Life: time.Hour}}
	c.Amount, c.Form = form(n)
	return c
}

// capture captures n of a hold; "" captures all that remains.
func capture(bizNo, of, n string, change ...func(*CaptureParams)) *CaptureCommand {
	c := &CaptureCommand{Caller: me, CaptureParams: CaptureOf(0, of)}
	c.BizNo, c.Type = bizNo, "capture"
	if n != "" {
		c.Amount = decOf(n)
	}
	for _, f := range change {
		f(&c.CaptureParams)
	}
	return c
}

func release(of string) *ReleaseCommand { return ReleaseOf(me, 0, of) }

func reverse(bizNo, of string) *ReverseCommand {
	return &ReverseCommand{Caller: me, ReverseParams: ReverseParams{TransferBizNo: of, BizNo: bizNo}}
}

func change(code string, c AccountChange) *UpdateAccountCommand {
	return &UpdateAccountCommand{Caller: me, Code: code, Asset: "CNY", Change: c}
}

// must runs a command that must succeed.
func (p *Paper) must(c commit.Command[*Tx]) any {
	p.t.Helper()
	answer, err := p.Do(c)
	if err != nil {
		p.t.Fatalf("%T: %v", c, err)
	}
	return answer
}

// refused runs a command that must fail with a reason, and returns the fault.
func (p *Paper) refused(r *fault.Reason, c commit.Command[*Tx]) *fault.Fault {
	p.t.Helper()
	answer, err := p.Do(c)
	if !fault.Is(err, r) {
		p.t.Fatalf("%T was answered with %.300v, %v; want %s", c, fmt.Sprintf("%+v", answer), err, r.Name)
	}
	return fault.Of(err)
}

// stands compares "code balance held version" of CNY accounts.
func (p *Paper) stands(want ...string) {
	p.t.Helper()
	for _, w := range want {
		code, _, _ := strings.Cut(w, " ")
		a := p.Row(AccountKey{1, code, "CNY"})
		if got := fmt.Sprint(a.Code, " ", a.Format(a.Balance), " ", a.Format(a.Held), " ", a.Version); got != w {
			p.t.Errorf("account %q, want %q", got, w)
		}
	}
}

// existed runs a repeated command and returns the first result.
func (p *Paper) existed(c commit.Command[*Tx]) any {
	p.t.Helper()
	r, ok := p.must(c).(commit.Repeat)
	if !ok {
		p.t.Fatalf("%T ran again", c)
	}
	return r.First
}

// FindAll replaces the load: every declared account exists and is unbounded.
func (tx *Tx) FindAll() {
	for _, a := range tx.accountList {
		a.exists, a.State, a.Scale = true, Open, 2
	}
}
