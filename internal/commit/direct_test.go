package commit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// roomy gives an engine enough connections for direct commands.
func (w *world) roomy() func(*Config[*toyTx]) {
	return func(c *Config[*toyTx]) {
		pool, err := pg.Open(w.t.Context(), w.dsn, 4+MaxDirect)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(pool.Close)
		c.Pool = pool
	}
}

func directly(w Submission[*toyTx]) Submission[*toyTx] {
	w.Direct = &Direct{Attempts: 3, Pause: time.Millisecond}
	return w
}

// Waiting direct commands of three tenants delay neither direct commands of another tenant nor batches.
func TestDirectCommandsLeaveRoomForOtherTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.exec("insert into toy_counters (tenant_id, id, n) select n, 'c0', 0 from generate_series(2, 4) n")
	e := w.engine(w.roomy())
	end := w.holder("select from toy_counters where id = 'c0' and tenant_id < 4 for update")
	ctx := within(t, time.Minute)
	var waiting []<-chan answer
	for n := range 60 {
		waiting = append(waiting, e.start(ctx, directly(ofTenant(int32(1+n%3)))))
	}
	eventually(t, "five of each tenant wait", func() bool {
		return w.int("select count(*) from pg_stat_activity where datname = current_database() "+
			"and wait_event_type = 'Lock'") ==
			3*maxTenantDirect
	})
	if _, err := e.Do(within(t, 30*time.Second), directly(ofTenant(4))); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := e.Do(within(t, 30*time.Second), submission(add("c1", 1))); err != nil {
		t.Errorf("a batch: %v", err)
	}
	end()
	for _, a := range waiting {
		if got := <-a; got.err != nil {
			t.Errorf("after the release: %v", got.err)
		}
	}
	if n := w.int("select sum(n) from toy_counters where id = 'c0'"); n != 1_000_061 {
		t.Errorf("sum %d", n)
	}
}

func ofTenant(tenant int32) Submission[*toyTx] {
	s := submission(&toyAdd{tenant: tenant, counter: "c0", delta: 1})
	s.Tenant = tenant
	return s
}

// Direct commands behind a row that is held for long leave the server ready, and do not change how long batches wait.
func TestALockedRowLeavesTheServerReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(w.roomy())
	end := w.holder("select from toy_counters where id = 'c0' for update")
	direct := directly(submission(add("c0", 1)))
	direct.Direct.Attempts = 5
	waiting := e.start(within(t, time.Minute), direct)
	start := time.Now()
	eventually(t, "a batch would be stuck", func() bool {
		if err := e.Ready(); err != nil {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		return time.Since(start) > stuckAfter+time.Second
	})
	end()
	if got := <-waiting; got.err != nil {
		t.Error(got.err)
	}
	if wait := e.lockTimeout(false); wait > 200*time.Millisecond {
		t.Errorf("batches wait %v for a lock", wait)
	}
}

// Calls that have ended leave no job in the queue for slots.
func TestAbandonedDirectCommandsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	end := w.holder("select from toy_counters where id = 'c0' for update")
	got := each(200, func(int) error {
		_, err := e.Do(within(t, 300*time.Millisecond), directly(submission(add("c0", 1))))
		return err
	})
	if got["ok"] > 0 {
		t.Error(got)
	}
	end()
	eventually(t, "no command waits", func() bool {
		e.slots.mu.Lock()
		defer e.slots.mu.Unlock()
		return len(e.slots.tenants) == 0 && len(e.slots.turns) == 0 && e.slots.used == 0
	})
}

// A direct command changes a row that a batch has read: the batch runs again, and other batches keep overlapping.
func TestDirectCommandsStartNoBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(patient, w.roomy())
	pass, open := w.gate()
	results := make(chan []Result, 1)
	go func() {
		results <- e.DoAll(within(t, 20*time.Second),
			[]Submission[*toyTx]{submission(add("c0", 1)), submission(gated(pass, add("c1", 1)))})
	}()
	w.waiting(1)
	if _, err := e.Do(within(t, 20*time.Second), directly(submission(add("c0", 1)))); err != nil {
		t.Error(err)
	}
	open()
	for _, r := range <-results {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
	wantValue(t, w, "c0", 1_000_002)
	e.wantMetric(t, "attempts_total/conflicted", 1)
	if !e.backoff.over() {
		t.Error("the backoff has started")
	}
}

// A direct command whose lock is never released is refused after its last attempt, and has no effect.
func TestDirectCommandTriesAsOftenAsItSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	tries := 0
	c := add("c0", 1)
	c.onApply = func(*toyTx) error { tries++; return ErrMoreRows }
	s := directly(submission(c))
	s.Rows = 1
	_, err := e.Do(within(t, 20*time.Second), s)
	if !fault.Is(err, fault.RowsLocked) || tries != maxMore+1 {
		t.Errorf("%d tries, then %v", tries, err)
	}
	end := w.holder("select from toy_counters where id = 'c0' for update")
	defer end()
	s = directly(submission(add("c0", 1)))
	s.Direct.Attempts = 2
	start := time.Now()
	if _, err = e.Do(within(t, time.Minute), s); !fault.Is(err, fault.RowsLocked) {
		t.Errorf("behind a lock: %v", err)
	}
	e.wantMetric(t, "attempts_total/blocked", 2)
	if took := time.Since(start); took < 2*maxDirectWait {
		t.Errorf("two tries took %v", took)
	}
	if n := w.value("c0"); n != 1_000_000 {
		t.Errorf("value %d", n)
	}
}

// A direct command whose caller has cancelled the call is not retried.
func TestDirectCommandOfACancelledCallIsNotRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	end := w.holder("select from toy_counters where id = 'c0' for update")
	ctx, leave := context.WithCancel(within(t, time.Minute))
	defer leave()
	s := directly(submission(add("c0", 1)))
	s.Direct.Attempts = 100
	left := e.start(ctx, s)
	w.waiting(1)
	leave()
	if got := <-left; !fault.Is(got.err, fault.OutcomeUnknown) {
		t.Errorf("the caller got %v", got.err)
	}
	eventually(t, "the command's only try ends", func() bool { return e.metric(t, "attempts_total/blocked") > 0 })
	next := directly(submission(add("c0", 1)))
	next.Direct.Pause = 100 * time.Millisecond // a second attempt of the first command would run earlier
	answer := e.start(within(t, time.Minute), next)
	w.waiting(1)
	end()
	if got := <-answer; got.err != nil {
		t.Error(got.err)
	}
	wantValue(t, w, "c0", 1_000_001)
}

// The same key at the same time runs once, whether the commands are direct or not, and its record answers the others.
func TestDirectCommandsWithOneKeyRunOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	got := each(60, func(i int) error {
		s := keyed(fmt.Sprint("k", i%3), add("c0", 1))
		if i%2 == 0 {
			s = directly(s)
		}
		_, err := e.Do(within(t, 30*time.Second), s)
		return err
	})
	if got["ok"] != 60 {
		t.Error(got)
	}
	if n := w.value("c0"); n != 1_000_003 {
		t.Errorf("value %d", n)
	}
}

// The outcome of a direct command whose COMMIT got no answer is found, as that of a batch is.
func TestLostResponseOfADirectCommitIsResolved(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint("done ", done), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := pgtest.NewProxy(t, w.dsn)
			e := w.engine(w.through(p))
			if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
				t.Fatal(err)
			}
			if done {
				p.Tap(pgtest.Answers, once("COMMIT\x00"))
			} else {
				p.Tap(pgtest.Requests, once("through-the-proxy"))
			}
			out, err := e.Do(within(t, 20*time.Second), directly(submission(add("c0", 10))))
			if err != nil || out.Answer != int64(1_000_011) || w.value("c0") != 1_000_011 {
				t.Errorf("%+v, %v; value %d", out, err, w.value("c0"))
			}
			if n := e.metric(t, "unknown_outcomes_total"); n != 1 {
				t.Errorf("%v unknown outcomes", n)
			}
		})
	}
}

// A direct command that loses every race makes all its attempts. The pauses between them are partly random, so that
// callers that collided once do not collide again and again.
func TestTriesOfADirectCommandAreSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.exec(`create function race() returns trigger language plpgsql as $$ begin raise exception 'race' using
		errcode = '40001'; end $$;
		create trigger race before update on toy_counters for each row execute function race();`)
	e := w.engine(w.roomy())
	const pause = 100 * time.Millisecond
	var tries []time.Time
	command := add("c0", 1)
	command.onApply = func(*toyTx) error { tries = append(tries, time.Now()); return nil }
	s := submission(command)
	s.Direct = &Direct{Attempts: 9, Pause: pause}
	if _, err := e.Do(within(t, time.Minute), s); reason(err) != "ROWS_LOCKED" || len(tries) != 9 {
		t.Fatalf("%d attempts, %v", len(tries), err)
	}
	least, most := time.Hour, time.Duration(0)
	for i := range tries[1:] {
		gap := tries[i+1].Sub(tries[i])
		least, most = min(least, gap), max(most, gap)
	}
	if least < pause || most-least < pause/5 {
		t.Errorf("pauses of %v to %v", least, most)
	}
}
