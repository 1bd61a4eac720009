package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// arena is one database with two engines, like those of two processes.
type arena struct {
	*testing.T
	pool    *pgxpool.Pool
	engines [2]*flow.Engine
	counts  [2]*prometheus.Registry
	turn    atomic.Int64
}

func newArena(t *testing.T) *arena {
	db := pgtest.New(t)
	a := &arena{T: t, pool: pgtest.Pool(t, db.AllDSN)}
	for i := range a.engines {
		reg := prometheus.NewRegistry()
		pool := pgtest.Pool(t, db.AllDSN)
		e := flow.NewEngine(pool, fmt.Sprint(t.Name(), i), commit.NewMetrics(reg), nil)
		a.engines[i], a.counts[i] = e, reg
		t.Cleanup(func() {
			if err := e.Drain(context.Background()); err != nil {
				t.Error(err)
			}
			a.none(reg, "ledgerd_commit_deadlocks_total", "ledgerd_commit_panics_total",
				"ledgerd_commit_culprits_total")
		})
	}
	world(t, a.engines[0], 8)
	return a
}

// none fails the test if one of the counters is above zero.
func (a *arena) none(reg *prometheus.Registry, counters ...string) {
	families, err := reg.Gather()
	if err != nil {
		a.Error(err)
	}
	found := 0
	for _, f := range families {
		for _, name := range counters {
			if f.GetName() == name {
				found++
				if n := f.GetMetric()[0].GetCounter().GetValue(); n != 0 {
					a.Errorf("%s is %v", name, n)
				}
			}
		}
	}
	if found != len(counters) {
		a.Errorf("found %d of %v", found, counters)
	}
}

// try runs a command on the two engines in turn.
func (a *arena) try(c commit.Command[*ledger.Tx]) (commit.Outcome, error) {
	return a.engines[a.turn.Add(1)%2].Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(c)}))
}

func (a *arena) must(c commit.Command[*ledger.Tx]) any {
	a.Helper()
	out, err := a.try(c)
	if err != nil {
		a.Fatal(err)
	}
	return out.Answer
}

// together runs n commands concurrently, and counts their outcomes: "ok", "existed", or the reason.
func (a *arena) together(n int, command func(i int) commit.Command[*ledger.Tx]) map[string]int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		c := command(i)
		wg.Go(func() {
			<-start
			out, err := a.try(c)
			mu.Lock()
			defer mu.Unlock()
			ends[ending(out, err)]++
		})
	}
	close(start)
	wg.Wait()
	return ends
}

func ending(out commit.Outcome, err error) string {
	switch f := fault.Of(err); {
	case f != nil:
		return f.Reason.Name
	case err != nil:
		return err.Error()
	case out.Existed:
		return "existed"
	}
	return "ok"
}

// ended fails the test if a command has an outcome that is not allowed.
func (a *arena) ended(ends map[string]int, allowed ...string) {
	a.Helper()
	for end := range ends {
		if !slices.Contains(allowed, end) {
			a.Errorf("ended %v; allowed are %v", ends, allowed)
		}
	}
}

func (a *arena) one(query string, args ...any) (n int64) {
	a.Helper()
	if err := a.pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		a.Fatal(err)
	}
	return n
}

func user(i int) string { return fmt.Sprintf("user:%d", i%8) }

func hold(bizNo, from, to, n string, life time.Duration) *ledger.HoldCommand {
	return &ledger.HoldCommand{Caller: caller,
		HoldParams: ledger.HoldParams{BizNo: bizNo, From: from, To: to, Asset: "CNY",
			Amount: dec(n), Life: life}}
}

func capture(bizNo, of, n string) *ledger.CaptureCommand {
	c := &ledger.CaptureCommand{Caller: caller, CaptureParams: ledger.CaptureOf(0, of)}
	d := dec(n)
	c.BizNo, c.Type, c.Amount = bizNo, "capture", &d
	return c
}

func state(code, s string) *ledger.UpdateAccountCommand {
	return &ledger.UpdateAccountCommand{Caller: caller, Code: code, Asset: "CNY",
		Change: ledger.AccountChange{State: s}}
}

func TestBizNoHasOneContent(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for round := range 10 {
		name := fmt.Sprint("t", round)
		ends := a.together(32, func(i int) commit.Command[*ledger.Tx] { return transfer(name, "world", user(i), "1") })
		a.ended(ends, "ok", "existed", "BIZ_NO_EXISTS_DIFFERENT")
		if ends["ok"] != 1 || ends["existed"] != 3 { // 4 callers sent the winning content
			t.Errorf("ended %v", ends)
		}
		ends = a.together(32, func(i int) commit.Command[*ledger.Tx] {
			return hold(name, "world", user(i), "1",
				time.Hour)
		})
		if ends["ok"] != 1 || ends["existed"] != 3 || ends["BIZ_NO_EXISTS_DIFFERENT"] != 28 {
			t.Errorf("ended %v", ends)
		}
	}
	if n := a.one("select count(*) from ledger_transfers"); n != 10 {
		t.Errorf("%d transfers", n)
	}
}

func TestCapturesRaceExpiryAndRelease(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.must(transfer("fund", "world", user(0), "1000"))
	for round := range 20 {
		name := fmt.Sprint("h", round)
		life := time.Hour
		if round%2 == 0 {
			life = time.Duration(2+rand.IntN(10)) * time.Millisecond
		}
		a.must(hold(name, user(0), user(1), "20", life))
		ends := a.together(40, func(i int) commit.Command[*ledger.Tx] {
			switch {
			case i == 20 && round%2 == 1:
				return ledger.ReleaseOf(caller, 0, name)
			case i%10 == 5:
				return &ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1, Code: user(0), Asset: "CNY"}}
			}
			return capture(fmt.Sprint("c", round, "-", i), name, "1")
		})
		a.ended(ends, "ok", "HOLD_EXPIRED", "HOLD_NOT_HELD")
		moved := a.one("select count(*) from ledger_transfers where hold_id = (select hold_id from ledger_holds "+
			"where biz_no = $1)", name)
		captured := a.one("select captured / 100 from ledger_holds where biz_no = $1", name)
		if moved != captured || captured > 20 {
			t.Errorf("round %d: %d captures moved, the hold says %d; ended %v", round, moved, captured, ends)
		}
	}
}

func TestOneReversalWins(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for round := range 10 {
		first := a.must(transfer(fmt.Sprint("t", round), "world", user(round), "5")).(*ledger.Transfer)
		ends := a.together(24, func(i int) commit.Command[*ledger.Tx] {
			p := ledger.ReverseParams{BizNo: fmt.Sprint("r", round, "-", i)}
			if p.TransferID = first.ID; i%2 == 0 {
				p.TransferID, p.TransferBizNo = 0, first.BizNo
			}
			return &ledger.ReverseCommand{Caller: caller, ReverseParams: p}
		})
		if ends["ok"] != 1 || ends["ALREADY_REVERSED"] != 23 {
			t.Errorf("ended %v", ends)
		}
	}
}

// Two reversals in one batch name the same transfer by id and by biz_no: the second must see the first's effect.
func TestTransferNamedByIDAndBizNoIsOneTransfer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	first := a.must(transfer("t", "world", user(0), "5")).(*ledger.Transfer)
	results := a.engines[0].DoAll(context.Background(), []flow.Submission{
		submission(flow.Submission{Command: flow.Ledger(&ledger.ReverseCommand{Caller: caller,
			ReverseParams: ledger.ReverseParams{TransferID: first.ID, BizNo: "r"}})}),
		submission(flow.Submission{Command: flow.Ledger(&ledger.ReverseCommand{Caller: caller,
			ReverseParams: ledger.ReverseParams{TransferBizNo: "t", BizNo: "s"}})}),
	})
	if results[0].Err != nil || !fault.Is(results[1].Err, ledger.AlreadyReversed) {
		t.Errorf("results %+v", results)
	}
	if n := pgtest.Counter(t, a.counts[0], pgtest.FailedAttempts); n != 0 {
		t.Errorf("%v attempts failed", n)
	}
}

// A transfer may be reversed by its biz_no before it is committed.
func TestReversalRacesItsTransfer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for round := range 20 {
		ends := a.together(12, func(i int) commit.Command[*ledger.Tx] {
			if i == 0 {
				return transfer(fmt.Sprint("t", round), "world", user(round), "5")
			}
			return &ledger.ReverseCommand{Caller: caller,
				ReverseParams: ledger.ReverseParams{TransferBizNo: fmt.Sprint("t", round),
					BizNo: fmt.Sprint("r", round, "-", i)}}
		})
		a.ended(ends, "ok", "TRANSFER_NOT_FOUND", "ALREADY_REVERSED")
		if ends["ok"] > 2 {
			t.Errorf("ended %v", ends)
		}
	}
}

// A hold may be captured by its biz_no before it is committed, even to an account that it does not name.
func TestCaptureRacesItsHold(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.must(transfer("fund", "world", user(0), "1000"))
	for round := range 20 {
		name := fmt.Sprint("h", round)
		ends := a.together(12, func(i int) commit.Command[*ledger.Tx] {
			if i == 0 {
				return hold(name, user(0), "", "20", time.Hour)
			}
			c := capture(fmt.Sprint("c", round, "-", i/2), name, "1") // each twice, with the same content
			c.To = user(1 + round%3)
			return c
		})
		a.ended(ends, "ok", "existed", "HOLD_NOT_FOUND")
	}
}

// Many holds may name one account as recipient, so a release must not lock the recipient.
func TestReleaseLocksTheHeldAccountAlone(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.must(transfer("fund", "world", user(0), "5"))
	a.must(hold("h", user(0), user(1), "5", time.Hour))
	tx, err := a.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(context.Background(), "select from ledger_accounts where code = $1 for no key update",
		user(1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := a.engines[0].Do(ctx, submission(flow.Submission{Command: flow.Ledger(ledger.ReleaseOf(caller, 0,
		"h"))})); err != nil {
		t.Errorf("release: %v", err)
	}
}

func TestFrozenAccountIsNeverDebited(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.must(transfer("fund", "world", user(0), "1000"))
	for round := range 10 {
		before := a.one("select version from ledger_accounts where code = $1", user(0))
		ends := a.together(40, func(i int) commit.Command[*ledger.Tx] {
			if i == 20 {
				return state(user(0), ledger.Frozen)
			}
			return transfer(fmt.Sprint("t", round, "-", i), user(0), user(1), "0.01")
		})
		a.ended(ends, "ok", "ACCOUNT_FROZEN")
		after := a.one("select version from ledger_accounts where code = $1", user(0))
		if int(after-before) != ends["ok"]-1 {
			t.Errorf("%d entries; ended %v", after-before, ends)
		}
		if _, err := a.try(transfer(fmt.Sprint("late", round), user(0), user(1), "0.01")); !fault.Is(err,
			ledger.AccountFrozen) {
			t.Errorf("after the freeze: %v", err)
		}
		a.must(state(user(0), ledger.Open))
	}
}

func TestAccountCloseRacesCredits(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for i := range 8 {
		ends := a.together(16, func(n int) commit.Command[*ledger.Tx] {
			if n == 8 {
				return state(user(i), ledger.Closed)
			}
			return transfer(fmt.Sprint("t", i, "-", n), "world", user(i), "1")
		})
		a.ended(ends, "ok", "ACCOUNT_CLOSED", "ACCOUNT_NOT_EMPTY")
		if (ends["ACCOUNT_CLOSED"] > 0) == (ends["ACCOUNT_NOT_EMPTY"] > 0) || ends["ACCOUNT_CLOSED"] > 0 &&
			ends["ok"] != 1 {
			t.Errorf("ended %v", ends)
		}
	}
}

func TestAccountsAndAssetsAreMadeOnce(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	const callers, codes = 24, 12
	for round := range 5 {
		asset := fmt.Sprint("A", round)
		a.ended(a.together(callers, func(int) commit.Command[*ledger.Tx] {
			return &ledger.CreateAssetsCommand{Caller: caller,
				Assets: []ledger.NewAsset{{Code: asset, Scale: 2}, {Code: asset + "b", Scale: 0}}}
		}), "ok")
		ends := a.together(callers, func(i int) commit.Command[*ledger.Tx] {
			c := &ledger.CreateAccountsCommand{Caller: caller}
			for _, n := range rand.Perm(codes) {
				c.Accounts = append(c.Accounts,
					ledger.NewAccount{Code: fmt.Sprint("n", n), Asset: asset, Kind: "asset"})
			}
			return c
		})
		a.ended(ends, "ok")
		if n := a.one("select count(*) from ledger_accounts where asset = $1", asset); n != codes {
			t.Errorf("%d accounts", n)
		}
	}
	ends := a.together(8, func(i int) commit.Command[*ledger.Tx] {
		return &ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "Z", Scale: uint8(i)}}}
	})
	if ends["ok"] != 1 || ends["ASSET_EXISTS_DIFFERENT"] != 7 {
		t.Errorf("ended %v", ends)
	}
}

func TestCrossingTransfersNeverDeadlock(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for i := range 8 {
		a.must(transfer(fmt.Sprint("fund", i), "world", user(i), "100"))
	}
	ends := a.together(600, func(i int) commit.Command[*ledger.Tx] {
		c := transfer(fmt.Sprint("t", i%500), user(i), user(i+1+rand.IntN(6)), "0.01") // some numbers are used twice
		for range rand.IntN(3) {
			from := rand.IntN(8)
			c.Postings = append(c.Postings,
				ledger.Posting{From: user(from), To: user(from + 1 + rand.IntN(6)), Asset: "CNY", Amount: dec("0.01")})
		}
		return c
	})
	a.ended(ends, "ok", "existed", "BIZ_NO_EXISTS_DIFFERENT")
	if ends["ok"] != 500 {
		t.Errorf("ended %v", ends)
	}
}
