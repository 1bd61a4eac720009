package stock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

var allStrategies = []string{stock.Batched, stock.Atomic, stock.Optimistic, stock.Pessimistic, stock.Advisory}

func direct(strategy string, c *stock.ReserveCommand) *stock.ReserveCommand {
	c.Strategy = strategy
	return c
}

// by gives a command a strategy, with attempts enough for a test.
func by(strategy string, c *stock.ReserveCommand) flow.Submission {
	w := submission(direct(strategy, c))
	if strategy != stock.Batched {
		w.Direct = &commit.Direct{Attempts: 500, Pause: time.Millisecond}
	}
	return w
}

// race runs n concurrent submissions, alternating between engines, and counts equal outcomes.
func (s *shop) race(n int, next func(i int) flow.Submission) map[string]int {
	s.Helper()
	var wg sync.WaitGroup
	ends := make([]string, n)
	start := make(chan struct{})
	for i := range n {
		w := next(i)
		wg.Go(func() {
			<-start
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			out, err := s.engines[i%2].Do(ctx, w)
			ends[i] = ended(commit.Result{Outcome: out, Err: err})
		})
	}
	close(start)
	wg.Wait()
	counts := map[string]int{}
	for _, end := range ends {
		counts[end]++
	}
	s.noDefects()
	return counts
}

// Callers of each strategy, and of all of them mixed, want the last units on two servers: each unit is sold once, with
// any number of segments, and the other callers are refused.
func TestTheLastUnitsAreSoldOnceByEveryStrategy(t *testing.T) {
	t.Parallel()
	for _, strategy := range append(slices.Clone(allStrategies), "mixed") {
		for _, segments := range []int{1, 10} {
			t.Run(fmt.Sprint(strategy, " ", segments), func(t *testing.T) {
				t.Parallel()
				s := newShop(t)
				s.all(put(t.Name(), segments), restock(t.Name(), "r", 10))
				const callers = 80
				ends := s.race(callers, func(i int) flow.Submission {
					c := deduct(t.Name(), fmt.Sprint("n", i), 1)
					if i%3 == 0 {
						c = reserve(t.Name(), fmt.Sprint("n", i), 1)
					}
					if strategy == "mixed" {
						return by(allStrategies[i%len(allStrategies)], c)
					}
					return by(strategy, c)
				})
				if won := callers - ends["OUT_OF_STOCK available=0"]; won != 10 || len(ends) != 11 {
					t.Errorf("%d won: %v", won, ends)
				}
				if got := s.text("select concat_ws(' ', sum(available), sum(reserved + sold), sum(stocked)) " +
					"from stock_items"); got != "0 10 10" {
					t.Errorf("counts %s", got)
				}
			})
		}
	}
}

// Buyers of several units empty the segments of an item, each call beginning with its own segment: none is refused
// while the item has enough.
func TestNoStrategyIsFalselySoldOut(t *testing.T) {
	t.Parallel()
	for _, strategy := range allStrategies[1:] {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			const units = 40
			for _, item := range []string{"whole", "single"} { // one call for all units, and one call for each
				s.all(put(item, 8), restock(item, "r", 8))
			}
			if got := s.do(by(strategy, deduct("whole", "all", 8))); got != "all: 8 sold" {
				t.Errorf("all units of eight segments: %s", got)
			}
			for i := range 8 {
				if got := s.do(by(strategy, deduct("single", fmt.Sprint("s", i), 1))); got != fmt.Sprintf("s%d: 1 sold",
					i) {
					t.Errorf("unit %d of eight segments: %s", i+1, got)
				}
			}
			s.all(put(t.Name(), 8), restock(t.Name(), "r", units))
			ends := s.race(100, func(i int) flow.Submission {
				return by(strategy, deduct(t.Name(), fmt.Sprint("n", i), int64(1+i%4)))
			})
			for end, n := range ends {
				var available int64
				if _, err := fmt.Sscanf(end, "OUT_OF_STOCK available=%d", &available); err == nil && available > 3 {
					t.Errorf("%d callers were refused while %d were available", n, available)
				}
			}
			if got := s.text("select concat_ws(' ', sum(available), sum(sold)) " +
				"from stock_items"); got != fmt.Sprint(0, " ", units+16) {
				t.Errorf("counts %s: %v", got, ends)
			}
		})
	}
}

// One number is one reservation, whatever the strategies of its calls. After a cancellation under that number, the
// reservation is refused.
func TestANumberIsOneReservationByAnyStrategy(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put(t.Name(), 4), restock(t.Name(), "r", 1000), cancel(t.Name(), "fenced"))
	for round := range 10 {
		no := fmt.Sprint("n", round)
		ends := s.race(25, func(i int) flow.Submission {
			return by(allStrategies[i%len(allStrategies)], reserve(t.Name(), no, 2))
		})
		if ends[no+": 2 reserved"] != 1 || ends[no+": 2 reserved, existed"] != 24 {
			t.Fatalf("round %d: %v", round, ends)
		}
	}
	for _, strategy := range allStrategies {
		if got := s.do(by(strategy, reserve(t.Name(), "fenced", 2))); got != "RESERVATION_ENDED state=cancelled" {
			t.Errorf("%s: %s", strategy, got)
		}
		if got := s.do(by(strategy, reserve(t.Name(), "n1", 3))); got != "RESERVATION_EXISTS_DIFFERENT "+
			"differs=quantity" {
			t.Errorf("%s: %s", strategy, got)
		}
		if got := s.do(by(strategy, reserve("coffee", "n1", 3))); got != "ITEM_NOT_FOUND" {
			t.Errorf("%s: %s", strategy, got)
		}
	}
}

func (s *shop) do(w flow.Submission) string {
	s.Helper()
	out, err := s.engines[0].Do(context.Background(), w)
	return ended(commit.Result{Outcome: out, Err: err})
}

// Due reservations expire before a call of any strategy is refused.
func TestEveryStrategyExpiresWhatIsDue(t *testing.T) {
	t.Parallel()
	for _, strategy := range allStrategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			clock := pgtest.ShiftClock(t, db)
			s := shopOn(t, db)
			s.all(put(t.Name(), 3), restock(t.Name(), "r", 6))
			for i := range 6 {
				if got := s.do(by(strategy, reserve(t.Name(), fmt.Sprint("n", i),
					1))); got != fmt.Sprintf("n%d: 1 reserved", i) {
					t.Fatal(got)
				}
			}
			if got := s.do(by(strategy, deduct(t.Name(), "x", 1))); got != "OUT_OF_STOCK available=0" {
				t.Fatal(got)
			}
			clock.Set(t, 16*time.Minute)
			if got := s.do(by(strategy, deduct(t.Name(), "x", 5))); got != "x: 5 sold" {
				t.Error(got)
			}
			s.wantCounts(t.Name(), "1/0/5/6")
		})
	}
}

// A call whose row stays locked ends with ROWS_LOCKED, and nothing is recorded. A refusal is recorded under the call's
// request key.
func TestDirectCallsUseKeysAndReportLocks(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 10), put("locked", 0), restock("locked", "r", 10))
	tx, err := s.super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from stock_items where item = 'locked' for update"); err != nil {
		t.Fatal(err)
	}
	var refused sync.WaitGroup
	for _, strategy := range allStrategies[1:] {
		refused.Go(func() {
			if got := s.do(onLocked(strategy)); got != "ROWS_LOCKED" {
				t.Errorf("%s, on a locked row: %s", strategy, got)
			}
		})
	}
	refused.Wait()
	if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, strategy := range allStrategies[1:] {
		if got := s.do(onLocked(strategy)); got != strategy+": 1 sold" { // the key has not recorded ROWS_LOCKED
			t.Errorf("%s, when the row is free: %s", strategy, got)
		}
		key := func(c *stock.ReserveCommand) flow.Submission { return keyed(by(strategy, c), strategy) }
		if got := s.do(key(deduct("tea", strategy, 100))); got != "OUT_OF_STOCK available=10" {
			t.Errorf("%s: %s", strategy, got)
		}
		s.all(restock("tea", strategy, 100))
		out, err := s.engines[1].Do(t.Context(), key(deduct("tea", strategy, 100)))
		if !out.Replayed || err == nil {
			t.Errorf("%s: the repeat of a refusal ended with %v, %v", strategy, out, err)
		}
		s.all(adjust("tea", "back "+strategy, -100, "test"))
	}
}

// keyed gives a submission a request key.
func keyed(w flow.Submission, key string) flow.Submission {
	w.Key = &commit.Key{Principal: "p", Operation: "stock.deduct", Key: key, Life: time.Hour,
		Fingerprint: make([]byte, commit.FingerprintSize)}
	w.Encode = func(any) ([]byte, error) { return []byte("made"), nil }
	return w
}

// onLocked sells a unit of a locked item under a key, with one try.
func onLocked(strategy string) flow.Submission {
	w := keyed(by(strategy, deduct("locked", strategy, 1)), "locked-"+strategy)
	w.Direct.Attempts = 1
	return w
}

// Each strategy waits at its own statement. Another session locks the row of the item, changes it while the sale waits,
// and commits. The sale has one attempt.
func TestEachStrategyWaitsAtItsOwnStatement(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]string{
		stock.Atomic:      "ItemTake, n: 1 sold",               // its condition is checked on the changed row
		stock.Optimistic:  "ItemUpdate, ROWS_LOCKED",           // the row is not as it was read
		stock.Pessimistic: "ItemLock, n: 1 sold",               // it reads after it has the row
		stock.Advisory:    "ItemUpdate, advisory, ROWS_LOCKED", // the lock excludes other calls, not psql
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.all(put(t.Name(), 1), restock(t.Name(), "r", 5))
			held, err := s.super.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer held.Rollback(context.Background()) //nolint:errcheck // it is committed
			const change = "update stock_items set next_expiry_at = next_expiry_at"
			if _, err := held.Exec(t.Context(), change); err != nil {
				t.Fatal(err)
			}
			w := submission(direct(strategy, deduct(t.Name(), "n", 1)))
			w.Direct = &commit.Direct{Attempts: 1, Pause: time.Millisecond}
			done := make(chan string, 1)
			go func() { done <- s.do(w) }()
			got, before := "", "-" // the view reads the query before the wait: two readings must agree
			for begin := time.Now(); (got == "" || got != before) && time.Since(begin) < 10*time.Second; {
				before = got
				got = s.text(`select coalesce(min(substring(a.query from '-- name: (\w+)')
						|| case when l.pid is not null then ', advisory' else '' end), '')
					from pg_stat_activity a
					left join pg_locks l on l.pid = a.pid and l.locktype = 'advisory' and l.granted
					where a.datname = current_database() and a.wait_event_type = 'Lock'`)
			}
			if err := held.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got += ", " + <-done; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// A call with the strategy advisory waits until no other transaction has the advisory lock of its item.
func TestAdvisoryCallsWaitForTheLock(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put(t.Name(), 1), restock(t.Name(), "r", 5))
	held, err := s.super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.Background()) //nolint:errcheck // it is committed
	if _, err := held.Exec(t.Context(), "select pg_advisory_xact_lock(77017, hashtext(concat_ws('/', $1::integer, "+
		"0, $2::text)))",
		caller.Tenant, t.Name()); err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() { done <- s.do(by(stock.Advisory, deduct(t.Name(), "n", 1))) }()
	for s.text("select count(*)::text from pg_locks where locktype = 'advisory' and classid = 77017 "+
		"and not granted") != "1" {
		select {
		case got := <-done:
			t.Fatalf("%s, without a wait", got)
		default:
		}
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != "n: 1 sold" {
		t.Error(got)
	}
}
