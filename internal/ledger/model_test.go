package ledger_test

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
)

// model is the reference implementation of the ledger, written from the promises in the proto files with big
// integers and plain maps. It shares no code with the ledger. Its answers are lines of text.
type model struct {
	now       time.Time
	accounts  map[string]*modelAccount // by code/asset
	transfers map[string]*modelTransfer
	holds     map[string]*modelHold
	entries   map[string][]string // by account, oldest first
}

type modelAccount struct {
	key, kind, state string
	balance, held    *big.Int
	least, most      *big.Int // nil: no limit
	version          int
}

type modelTransfer struct {
	op       op
	kind     string // transfer, capture, reversal
	moves    []modelMove
	line     string
	reversed bool
}

type modelMove struct {
	from, to string // code/asset
	n        *big.Int
}

type modelHold struct {
	op               op
	amount, captured *big.Int
	state            string
	expires          time.Time
}

// op is one command. The field what determines which other fields are used.
type op struct {
	what       string // transfer, all, hold, capture, release, reverse, update, create
	biz        string
	target     string // the hold or transfer that it refers to
	posts      []opPost
	all        []op
	kind       string // type of a transfer, kind of an account
	metadata   string
	effective  time.Time
	conditions []opCondition
	life       time.Duration
	rest       bool // capture: release the rest
	account    string
	least      string // "": unchanged, "none": remove
	most       string
	state      string
}

type opPost struct{ from, to, asset, amount, form string } // form: exact, up to, all

type opCondition struct {
	account string
	version int // -1: any
	least   string
}

func newModel(now time.Time) *model {
	return &model{now: now, accounts: map[string]*modelAccount{}, transfers: map[string]*modelTransfer{},
		holds: map[string]*modelHold{}, entries: map[string][]string{}}
}

var scales = map[string]int{"CNY": 2, "ETH": 18}

// limit is the smallest number of 39 digits.
var limit = new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil)

func fits(n *big.Int) bool { return n.CmpAbs(limit) < 0 }

// minor converts a decimal to minor units of an asset, or returns the reason for refusing it.
func minor(text, asset string) (*big.Int, string) {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic("not a decimal: " + text)
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scales[asset])), nil)))
	switch {
	case !r.IsInt():
		return nil, "AMOUNT_TOO_PRECISE"
	case !fits(r.Num()):
		return nil, "AMOUNT_TOO_LARGE"
	}
	return r.Num(), ""
}

// assetOf returns the asset of code/asset.
func assetOf(account string) string { return account[strings.IndexByte(account, '/')+1:] }

func plus(a, b *big.Int) *big.Int  { return new(big.Int).Add(a, b) }
func minus(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }

// expire ends the holds past their expiry.
func (m *model) expire() {
	for _, h := range m.holds {
		if h.state == "held" && !h.expires.After(m.now) {
			m.end(h, "expired")
		}
	}
}

func (m *model) end(h *modelHold, state string) {
	a := m.accounts[h.account()]
	a.held = minus(a.held, minus(h.amount, h.captured))
	h.state = state
}

func (h *modelHold) account() string { return h.op.posts[0].from + "/" + h.op.posts[0].asset }

func (h *modelHold) line() string {
	p := h.op.posts[0]
	return fmt.Sprintf("hold %s of %s for %q: %s of %s captured, %s", h.op.biz, h.account(), p.to, h.captured, h.amount,
		h.state)
}

// run executes a command and returns the expected answer. A refusal changes nothing.
func (m *model) run(o op) string {
	before := m.clone()
	line := m.apply(o)
	if !strings.Contains(line, ": ") {
		*m = *before
	}
	return line
}

func (m *model) clone() *model {
	c := newModel(m.now)
	for k, a := range m.accounts {
		b := *a
		c.accounts[k] = &b
	}
	for k, t := range m.transfers {
		u := *t
		c.transfers[k] = &u
	}
	for k, h := range m.holds {
		i := *h
		c.holds[k] = &i
	}
	for k, e := range m.entries {
		c.entries[k] = slices.Clone(e)
	}
	return c
}

// apply returns "…: …" on success, "existed …: …" for a repeat, and otherwise the reason.
func (m *model) apply(o op) string {
	switch o.what {
	case "transfer":
		return m.transfer(o)
	case "all":
		lines := []string{"all: "}
		for _, t := range o.all {
			line := m.transfer(t)
			if !strings.Contains(line, ": ") {
				return line
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, " | ")
	case "hold":
		return m.hold(o)
	case "capture":
		return m.capture(o)
	case "release":
		return m.release(o)
	case "reverse":
		return m.reverse(o)
	case "update":
		return m.update(o)
	}
	return m.create(o)
}

func (m *model) transfer(o op) string {
	if t := m.transfers[o.biz]; t != nil {
		return t.repeat(o, t.transferDiffers(o))
	}
	var accounts []string
	for _, p := range o.posts {
		accounts = append(accounts, p.from+"/"+p.asset, p.to+"/"+p.asset)
	}
	for _, c := range o.conditions {
		accounts = append(accounts, c.account)
	}
	for _, a := range accounts {
		if m.accounts[a] == nil {
			return "ACCOUNT_NOT_FOUND"
		}
	}
	amounts := make([]*big.Int, len(o.posts))
	for i, p := range o.posts {
		if p.form == "all" {
			continue
		}
		var reason string
		if amounts[i], reason = minor(p.amount, p.asset); reason != "" {
			return reason
		}
	}
	if reason := m.check(o.conditions); reason != "" {
		return reason
	}
	t := &modelTransfer{op: o, kind: "transfer"}
	for i, p := range o.posts {
		if reason := m.post(t, p.from+"/"+p.asset, p.to+"/"+p.asset, p.form, amounts[i], nil); reason != "" {
			return reason
		}
	}
	return m.keep(t, o.kind)
}

// check evaluates conditions: first all amounts, then all versions, then all balances.
func (m *model) check(conditions []opCondition) string {
	for _, c := range conditions {
		if c.least != "" {
			if _, reason := minor(c.least, assetOf(c.account)); reason != "" {
				return reason
			}
		}
	}
	for _, c := range conditions {
		if c.version >= 0 && m.accounts[c.account].version != c.version {
			return "STALE_VERSION"
		}
	}
	for _, c := range conditions {
		if c.least != "" {
			if least, _ := minor(c.least, assetOf(c.account)); m.accounts[c.account].balance.Cmp(least) < 0 {
				return "BALANCE_CONDITION_FAILED"
			}
		}
	}
	return ""
}

// post makes one posting. With hold, it uses the held amount.
func (m *model) post(t *modelTransfer, from, to, form string, n *big.Int, hold *modelHold) string {
	a, b := m.accounts[from], m.accounts[to]
	switch {
	case a.state == "closed" || b.state == "closed":
		return "ACCOUNT_CLOSED"
	case a.state == "frozen":
		return "ACCOUNT_FROZEN"
	}
	n, reason := a.pays(form, n, hold != nil)
	if reason != "" {
		return reason
	}
	switch {
	case b.most != nil && plus(b.balance, n).Cmp(b.most) > 0:
		return "BALANCE_LIMIT_EXCEEDED"
	case !fits(minus(a.balance, n)) || !fits(plus(b.balance, n)):
		return "AMOUNT_TOO_LARGE"
	}
	if hold != nil {
		a.held = minus(a.held, n)
		hold.captured = plus(hold.captured, n)
	}
	for _, side := range []struct {
		a *modelAccount
		n *big.Int
	}{{a, new(big.Int).Neg(n)}, {b, n}} {
		after := plus(side.a.balance, side.n)
		side.a.version++
		entry := fmt.Sprintf("%s %d: %s %s>%s #%d", side.a.key, side.a.version, side.n, side.a.balance, after,
			len(t.moves))
		side.a.balance = after
		m.entries[side.a.key] = append(m.entries[side.a.key], entry)
		t.line += "; " + entry
	}
	t.moves = append(t.moves, modelMove{from, to, n})
	return ""
}

// pays returns the amount that the account pays.
func (a *modelAccount) pays(form string, n *big.Int, fromHold bool) (*big.Int, string) {
	if a.least == nil {
		if form == "all" {
			return nil, "AVAILABLE_UNBOUNDED"
		}
		return n, ""
	}
	available := minus(minus(a.balance, a.held), a.least)
	switch {
	case fromHold:
		return n, ""
	case form == "exact" && available.Cmp(n) < 0, available.Sign() <= 0:
		return nil, "INSUFFICIENT_FUNDS"
	case form == "all" && !fits(available):
		return nil, "AMOUNT_TOO_LARGE"
	case form == "all", form == "up to" && available.Cmp(n) < 0:
		return available, ""
	}
	return n, ""
}

func (m *model) keep(t *modelTransfer, kind string) string {
	t.line = fmt.Sprintf("%s %s: %s", kind, t.op.biz, strings.TrimPrefix(t.line, "; "))
	m.transfers[t.op.biz] = t
	return t.line
}

// repeat answers a request whose biz_no is taken.
func (t *modelTransfer) repeat(o op, fields []string) string {
	if len(fields) > 0 {
		slices.Sort(fields)
		return "BIZ_NO_EXISTS_DIFFERENT " + strings.Join(slices.Compact(fields), ",")
	}
	return "existed " + t.line
}

func (t *modelTransfer) transferDiffers(o op) (fields []string) {
	if t.kind != "transfer" {
		return []string{"call"}
	}
	fields = shared(o, t.op)
	if o.kind != t.op.kind {
		fields = append(fields, "type")
	}
	if len(o.posts) != len(t.op.posts) {
		return append(fields, "postings")
	}
	for i, p := range o.posts {
		first := t.op.posts[i]
		for name, differs := range map[string]bool{"from": p.from != first.from, "to": p.to != first.to,
			"asset": p.asset != first.asset} {
			if differs {
				fields = append(fields, fmt.Sprintf("postings[%d].%s", i, name))
			}
		}
		switch {
		case p.asset != first.asset: // then there is no common amount
		case p.form != first.form:
			fields = append(fields, fmt.Sprintf("postings[%d].form", i))
		case p.form != "all" && !sameNumber(p.amount, first.amount):
			fields = append(fields, fmt.Sprintf("postings[%d].amount", i))
		}
	}
	return fields
}

func sameNumber(a, b string) bool {
	x, _ := new(big.Rat).SetString(a)
	y, _ := new(big.Rat).SetString(b)
	return x.Cmp(y) == 0
}

// shared compares the fields that all requests have. An omitted time is not a difference.
func shared(o, first op) (fields []string) {
	if o.metadata != first.metadata {
		fields = append(fields, "metadata")
	}
	if !o.effective.IsZero() && !o.effective.Equal(first.effective) {
		fields = append(fields, "effective_time")
	}
	return fields
}

// rows are the expected account rows.
func (m *model) rows() []string {
	var rows []string
	for _, a := range m.accounts {
		rows = append(rows, a.line())
	}
	slices.Sort(rows)
	return rows
}

func (a *modelAccount) line() string {
	bound := func(n *big.Int) string {
		if n == nil {
			return "none"
		}
		return n.String()
	}
	return fmt.Sprintf("account %s: %s %s, %s of which %s held, %s to %s, version %d", a.key, a.kind, a.state,
		a.balance, a.held,
		bound(a.least), bound(a.most), a.version)
}

// holdRows are the expected hold rows.
func (m *model) holdRows() []string {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(m.holds)) {
		rows = append(rows, m.holds[name].line())
	}
	return rows
}
