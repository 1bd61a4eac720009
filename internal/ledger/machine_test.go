package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// wish converts commands of the model to commands of the ledger.
type wish struct{ commit.Caller }

type ledgerCommandOf = commit.Command[*ledger.Tx]

func number(s string) amount.Decimal {
	if s == "" {
		return amount.Decimal{}
	}
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

func numberOf(s string) *amount.Decimal {
	if s == "" || s == "none" {
		return nil
	}
	d := number(s)
	return &d
}

func metadataOf(s string) map[string]string {
	if s == "" {
		return nil
	}
	return map[string]string{"note": s, "a": "1"}
}

var formOf = map[string]ledger.Form{"exact": ledger.Exact, "up to": ledger.UpTo, "all": ledger.AllAvailable}

func (w wish) command(o op) ledgerCommandOf {
	switch o.what {
	case "transfer":
		return w.transfer(o)
	case "all":
		all := &ledger.TransferAllCommand{}
		for _, t := range o.all {
			all.Transfers = append(all.Transfers, *w.transfer(t))
		}
		return all
	case "hold":
		p := o.posts[0]
		return &ledger.HoldCommand{Caller: w.Caller,
			HoldParams: ledger.HoldParams{BizNo: o.biz, From: p.from, To: p.to, Asset: p.asset,
				Amount: number(p.amount), Form: formOf[p.form], Life: o.life, Metadata: metadataOf(o.metadata)}}
	case "capture":
		c := &ledger.CaptureCommand{Caller: w.Caller, CaptureParams: ledger.CaptureOf(0, o.target)}
		c.BizNo, c.Amount, c.To, c.ReleaseRest = o.biz, numberOf(o.posts[0].amount), o.posts[0].to, o.rest
		c.Type, c.Metadata = o.kind, metadataOf(o.metadata)
		return c
	case "release":
		return ledger.ReleaseOf(w.Caller, 0, o.target)
	case "reverse":
		return &ledger.ReverseCommand{Caller: w.Caller,
			ReverseParams: ledger.ReverseParams{TransferBizNo: o.target, BizNo: o.biz,
				Metadata: metadataOf(o.metadata), EffectiveAt: o.effective}}
	case "update":
		code, asset, _ := strings.Cut(o.account, "/")
		return &ledger.UpdateAccountCommand{Caller: w.Caller, Code: code, Asset: asset, Change: ledger.AccountChange{
			Min: numberOf(o.least), Unbounded: o.least == "none", Max: numberOf(o.most), ClearMax: o.most == "none",
			State: o.state}}
	}
	code, asset, _ := strings.Cut(o.account, "/")
	return &ledger.CreateAccountsCommand{Caller: w.Caller,
		Accounts: []ledger.NewAccount{{Code: code, Asset: asset, Kind: o.kind,
			Min: numberOf(o.least), Max: numberOf(o.most)}}}
}

func (w wish) transfer(o op) *ledger.TransferCommand {
	c := &ledger.TransferCommand{Caller: w.Caller, TransferParams: ledger.TransferParams{BizNo: o.biz, Type: o.kind,
		Metadata: metadataOf(o.metadata), EffectiveAt: o.effective}}
	for _, p := range o.posts {
		c.Postings = append(c.Postings, ledger.Posting{From: p.from, To: p.to, Asset: p.asset, Amount: number(p.amount),
			Form: formOf[p.form]})
	}
	for _, k := range o.conditions {
		code, asset, _ := strings.Cut(k.account, "/")
		x := ledger.Condition{Code: code, Asset: asset, BalanceAtLeast: numberOf(k.least)}
		if k.version >= 0 {
			v := int64(k.version)
			x.Version = &v
		}
		c.Conditions = append(c.Conditions, x)
	}
	return c
}

// told is the model's line for an answer.
func told(answer any, existed bool, err error) string {
	if f := fault.Of(err); f != nil {
		return strings.TrimSpace(f.Reason.Name + " " + f.Metadata["differs"])
	}
	if err != nil {
		return err.Error()
	}
	line := ""
	switch a := answer.(type) {
	case *ledger.Transfer:
		line = transferLine(a)
	case []ledger.TransferResult:
		lines := []string{"all: "}
		for _, r := range a {
			lines = append(lines, told(r.Transfer, r.Existed, nil))
		}
		line = strings.Join(lines, " | ")
	case *ledger.Hold:
		line = holdLine(a)
	case ledger.Capture:
		line = transferLine(a.Transfer) + " | " + holdLine(a.Hold)
	case *ledger.Account:
		line = accountLine(a)
	case ledger.CreatedAccounts:
		line = []string{"made: ", "there: "}[a.Existed] + accountLine(&a.Accounts[0])
	}
	if existed {
		return "existed " + line
	}
	return line
}

func transferLine(t *ledger.Transfer) string {
	var entries []string
	for _, e := range t.Entries {
		entries = append(entries, fmt.Sprintf("%s/%s %d: %s %s>%s #%d", e.Account, e.Asset, e.Version, e.Amount,
			e.Before, e.After, e.Posting))
	}
	return fmt.Sprintf("%s %s: %s", t.Type, t.BizNo, strings.Join(entries, "; "))
}

func holdLine(h *ledger.Hold) string {
	return fmt.Sprintf("hold %s of %s/%s for %q: %s of %s captured, %s", h.BizNo, h.From, h.Asset, h.To, h.Captured,
		h.Amount, h.State)
}

func accountLine(a *ledger.Account) string {
	bound := func(n *amount.Int) string {
		if n == nil {
			return "none"
		}
		return n.String()
	}
	return fmt.Sprintf("account %s/%s: %s %s, %s of which %s held, %s to %s, version %d", a.Code, a.Asset, a.Kind,
		a.State, a.Balance,
		a.Held, bound(a.Min), bound(a.Max), a.Version)
}

// dealer generates commands. Few distinct names make commands collide, and earlier commands are repeated,
// unchanged or altered.
type dealer struct {
	played []op
	lives  []time.Duration
}

var (
	codes   = []string{"world", "ann", "bob", "cid", "tap", "jar"}
	strange = []string{"new", "ghost"} // rarely or never created
	usual   = []string{"0.01", "1", "1.50", "2.5", "7", "10", "33.33", "50", "100", "1000"}
	odd     = []string{"0.001", "0.000000000000000001", "400000000000000000000000000000000000", "90000000000000000000",
		"99999999999999999999999999999999999999"}
)

func code(t *rapid.T, what string) string {
	if rapid.IntRange(0, 14).Draw(t, "stranger") == 7 {
		return pick(t, what, strange...)
	}
	return pick(t, what, codes...)
}

func quantity(t *rapid.T) string {
	if rapid.IntRange(0, 9).Draw(t, "odd") == 6 {
		return pick(t, "amount", odd...)
	}
	return pick(t, "amount", usual...)
}

// known draws the biz_no of an earlier command, or any.
func (d *dealer) known(t *rapid.T, what, prefix string, names int) string {
	var tried []string
	for _, o := range d.played {
		if strings.HasPrefix(o.biz, prefix) {
			tried = append(tried, o.biz)
		}
	}
	if len(tried) > 0 && rapid.IntRange(0, 9).Draw(t, "known") != 5 {
		return pick(t, what, tried...)
	}
	return fmt.Sprint(prefix, rapid.IntRange(0, names).Draw(t, what))
}

func pick(t *rapid.T, what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(t, what)
}

// seldom draws one of the others about once in four draws.
func seldom(t *rapid.T, what, usual string, others ...string) string {
	return rapid.SampledFrom(append([]string{usual, usual, usual, usual, usual}, others...)).Draw(t, what)
}

func (d *dealer) post(t *rapid.T) opPost {
	p := opPost{from: code(t, "from"), asset: seldom(t, "asset", "CNY", "ETH"),
		form:   seldom(t, "form", "exact", "up to", "all"),
		amount: quantity(t)}
	if p.asset == "ETH" {
		p.from = pick(t, "from", codes[:3]...)
	}
	if p.to = code(t, "to"); p.to == p.from {
		p.to = codes[(slices.Index(codes, p.from)+1)%len(codes)]
	}
	if p.form == "all" {
		p.amount = ""
	}
	return p
}

func (d *dealer) transfer(t *rapid.T) op {
	o := op{what: "transfer", biz: fmt.Sprint("t", rapid.IntRange(0, 99).Draw(t, "biz")),
		kind:     seldom(t, "type", "transfer", "fee"),
		metadata: seldom(t, "metadata", "", "x", "y")}
	if seldom(t, "said", "no", "yes") == "yes" {
		o.effective = time.Date(2025, 1, rapid.IntRange(1, 3).Draw(t, "day"), 0, 0, 0, 1000, time.UTC)
	}
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "postings") {
		o.posts = append(o.posts, d.post(t))
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(t, "conditions") {
		o.conditions = append(o.conditions,
			opCondition{account: code(t, "on") + "/CNY", version: rapid.IntRange(-1, 3).Draw(t, "version"),
				least: pick(t, "least", "", "", "0", "10", "-5.5", "0.001")})
	}
	return o
}

func (d *dealer) fresh(t *rapid.T) op {
	biz := fmt.Sprint("t", rapid.IntRange(0, 99).Draw(t, "biz"))
	switch rapid.IntRange(0, 15).Draw(t, "what") {
	case 0, 1, 2, 3:
		return d.transfer(t)
	case 4:
		return op{what: "all", all: []op{d.transfer(t), d.transfer(t)}}
	case 5, 6, 7:
		o := op{what: "hold", biz: fmt.Sprint("h", rapid.IntRange(0, 30).Draw(t, "biz")), posts: []opPost{d.post(t)},
			life:     rapid.SampledFrom(d.lives).Draw(t, "life"),
			metadata: seldom(t, "metadata", "", "x")}
		if seldom(t, "aimless", "no", "yes") == "yes" {
			o.posts[0].to = ""
		}
		return o
	case 8, 9, 10:
		return op{what: "capture", biz: biz, target: d.known(t, "hold", "h", 30),
			kind: seldom(t, "type", "capture", "fee"), metadata: seldom(t, "metadata", "", "x"),
			posts: []opPost{{to: pick(t, "to", append([]string{"", "", ""}, codes...)...),
				amount: pick(t, "amount", append([]string{"", "", quantity(t)}, usual[:5]...)...)}},
			rest: rapid.Bool().Draw(t, "rest")}
	case 11:
		return op{what: "release", target: d.known(t, "hold", "h", 30)}
	case 12:
		return op{what: "reverse", biz: biz, target: d.known(t, "target", "t", 99),
			metadata: seldom(t, "metadata", "", "x")}
	case 13, 14:
		return op{what: "update", account: pick(t, "account", append(codes[1:], strange...)...) + "/CNY",
			state: pick(t, "state", "", "", "open", "open", "open", "open", "frozen", "closed"),
			least: pick(t, "least", "", "", "0", "-50", "10", "none", "90000000000000000000"),
			most:  pick(t, "most", "", "", "100", "none", "1000")}
	}
	return op{what: "create", account: "new/" + pick(t, "asset", "CNY", "ETH", "USD"),
		kind:  pick(t, "kind", "liability", "asset"),
		least: pick(t, "least", "0", "none", "1"), most: pick(t, "most", "none", "none", "1000")}
}

// deal draws a new command, an earlier one, or an earlier one with one change.
func (d *dealer) deal(t *rapid.T) op {
	o := op{}
	if again := rapid.IntRange(0, 9).Draw(t, "again"); again > 2 || len(d.played) == 0 {
		o = d.fresh(t)
	} else {
		o = rapid.SampledFrom(d.played).Draw(t, "played")
		if again == 0 {
			o = d.altered(t, o)
		}
	}
	d.played = append(d.played, o)
	return o
}

func (d *dealer) altered(t *rapid.T, o op) op {
	o.posts = slices.Clone(o.posts)
	switch rapid.IntRange(0, 5).Draw(t, "altered") {
	case 0:
		o.metadata = pick(t, "metadata", "", "x", "y")
	case 1:
		o.effective = time.Date(2025, 1, 1, 0, 0, 0, 2000, time.UTC)
	case 2:
		o.life += time.Millisecond
	case 3:
		o.rest = !o.rest
	default:
		if len(o.posts) > 0 && o.posts[0].form != "all" {
			o.posts[0].amount = quantity(t)
		}
	}
	if o.what == "transfer" || o.what == "all" || o.what == "hold" {
		o.rest = false
	}
	return o
}

// opening are the initial accounts and transfers of every run.
func opening() (ops []op) {
	for _, a := range []op{{account: "world/CNY", least: "none"}, {account: "world/ETH", least: "none"},
		{account: "ann/CNY", least: "0"},
		{account: "ann/ETH", least: "0"}, {account: "bob/CNY", least: "0"}, {account: "bob/ETH", least: "0"},
		{account: "cid/CNY", least: "0"},
		{account: "tap/CNY", least: "-50"}, {account: "jar/CNY", least: "0", most: "100"}} {
		a.what, a.kind = "create", "liability"
		ops = append(ops, a)
	}
	for i, to := range []string{"ann", "bob", "cid"} {
		ops = append(ops, op{what: "transfer", biz: fmt.Sprint("fund", i), kind: "fund",
			posts: []opPost{{from: "world", to: to, asset: "CNY", amount: "500", form: "exact"}}})
	}
	return append(ops, op{what: "transfer", biz: "fund", kind: "fund",
		posts: []opPost{{from: "world", to: "ann", asset: "ETH", amount: "3", form: "exact"}}})
}

// TestBookAnswersAsTheModel runs random commands on a book and on the model while time advances.
func TestBookAnswersAsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
		m, p := newModel(now), ledger.NewPaper(t, now)
		w := wish{commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}}
		d := &dealer{lives: []time.Duration{time.Second, time.Hour, 1000 * time.Hour}}
		play := func(o op) {
			want := m.run(o)
			answer, err := p.Do(w.command(o))
			r, existed := answer.(commit.Repeat)
			if existed {
				answer = r.First
			}
			if got := told(answer, existed, err); got != want {
				t.Fatalf("%+v\n got %s\nwant %s", o, got, want)
			}
		}
		if _, err := p.Do(&ledger.CreateAssetsCommand{Caller: w.Caller,
			Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}, {Code: "ETH", Scale: 18}}}); err != nil {
			t.Fatal(err)
		}
		for _, o := range opening() {
			play(o)
		}
		t.Repeat(map[string]func(*rapid.T){
			"command": func(t *rapid.T) { play(d.deal(t)) },
			"again":   func(t *rapid.T) { play(d.deal(t)) },
			"time passes": func(t *rapid.T) {
				m.now = m.now.Add(rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 59 * time.Second,
					time.Hour}).Draw(t, "time"))
				m.expire()
				p.Tick(m.now)
			},
			"": func(t *rapid.T) {
				for _, a := range m.accounts {
					code, asset, _ := strings.Cut(a.key, "/")
					if got := accountLine(p.Row(ledger.AccountKey{Tenant: 1, Code: code,
						Asset: asset})); got != a.line() {
						t.Fatalf("account %s\nwant %s", got, a.line())
					}
				}
			},
		})
	})
}
