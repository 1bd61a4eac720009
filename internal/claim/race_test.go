package claim_test

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
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// together runs n concurrent commands, alternating between engines, and counts the outcomes.
func (d *desk) together(n int, command func(i int) flow.Command) map[string]int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		c := command(i)
		wg.Go(func() {
			<-start
			out, err := d.engines[i%2].Do(context.Background(), submission(c))
			mu.Lock()
			defer mu.Unlock()
			ends[ended(commit.Result{Outcome: out, Err: err})]++
		})
	}
	close(start)
	wg.Wait()
	for _, counter := range []string{"ledgerd_commit_deadlocks_total", "ledgerd_commit_panics_total",
		"ledgerd_commit_culprits_total"} {
		if n := d.count(counter); n != 0 {
			d.Errorf("%s is %v", counter, n)
		}
	}
	return ends
}

func TestAThousandUsesOverTwoServersAreCountedOnceEach(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ends := d.together(1000, func(i int) flow.Command {
		return flow.Claim(use(by(fmt.Sprint("r", i)), "k", time.Hour))
	})
	if len(ends) != 1000 || ends["1"] != 1 {
		t.Errorf("%d different counts, %d first", len(ends), ends["1"])
	}
	for n := 2; n <= 1000; n++ {
		if ends[fmt.Sprint(n, " existed")] != 1 {
			t.Errorf("%d callers counted %d", ends[fmt.Sprint(n, " existed")], n)
		}
	}
}

func TestExactlyOneOfAThousandUsesIsFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ends := d.together(1000, func(int) flow.Command { return flow.Claim(use(caller, "k", time.Hour, firstOnly)) })
	if ends["1"] != 1 || ends["KEY_CLAIMED"] != 999 {
		t.Errorf("ended %v", ends)
	}
	ends = d.together(400, func(i int) flow.Command {
		return flow.Claim(use(caller, "fact", 0, owner(fmt.Sprint("u", i%4))))
	})
	if ends["1"] != 1 || ends["1 existed"] != 99 || ends["KEY_CLAIMED"] != 300 {
		t.Errorf("ended %v", ends)
	}
}

// Two orders of one user for one product at the same instant on two servers, repeated.
func TestTwoPurchasesAtTheSameInstantCollide(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for round := 0; round < 100 || round < 5000 &&
		d.count("ledgerd_commit_attempts_total/raced,conflicted") == 0; round++ {
		ends := d.together(2, func(int) flow.Command {
			return flow.Claim(&claim.Command{Caller: caller,
				Params: claim.SamePurchase.Params(fmt.Sprint("u", round), "p")})
		})
		if ends["1"] != 1 || ends["2 existed"] != 1 {
			t.Fatalf("round %d ended %v", round, ends)
		}
	}
	if d.count("ledgerd_commit_attempts_total/raced,conflicted") == 0 {
		t.Error("no two purchases ever collided: the test shows nothing")
	}
}

// Both servers claim and drop many keys in arbitrary order. There is no deadlock, and a key has at most one
// claim at any time.
func TestClaimsAndDropsCrossWithoutDeadlock(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ends := d.together(600, func(i int) flow.Command {
		if i%3 == 2 {
			return drop(fmt.Sprint("k", i*7%20), claim.DropParams{Owner: "a"})
		}
		each := &claim.EachCommand{Caller: caller}
		for n := range 12 {
			c := use(caller, fmt.Sprint("k", (i*13+n*(1+i%5))%20), time.Hour, owner("a"))
			if n%2 == 1 {
				c.Params.Scope = "other"
			}
			each.Params = append(each.Params, c.Params)
		}
		return flow.Claim(each)
	})
	for end := range ends {
		if end[0] != '[' && end != "true" && end != "false" {
			t.Errorf("ended %v", ends)
		}
	}
}

// An expired claim is renewed by exactly one caller, even while cleaners delete expired claims.
func TestExpiredKeysAreReclaimedOnceDespiteCleaners(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for round := range 10 {
		d.together(20, func(i int) flow.Command { return flow.Claim(use(caller, fmt.Sprint("k", i), time.Minute)) })
		d.age(time.Hour)
		var cleaned sync.WaitGroup
		for range 2 {
			cleaned.Go(func() { cleanAll(t, d.app) })
		}
		ends := d.together(200, func(i int) flow.Command {
			return flow.Claim(use(caller, fmt.Sprint("k", i%20), time.Minute, firstOnly))
		})
		cleaned.Wait()
		if ends["1"] != 20 || ends["KEY_CLAIMED"] != 180 {
			t.Fatalf("round %d ended %v", round, ends)
		}
		d.age(time.Hour)
	}
}

// waits holds a foreign transaction open until a batch waits for its locks.
func (d *desk) waits() {
	d.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(20 * time.Second); ; {
		if d.text("select (count(*) > 0)::text from pg_stat_activity where datname = current_database() "+
			"and wait_event_type = 'Lock'") == "true" {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			d.Fatal("no batch waits")
		}
	}
}

// A use waits for a concurrent change of its key, whether or not its batch may be optimistic; a batch that
// creates an asset may not.
func TestAUseWaitsForAConcurrentDrop(t *testing.T) {
	t.Parallel()
	for how, more := range map[string][]flow.Command{"may overlap": nil,
		"may not": {flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
			Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})}} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.want(d.use(use(caller, "k", 0, owner("a"))), "1")
			tx, err := d.super.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(context.Background(), "delete from claim_keys"); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() { got <- ended(d.all(append(more, flow.Claim(use(caller, "k", 0, owner("b"))))...)[len(more)]) }()
			d.waits()
			if err := tx.Commit(context.Background()); err != nil {
				t.Fatal(err)
			}
			d.want(<-got, "1")
		})
	}
}

// Two processes that claim a new key simultaneously both find no row. The unique constraint rejects the second
// insert, and that batch runs again.
func TestAConcurrentInsertOfAClaimIsFound(t *testing.T) {
	t.Parallel()
	asset := flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})
	for name, c := range map[string]struct {
		command flow.Command
		over    bool
		want    string
	}{
		"used":       {flow.Claim(use(caller, "k", time.Hour)), false, "2 existed"},
		"first only": {flow.Claim(use(caller, "k", time.Hour, firstOnly)), false, "KEY_CLAIMED"},
		"for ever":   {flow.Claim(use(caller, "k", 0)), false, "CLAIM_LIFE_DIFFERENT"},
		"over":       {flow.Claim(use(caller, "k", time.Hour)), true, "1"},
		"before a command that may not overlap": {
			&flow.GuardedCommand{Command: asset, Guards: []flow.Guard{flow.NewClaimGuard(caller,
				use(caller, "k", time.Hour, firstOnly).Params)}}, false, "KEY_CLAIMED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			tx, err := d.super.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(context.Background(), `insert into claim_keys (tenant_id, scope, key, claim_id, uses,
				principal, request_id, claimed_at, expires_at)
				select 1, 's', 'k', 1, 1, 'p', 'r', ends - interval '1 h', ends
				from (select now() + case when $1 then -1 else 1 end * interval '1 min' as ends) e`,
				c.over); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() { got <- ended(d.all(c.command)[0]) }()
			d.waits()
			if err := tx.Commit(context.Background()); err != nil {
				t.Fatal(err)
			}
			d.want(<-got, c.want)
			// for the checks
			d.want(d.text("with gone as (delete from claim_keys returning 1) select count(*)::text from gone"), "1")
		})
	}
}

// A server looks up claims made by another server, even of keys that it has never seen.
func TestAClaimOfAnotherServerIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command flow.Command
		over    bool
		want    string
	}{
		"used":           {flow.Claim(use(caller, "k", time.Hour)), false, "2 existed"},
		"first only":     {flow.Claim(use(caller, "k", time.Hour, firstOnly)), false, "KEY_CLAIMED"},
		"for ever":       {flow.Claim(use(caller, "k", 0)), false, "CLAIM_LIFE_DIFFERENT"},
		"over":           {flow.Claim(use(caller, "k", time.Hour)), true, "1"},
		"another's":      {drop("k", claim.DropParams{Owner: "me"}), false, "CLAIM_FOREIGN"},
		"freed":          {drop("k", claim.DropParams{Owner: "another"}), false, "true"},
		"freed too late": {drop("k", claim.DropParams{Owner: "another"}), true, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			if _, err := d.engines[1].Do(context.Background(),
				submission(flow.Claim(use(by("another"), "k", time.Hour, owner("another"))))); err != nil {
				t.Fatal(err)
			}
			if c.over {
				d.age(2 * time.Hour)
			}
			d.want(ended(d.all(c.command)[0]), c.want)
			for _, counter := range []string{pgtest.FailedAttempts, "ledgerd_commit_attempts_total/conflicted"} {
				if n := d.count(counter); n != 0 {
					t.Errorf("%s is %v", counter, n)
				}
			}
		})
	}
}

func TestCleanersSkipLockedRows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, key := range []string{"a", "b"} {
		d.use(use(caller, key, time.Minute))
	}
	d.age(time.Hour)
	tx, err := d.super.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(context.Background(), "select from claim_keys where key = 'a' for update"); err != nil {
		t.Fatal(err)
	}
	if deleted := cleanAll(t, d.app); deleted != 1 {
		t.Errorf("deleted %d", deleted)
	}
}

// A refused use writes nothing and waits for no disk flush.
func TestRefusedUsesCommitNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.use(use(caller, "k", time.Hour, owner("a"))), "1")
	d.want(d.use(use(caller, "fact", 0, owner("a"))), "1")
	before := d.text("select count(*)::text from commit_batches")
	d.want(d.use(use(caller, "k", time.Hour, firstOnly)), "KEY_CLAIMED")
	d.want(d.use(use(caller, "fact", 0, owner("a"))), "1 existed")
	d.want(ended(d.all(drop("nothing", claim.DropParams{Owner: "a"}))[0]), "false")
	d.want(d.text("select count(*)::text from commit_batches"), before)
}

// Within one process, batches that share a key wait for each other in memory instead of colliding in the
// database.
func TestBatchesOfOneServerNeverConflict(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.engines[1] = d.engines[0]
	for round := range 10 {
		if ends := d.together(100, func(int) flow.Command {
			return flow.Claim(use(caller, fmt.Sprint("k", round),
				time.Hour, firstOnly))
		}); ends["1"] != 1 {
			t.Errorf("ended %v", ends)
		}
	}
	for _, counter := range []string{pgtest.FailedAttempts, "ledgerd_commit_attempts_total/conflicted"} {
		if n := d.count(counter); n != 0 {
			t.Errorf("%s is %v", counter, n)
		}
	}
}
