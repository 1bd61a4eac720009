package flow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// model is the expected state of a token.
type model struct {
	subject  string
	survives bool
	age      int    // in tens of minutes; all live an hour
	state    string // open, spent, refused
	first    string // biz_no of the transfer that spent it
}

func (p *model) expired() bool { return p.age >= 6 }

func (p *model) forgotten() bool {
	if p.state == "open" {
		return p.age >= 6+6
	}
	return p.age >= 6+24*6
}

// attempt is one submit.
type attempt struct {
	token, subject, bizNo string
	kind                  string // well, refused, bad
	next                  bool
}

// run applies a submit to the model, and returns the expected outcome.
func (p *model) run(a attempt) string {
	switch {
	case p.forgotten():
		return "TOKEN_UNKNOWN"
	case p.subject != "" && p.subject != a.subject:
		return "TOKEN_FOREIGN"
	case p.state != "open":
		return "TOKEN_SPENT " + p.state + " " + p.first
	case p.expired():
		return "TOKEN_EXPIRED"
	case a.kind == "bad":
		return "ACCOUNT_NOT_FOUND"
	case a.kind == "refused" && p.survives:
		return "INSUFFICIENT_FUNDS kept"
	case a.kind == "refused":
		p.state = "refused"
		return "INSUFFICIENT_FUNDS spent"
	}
	p.state, p.first = "spent", a.bizNo
	return "ok"
}

// tokenMachine runs random steps on tokens and on their models.
type tokenMachine struct {
	*rapid.T
	engines [2]*flow.Engine
	pool    *pgxpool.Pool
	prefix  string // of biz_no: runs share the database
	made    int
	known   map[string]*model
	names   []string
	waiting []attempt
}

func (f *tokenMachine) issue(r *rapid.T) {
	c := &token.IssueCommand{Caller: caller, Tokens: []string{token.New()}, Life: time.Hour,
		Subject:         rapid.SampledFrom([]string{"", "ann"}).Draw(r, "subject"),
		SurvivesRefusal: rapid.Bool().Draw(r, "survives")}
	if _, err := f.engines[0].Do(context.Background(),
		submission(flow.Submission{Command: flow.Token(c)})); err != nil {
		f.Fatal(err)
	}
	f.add(c.Tokens[0], &model{subject: c.Subject, survives: c.SurvivesRefusal, state: "open"})
}

func (f *tokenMachine) add(name string, p *model) {
	f.known[name] = p
	f.names = append(f.names, name)
}

func (f *tokenMachine) submit(r *rapid.T) {
	if len(f.names) == 0 {
		r.Skip()
	}
	f.made++
	f.waiting = append(f.waiting, attempt{token: rapid.SampledFrom(f.names).Draw(r, "token"),
		bizNo:   fmt.Sprint(f.prefix, f.made),
		subject: rapid.SampledFrom([]string{"ann", "ann", "ann", "bob"}).Draw(r, "subject"),
		kind:    rapid.SampledFrom([]string{"well", "well", "refused", "bad"}).Draw(r, "kind"),
		next:    rapid.Bool().Draw(r, "next")})
}

func (a attempt) submission() flow.Submission {
	from := map[string]string{"well": "world", "refused": "user:0", "bad": "nobody"}[a.kind]
	c := &flow.SubmitToken{Spend: token.Spend{Caller: caller, Token: a.token, Subject: a.subject, Operation: "o",
		Next: a.next},
		Made: func(a flow.Result) map[string]string {
			return map[string]string{"biz_no": a.Value.(*ledger.Transfer).BizNo}
		}}
	return submission(flow.Submission{Command: behind(flow.Ledger(transfer(a.bizNo, from, "user:1", "0.01")), c)})
}

// commit submits all waiting attempts in one call, on one of the engines.
func (f *tokenMachine) commit(r *rapid.T) {
	submissions := make([]flow.Submission, len(f.waiting))
	for i, a := range f.waiting {
		submissions[i] = a.submission()
	}
	engine := f.engines[rapid.IntRange(0, 1).Draw(r, "engine")]
	var next []attempt
	for i, got := range engine.DoAll(context.Background(), submissions) {
		a := f.waiting[i]
		want := f.known[a.token].run(a)
		if outcome := outcomeOf(got); outcome != want {
			f.Fatalf("%+v\n got %s\nwant %s", a, outcome, want)
		}
		if want == "ok" && a.next {
			next = append(next, a)
		}
	}
	for _, a := range next { // callers learn these tokens only now
		p := f.known[a.token]
		f.add(token.Next(a.token), &model{subject: p.subject, survives: p.survives, state: "open"})
	}
	f.waiting = nil
}

func outcomeOf(r commit.Result) string {
	f := fault.Of(r.Err)
	switch {
	case r.Err == nil:
		return "ok"
	case f == nil:
		return r.Err.Error()
	case f.Reason == token.Spent:
		return fmt.Sprint(f.Reason.Name, " ",
			map[string]string{"done": "spent", "refused": "refused"}[f.Metadata["first_outcome"]], " ",
			f.Metadata["first_biz_no"])
	case f.Reason == ledger.InsufficientFunds:
		return f.Reason.Name + " " + f.Metadata["submit_token"]
	}
	return f.Reason.Name
}

// grow ages one token by up to a day.
func (f *tokenMachine) grow(r *rapid.T) {
	if len(f.names) == 0 || len(f.waiting) > 0 {
		r.Skip()
	}
	name, by := rapid.SampledFrom(f.names).Draw(r, "token"), rapid.SampledFrom([]int{1, 3, 6, 12, 24 * 6}).Draw(r, "by")
	if _, err := f.pool.Exec(context.Background(), `update token_submit_tokens set issued_at = issued_at - $2 * interval
		'10 min', expires_at = expires_at - $2 * interval '10 min', forget_at = forget_at - $2 * interval '10 min',
		spent_at = spent_at - $2 * interval '10 min'
		where token_hash = sha256($1)`, []byte(name), by); err != nil {
		f.Fatal(err)
	}
	f.known[name].age += by
}

func (f *tokenMachine) clean(r *rapid.T) {
	tokens, cleaner := token.Tokens(), clean.Cleaner{Pool: f.pool, Metrics: clean.NewMetrics(nil)}
	if _, err := cleaner.Clean(context.Background(), &tokens); err != nil {
		r.Fatal(err)
	}
	for name, p := range f.known {
		if got := f.row(name); (got == "") != p.forgotten() {
			f.Fatalf("after cleaning a token of %+v is %q", *p, got)
		}
	}
}

func (f *tokenMachine) row(name string) (state string) {
	if err := f.pool.QueryRow(context.Background(),
		"select coalesce((select state from token_submit_tokens where token_hash = sha256($1)), '')", []byte(name)).
		Scan(&state); err != nil {
		f.Fatal(err)
	}
	return state
}

// compare compares the rows and the transfers with the models.
func (f *tokenMachine) compare(*rapid.T) {
	if len(f.waiting) > 0 {
		return
	}
	var spent int
	for name, p := range f.known {
		if got := f.row(name); got != p.state && !(got == "" && p.forgotten()) {
			f.Fatalf("a token of %+v is %q", *p, got)
		}
		if p.state == "spent" {
			spent++
		}
	}
	var transfers int
	if err := f.pool.QueryRow(context.Background(), "select count(*) from ledger_transfers where biz_no like $1 || '%'",
		f.prefix).Scan(&transfers); err != nil {
		f.Fatal(err)
	}
	if transfers != spent {
		f.Fatalf("%d tokens are spent, %d transfers made", spent, transfers)
	}
}

func TestTokensMatchAModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	engines := [2]*flow.Engine{engine(t, db), engine(t, db)}
	world(t, engines[0], 2)
	pool, runs := pgtest.Pool(t, db.SuperDSN), 0
	rapid.Check(t, func(r *rapid.T) {
		runs++
		f := &tokenMachine{T: r, engines: engines, pool: pool, prefix: fmt.Sprintf("run%d-", runs),
			known: map[string]*model{}}
		r.Repeat(map[string]func(*rapid.T){"": f.compare, "issue": f.issue, "submit": f.submit, "submit too": f.submit,
			"and more": f.submit,
			"commit":   f.commit, "grow": f.grow, "clean": f.clean})
		f.commit(r)
		f.compare(r)
	})
}
