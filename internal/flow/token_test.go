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

// submitted is a transfer with a token before it.
func submitted(t, bizNo, from, n string) flow.Work {
	return work(flow.Work{Command: flow.Behind(flow.Ledger(transfer(bizNo, from, "user:1", n)), &flow.SubmitToken{
		Spend: token.Spend{Caller: caller, Token: t, Operation: "o"},
		Made: func(answer any, _ bool) map[string]string {
			return map[string]string{"biz_no": answer.(*ledger.Transfer).BizNo}
		}})})
}

func issue(t *testing.T, e *flow.Engine, c token.IssueCommand) string {
	t.Helper()
	c.Caller, c.Life, c.Tokens = caller, time.Hour, []string{token.New()}
	must[token.Issued](t, e, work(flow.Work{Command: flow.Token(&c)}))
	return c.Tokens[0]
}

func TestOfManySubmitsInOneBatchTheFirstThatCanRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AppDSN)
	e := engine(t, db)
	world(t, e, 2)
	for name, x := range map[string]struct {
		issue token.IssueCommand
		runs  int // which of the submits
		told  string
	}{
		"plain":    {token.IssueCommand{}, -1, "refused "}, // refused is spent
		"survives": {token.IssueCommand{SurvivesRefusal: true}, 3, "done survives3"},
	} {
		form := issue(t, e, x.issue)
		var works []flow.Work
		for i := range 50 {
			from := "world"
			if i < 3 {
				from = "user:0" // who has nothing
			}
			works = append(works, submitted(form, fmt.Sprint(name, i), from, "1"))
		}
		for i, r := range e.DoAll(context.Background(), works) {
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
			case f == nil || f.Reason != token.Spent || f.State["first_outcome"]+" "+f.State["first_biz_no"] != x.told:
				t.Errorf("%s %d: %v", name, i, r.Err)
			}
		}
		if got := text(t, pool, "select count(distinct spent_at) || ' ' || count(*) from token_submit_tokens where state <> 'open'"); got[0] != got[2] {
			t.Errorf("the submits were %s commits", got)
		}
	}
	if got := text(t, pool, "select count(*)::text from ledger_transfers"); got != "1" {
		t.Errorf("%s transfers", got)
	}
	if got := text(t, pool, "select count(*)::text from commit_batches where commands = 50"); got != "2" {
		t.Errorf("%s batches had all of the submits", got)
	}
}

// A batch of another process that spends the token while this one waits for it is seen.
func TestTwoEnginesSpendATokenOnce(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for round := range 20 {
		form := issue(t, a.engines[0], token.IssueCommand{SurvivesRefusal: round%2 == 0})
		done := make(chan error, 8)
		for i := range 8 {
			go func() {
				_, err := a.engines[i%2].Do(context.Background(), submitted(form, fmt.Sprint(round, "-", i), "world", "1"))
				done <- err
			}()
		}
		well := 0
		for range 8 {
			switch err := <-done; {
			case err == nil:
				well++
			case !fault.Is(err, token.Spent) || fault.Of(err).State["first_biz_no"] == "":
				t.Error(err)
			}
		}
		if well != 1 {
			t.Errorf("round %d: %d submits went well", round, well)
		}
	}
}
