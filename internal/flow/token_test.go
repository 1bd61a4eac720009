package flow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// submitted returns a transfer with a submit token.
func submitted(t, bizNo, from, n string) flow.Submission {
	return submission(flow.Submission{Command: behind(flow.Ledger(transfer(bizNo, from, "user:1", n)),
		&flow.SubmitToken{
			Spend: token.Spend{Caller: caller, Token: t, Operation: "o"},
			Made: func(a flow.Result) map[string]string {
				return map[string]string{"biz_no": a.Value.(*ledger.Transfer).BizNo}
			}})})
}

func issue(t *testing.T, e *flow.Engine, c token.IssueCommand) string {
	t.Helper()
	c.Caller, c.Life, c.Tokens = caller, time.Hour, []string{token.New()}
	must[token.Issued](t, e, submission(flow.Submission{Command: flow.Token(&c)}))
	return c.Tokens[0]
}

func TestOneSubmitOfABatchRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	e := engine(t, db)
	world(t, e, 2)
	for name, x := range map[string]struct {
		issue token.IssueCommand
		runs  int // index of the successful submit
		want  string
	}{
		"plain":    {token.IssueCommand{}, -1, "refused "}, // refused is spent
		"survives": {token.IssueCommand{SurvivesRefusal: true}, 3, "done survives3"},
	} {
		form := issue(t, e, x.issue)
		var submissions []flow.Submission
		for i := range 50 {
			from := "world"
			if i < 3 {
				from = "user:0" // has no money
			}
			submissions = append(submissions, submitted(form, fmt.Sprint(name, i), from, "1"))
		}
		for i, r := range e.DoAll(context.Background(), submissions) {
			f := fault.Of(r.Err)
			switch {
			case i == x.runs:
				if r.Err != nil {
					t.Errorf("%s %d: %v", name, i, r.Err)
				}
			case i == 0 || i < x.runs:
				if !fault.Is(r.Err, ledger.InsufficientFunds) {
					t.Errorf("%s %d: %v", name, i, r.Err)
				}
			case f == nil || f.Reason != token.Spent ||
				f.Metadata["first_outcome"]+" "+f.Metadata["first_biz_no"] != x.want:
				t.Errorf("%s %d: %v", name, i, r.Err)
			}
		}
		if got := text(t, pool, "select count(distinct spent_at) || ' ' || count(*) from token_submit_tokens "+
			"where state <> 'open'"); got[0] != got[2] {
			t.Errorf("distinct spend times and spent tokens: %s", got)
		}
	}
	if got := text(t, pool, "select count(*)::text from ledger_transfers"); got != "1" {
		t.Errorf("%s transfers", got)
	}
	if got := text(t, pool, "select count(*)::text from commit_batches where commands = 50"); got != "2" {
		t.Errorf("%s batches had all submits", got)
	}
}

// A batch that waits for a token sees that another process has spent it.
func TestTwoEnginesSpendATokenOnce(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for round := range 20 {
		form := issue(t, a.engines[0], token.IssueCommand{SurvivesRefusal: round%2 == 0})
		done := make(chan error, 8)
		for i := range 8 {
			go func() {
				_, err := a.engines[i%2].Do(context.Background(),
					submitted(form, fmt.Sprint(round, "-", i), "world", "1"))
				done <- err
			}()
		}
		well := 0
		for range 8 {
			switch err := <-done; {
			case err == nil:
				well++
			case !fault.Is(err, token.Spent) || fault.Of(err).Metadata["first_biz_no"] == "":
				t.Error(err)
			}
		}
		if well != 1 {
			t.Errorf("round %d: %d submits succeeded", round, well)
		}
	}
}

func (g *gate) submit(submissions ...flow.Submission) <-chan []error {
	done := make(chan []error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		var errs []error
		for _, r := range g.engine.DoAll(ctx, submissions) {
			errs = append(errs, r.Err)
		}
		done <- errs
	}()
	return done
}

// waiting returns the number of waiting and running rows of the engine.
func (g *gate) waiting() float64 {
	families, err := g.counts.Gather()
	if err != nil {
		g.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ledgerd_commit_inflight_rows" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}

// Submits with different tokens that pay into one account do not wait for each other's commits.
func TestBatchesWithTokensOverlap(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	a, b, c := issue(t, g.engine, token.IssueCommand{}), issue(t, g.engine, token.IssueCommand{}),
		issue(t, g.engine, token.IssueCommand{SurvivesRefusal: true})
	first := g.submit(submitted(a, "gate", "world", "5"))
	g.waits()
	second := g.submit(submitted(b, "b", "world", "4"), submitted(c, "c", "user:0", "2"))
	g.overlapped()
	g.open()
	if errs := <-first; errs[0] != nil {
		t.Error(errs)
	}
	if errs := <-second; errs[0] != nil || !fault.Is(errs[1], ledger.InsufficientFunds) {
		t.Error(errs)
	}
	if n := pgtest.Counter(t, g.counts, pgtest.FailedAttempts) + g.count("attempts_total/conflicted"); n != 0 {
		t.Errorf("%v attempts failed", n)
	}
	if got := text(t, g.super, "select string_agg(state, ' ' order by issued_at) "+
		"from token_submit_tokens"); got != "spent spent open" {
		t.Errorf("the tokens are %s", got)
	}
}

// A second submit with the same token waits for the commit of the first, and runs if the first fails.
func TestSubmitsOfOneTokenDoNotOverlap(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		g := newGate(t)
		if fails {
			g.exec(`create function late() returns trigger language plpgsql as $$ begin raise exception 'not today'
				using errcode = '23514'; end $$;
				create constraint trigger late after insert on ledger_transfers deferrable initially deferred
				for each row when (new.biz_no = 'gate') execute function late()`)
		}
		form := issue(t, g.engine, token.IssueCommand{})
		first := g.submit(submitted(form, "gate", "world", "5"))
		g.waits()
		second := g.submit(submitted(form, "b", "world", "5"))
		g.until("the second submit is queued", func() bool { return g.waiting() == 8 }) // rows, 4 of each
		g.open()
		err1, err2 := (<-first)[0], (<-second)[0]
		if fails && (err1 == nil || err2 != nil) || !fails &&
			(err1 != nil || !fault.Is(err2, token.Spent) || fault.Of(err2).Metadata["first_biz_no"] != "gate") {
			t.Errorf("the first ended with %v, the second with %v", err1, err2)
		}
		if n := g.count("overlaps_total"); n != 0 {
			t.Error("the batches overlapped")
		}
	}
}
