package flow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func pageClaim(key string, change ...func(*claim.Params)) *flow.ClaimGuard {
	p := claim.Params{Scope: "page", Key: key, Life: time.Hour, FirstOnly: true}
	for _, f := range change {
		f(&p)
	}
	return flow.NewClaimGuard(caller, p)
}

// behindClaim runs a transfer with a claim, and returns its outcome.
func (a *arena) behindClaim(c *flow.ClaimGuard, t *ledger.TransferCommand) string {
	a.Helper()
	return ending(a.engines[0].Do(context.Background(),
		submission(flow.Submission{Command: behind(flow.Ledger(t), c)})))
}

// claimed returns all keys with their uses and results.
func (a *arena) claimed() string {
	a.Helper()
	return text(a.T, a.pool, "select coalesce(string_agg(format('%s %s %s', key, uses, result), '; ' "+
		"order by key), '') from claim_keys")
}

func (a *arena) equal(what, got, want string) {
	a.Helper()
	if got != want {
		a.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestAPageIDGuardsOneEffect(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	ends := map[string]int{}
	for i := range 1000 {
		wg.Go(func() {
			out, err := a.engines[i%2].Do(context.Background(), submission(flow.Submission{
				Command: behind(flow.Ledger(transfer(fmt.Sprint("t", i), "world", user(i), "1")),
					pageClaim("p"))}))
			mu.Lock()
			defer mu.Unlock()
			ends[ending(out, err)]++
		})
	}
	wg.Wait()
	if ends["ok"] != 1 || ends["KEY_CLAIMED"] != 999 {
		t.Errorf("ended %v", ends)
	}
	if n := a.one("select count(*) from ledger_transfers"); n != 1 {
		t.Errorf("%d transfers", n)
	}
	a.equal("claims", a.claimed(), "p 1 "+text(t, a.pool, "select biz_no from ledger_transfers"))
}

func TestPageIDSurvivesRefusalsOnly(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.equal("poor", a.behindClaim(pageClaim("poor"), transfer("a", user(0), user(1), "1")), "INSUFFICIENT_FUNDS")
	a.equal("after a refusal", a.behindClaim(pageClaim("poor"), transfer("b", "world", user(1), "1")), "KEY_CLAIMED")
	a.equal("claims", a.claimed(), "poor 1 ")

	a.equal("bad request", a.behindClaim(pageClaim("p"), transfer("a", user(0), "nobody", "1")), "ACCOUNT_NOT_FOUND")
	stale := transfer("a", "world", user(1), "1")
	version := int64(77)
	stale.Conditions = []ledger.Condition{{Code: user(1), Asset: "CNY", Version: &version}}
	a.equal("conflict", a.behindClaim(pageClaim("p"), stale), "STALE_VERSION")
	a.equal("claims", a.claimed(), "poor 1 ")
	a.equal("at last", a.behindClaim(pageClaim("p"), transfer("a", "world", user(1), "1")), "ok")
	a.equal("claims", a.claimed(), "p 1 a; poor 1 ")
}

func TestDatabaseErrorReleasesThePageID(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.exec(`create function fail() returns trigger language plpgsql as $$ begin raise exception 'broken' using
		errcode = '22000'; end $$`)
	for _, table := range []string{"ledger_transfers", "commit_batches"} {
		g.exec("create trigger fail before insert on " + table + " execute function fail()")
		run := func() string {
			return ending(g.engine.Do(context.Background(),
				submission(flow.Submission{Command: behind(flow.Ledger(transfer(table, "world", user(0), "1")),
					pageClaim(table))})))
		}
		if got := run(); got != "INTERNAL" {
			t.Errorf("ended %s", got)
		}
		g.exec("drop trigger fail on " + table)
		if got := run(); got != "ok" {
			t.Errorf("after the error: %s", got)
		}
	}
}

func TestDryRunsCountNothing(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	w := submission(flow.Submission{Command: behind(flow.Ledger(transfer("a", "world", user(0), "1")),
		pageClaim("p")), DryRun: true})
	for range 2 {
		a.equal("dry run", ending(a.engines[0].Do(context.Background(), w)), "ok")
	}
	a.equal("claims", a.claimed(), "")
}

// Within a batch, a business refusal uses up the page id for later commands. Any other failure does not.
func TestPageIDsWithinOneBatch(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	both := func(first *ledger.TransferCommand, key string) (ends []string) {
		for _, r := range a.engines[0].DoAll(context.Background(), []flow.Submission{
			submission(flow.Submission{Command: behind(flow.Ledger(first), pageClaim(key))}),
			submission(flow.Submission{Command: behind(flow.Ledger(transfer(key, "world", user(1), "1")),
				pageClaim(key))}),
			submission(flow.Submission{Command: behind(flow.Ledger(transfer(key+"-third", "world", user(1), "1")),
				pageClaim(key))}),
		}) {
			ends = append(ends, ending(r.Outcome, r.Err))
		}
		return ends
	}
	a.equal("after a refusal", fmt.Sprint(both(transfer("x", user(0), user(1), "1"), "p")),
		"[INSUFFICIENT_FUNDS KEY_CLAIMED KEY_CLAIMED]")
	a.equal("after a bad request", fmt.Sprint(both(transfer("x", user(0), "nobody", "1"), "q")),
		"[ACCOUNT_NOT_FOUND ok KEY_CLAIMED]")
	a.equal("claims", a.claimed(), "p 1 ; q 1 q")
}

func TestPermanentClaimGuardsOnce(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	points := func(owner string) *flow.ClaimGuard {
		return flow.NewClaimGuard(caller, claim.Params{Scope: "points", Key: "task-7", Owner: owner})
	}
	a.equal("first", a.behindClaim(points("ann"), transfer("a", "world", user(0), "1")), "ok")
	a.equal("again", a.behindClaim(points("ann"), transfer("b", "world", user(0), "1")), "KEY_CLAIMED")
	a.equal("another owner", a.behindClaim(points("bob"), transfer("c", "world", user(1), "1")), "KEY_CLAIMED")
	a.equal("claims", a.claimed(), "task-7 1 a")
}

// A claim that only counts refuses no command, and keeps the result that the caller named.
func TestCountingClaimRefusesNothing(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	counting := func(p *claim.Params) { p.FirstOnly, p.Result = false, "mine" }
	for i := range 3 {
		c := pageClaim("p", counting)
		a.equal("use", a.behindClaim(c, transfer(fmt.Sprint("t", i), "world", user(0), "1")), "ok")
		if c.Uses() != int64(i+1) {
			t.Errorf("counted %d", c.Uses())
		}
	}
	a.equal("claims", a.claimed(), "p 3 mine")
}

// A command of another domain uses claims through their participant: a cancelled order frees its business key.
func TestCommandMayClaimAndDropKeys(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	order := func(no string) *ordering {
		return &ordering{params: claim.SamePurchase.Params("user-1", "product-7"), no: no}
	}
	run := func(c flow.Command) string {
		out, err := a.engines[a.turn.Add(1)%2].Do(context.Background(), submission(flow.Submission{Command: c}))
		if err != nil {
			return ending(out, err)
		}
		return fmt.Sprint(out.Answer)
	}
	a.equal("first", run(order("no-1")), "no-1")
	a.equal("repeat", run(order("no-2")), "no-1")
	refused := order("no-3")
	refused.refuse = true
	a.equal("the duplicate error", run(refused), "KEY_CLAIMED")
	cancel := order("")
	cancel.cancel = true
	a.equal("cancel", run(cancel), "true")
	a.equal("after it", run(order("no-4")), "no-4")
	a.equal("claims", a.claimed(), "6:user-1,9:product-7, 1 no-4")
}

// ordering is a command that claims its number inside Apply, like an order service.
type ordering struct {
	params         claim.Params
	no             string
	refuse, cancel bool
	row            *claim.Row
}

func (o *ordering) Need(tx *flow.Tx) { o.row = tx.Claims().Want(o.params.At(caller.Tenant)) }

func (o *ordering) Apply(tx *flow.Tx) (any, error) {
	if o.cancel {
		return tx.Claims().Drop(o.row, &claim.DropParams{Fence: o.row.Value.ID})
	}
	o.params.FirstOnly = o.refuse
	use, err := tx.Claims().Use(o.row, caller, &o.params)
	if err != nil {
		return nil, err
	}
	if use.Existed {
		return use.First.Result, nil
	}
	tx.Claims().Name(o.row, o.no)
	return o.no, nil
}

var _ flow.Guard = (*flow.ClaimGuard)(nil)

// If the guarded command is refused, there is no resource that the claim could name.
func TestRefusedUseRecordsNoResult(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	named := func(result string) func(*claim.Params) { return func(p *claim.Params) { p.Result = result } }
	a.equal("refused", a.behindClaim(pageClaim("no", named("order-1")), transfer("no", user(0), user(1), "100000")),
		"INSUFFICIENT_FUNDS")
	a.equal("ok", a.behindClaim(pageClaim("ok", named("order-2")), transfer("ok", "world", user(1), "1")), "ok")
	a.equal("the claims", a.claimed(), "no 1 ; ok 1 order-2")
	first := &claim.EachCommand{Caller: caller,
		Params: []claim.Params{{Scope: "s", Key: "k", Life: time.Hour, Result: "r"},
			{Scope: "s", Key: "k", Life: time.Hour},
			{Scope: "s", Key: "k", Life: time.Hour, FirstOnly: true, Result: "other"}}}
	out, err := a.engines[0].Do(context.Background(), submission(flow.Submission{Command: flow.Claim(first)}))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range out.Answer.([]claim.Result) {
		if r.First.Result != "r" || r.Count != []int64{1, 2, 0}[i] {
			t.Errorf("use %d: %+v", i, r)
		}
	}
	a.equal("the claims", a.claimed(), "k 2 r; no 1 ; ok 1 order-2")
}

// A rerun after a lost race may find the answer recorded. The count of the earlier attempt must not be returned then.
func TestClaimCountIsThatOfTheCommittedAttempt(t *testing.T) {
	t.Parallel()
	c := pageClaim("p")
	b := flow.NewTx()
	c.Need(b)
	b.Claims().Start(commit.Times{Now: time.Now()}, func() int64 { return 1 })
	if err := c.Guard(b); err != nil || c.Uses() != 1 {
		t.Fatal(err, c.Uses())
	}
	if c.Need(flow.NewTx()); c.Uses() != 0 {
		t.Errorf("a new attempt begins with a count of %d", c.Uses())
	}
}

// Batches with claims overlap their predecessors.
func TestBatchesWithClaimsOverlap(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	first := g.start(transfer("gate", "world", user(0), "5"))
	g.waits()
	second := make(chan string, 1)
	go func() {
		second <- ending(g.engine.Do(context.Background(),
			submission(flow.Submission{Command: behind(flow.Ledger(transfer("a", user(0), user(1), "3")),
				pageClaim("p"))})))
	}()
	g.overlapped()
	g.open()
	g.want("first", first, "ok")
	if got := <-second; got != "ok" {
		t.Errorf("second ended %s", got)
	}
	if n := g.count("attempts_total/conflicted"); n != 0 {
		t.Errorf("%v attempts conflicted", n)
	}
	g.wantAccount(user(0), "open 200 0 2")
}

// An optimistic batch has locked its claims before it waits for its predecessor, so they cannot change meanwhile.
func TestClaimStaysLockedWhileItsBatchWaits(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	fact := &claim.Command{Caller: caller, Params: claim.Params{Scope: "fact", Key: "k", Owner: "ann"}}
	do := func(c flow.Command) string {
		return ending(g.engine.Do(context.Background(), submission(flow.Submission{Command: c})))
	}
	if got := do(flow.Claim(fact)); got != "ok" {
		t.Fatal(got)
	}
	first := g.start(transfer("gate", "world", user(0), "5"))
	g.waits()
	second := make(chan string, 1)
	go func() { second <- do(&both{flow.Ledger(transfer("a", user(0), user(1), "1")), fact}) }()
	g.overlapped()
	// The second call has locked the claim, and waits.
	g.untilQuery(`select (select count(*) from (select from claim_keys for no key update skip locked) free) = 0
		and exists (
		select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`)
	g.open()
	g.want("first", first, "ok")
	if got := <-second; got != "ok" {
		t.Errorf("second ended %s", got)
	}
	if n := g.count("attempts_total/conflicted"); n != 0 {
		t.Errorf("%v attempts conflicted", n)
	}
}

// both is a transfer and a claim in one command.
type both struct {
	transfer flow.Command
	claim    *claim.Command
}

func (b *both) Need(tx *flow.Tx) {
	b.transfer.Need(tx)
	b.claim.Need(tx.Claims())
}

func (b *both) Apply(tx *flow.Tx) (any, error) {
	if err := b.claim.Guard(tx.Claims()); err != nil {
		return nil, err
	}
	return b.transfer.Apply(tx)
}
