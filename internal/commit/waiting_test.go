package commit

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// submitUntil submits a job whose caller waits without a deadline of its own.
func (e *toyEngine) submitUntil(s Submission[*toyTx], deadline time.Time) (*job[*toyTx], *waiter) {
	j, wait := new(job[*toyTx]), newWaiter(1)
	j.start(s, wait, deadline)
	e.submit([]*job[*toyTx]{j})
	return j, wait
}

func (e *toyEngine) attempts(end ending) float64 {
	return testutil.ToFloat64(e.Engine.metrics.attempts[end])
}

func (b *blockedJobs[T]) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.found) + len(b.untried)
}

// Very many commands wait for one row, and each round tries few of them. The others are answered at their deadlines,
// and abandoned ones are dropped, while more commands arrive.
func TestEveryBlockedCommandIsAnsweredAtItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(func(c *Config[*toyTx]) { c.Limits = Limits{BatchRows: 30, Rows: 100_000, Bytes: 1 << 30} })
	end := w.holder("select from toy_counters where id = 'c0' for update")
	for range 300 {
		e.submitUntil(submission(add("c0", 1)), time.Now().Add(time.Minute))
	}
	var left []<-chan answer
	for range 200 {
		left = append(left, e.start(within(t, 3*time.Second), submission(add("c0", 1))))
	}
	late, wait := e.submitUntil(submission(add("c0", 1)), time.Now().Add(3*time.Second))
	eventually(t, "all are blocked", func() bool { return e.blocked.waiting() >= 490 })
	for _, c := range left {
		<-c
	}
	answered, rounds := func() bool { return late.state.Load() == finished }, e.attempts(blocked)
	eventually(t, "the late one is answered", func() bool {
		e.submitUntil(submission(add("c0", 1)), time.Now().Add(time.Minute))
		return answered() || e.attempts(blocked) > rounds+100
	})
	if !answered() {
		t.Error("no answer, after 100 attempts")
	}
	eventually(t, "those that left are forgotten", func() bool {
		return e.queue.depth() >= 3*e.blocked.waiting() || e.attempts(blocked) > rounds+200
	})
	if n := e.blocked.waiting(); 3*n > e.queue.depth() {
		t.Errorf("%d commands are kept, for callers of %d", n, e.queue.depth()/3)
	}
	end()
	<-wait.done
}

// One row is held throughout. Another row is held, released and held again: the engine soon marks it as locked again.
func TestARowIsHeldAgain(t *testing.T) {
	t.Parallel()
	const n = 20
	w := newWorld(t, n)
	e := w.engine()
	ctx := within(t, time.Minute)
	end := w.holder("select from toy_counters where id = 'c0' for update")
	calls := []<-chan answer{e.start(ctx, submission(add("c0", 1)))}
	again := w.holder("select from toy_counters where id = 'c1' for update")
	once := e.start(ctx, submission(add("c1", 1)))
	eventually(t, "both are blocked", func() bool { return e.blocked.waiting() == 2 })
	again()
	if a := <-once; a.err != nil {
		t.Fatal(a.err)
	}
	again = w.holder("select from toy_counters where id = 'c1' for update")
	met := 0.0
	for round := range 8 {
		before := e.attempts(conflicted)
		for i := range n {
			calls = append(calls, e.start(ctx, submission(add("c1", 1).named(fmt.Sprint(round, i)))))
			if _, err := e.Do(ctx, submission(add(fmt.Sprint("c", 2+i%(n-2)), 1))); err != nil {
				t.Fatal(err)
			}
		}
		if met = e.attempts(conflicted) - before; met <= 2 {
			break
		}
	}
	if met > 2 {
		t.Errorf("of the last %d calls %v met the held row", n, met)
	}
	again()
	end()
	for _, c := range calls {
		if a := <-c; a.err != nil {
			t.Error(a.err)
		}
	}
}

// Callers with short deadlines need a held row again and again. The row stays marked as locked between their calls, so
// few batches wait for it.
func TestCallersWithLittleTimeDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c0' for update")
	var stop atomic.Bool
	done := make(chan map[string]int, 1)
	go func() {
		done <- each(8, func(int) (err error) {
			for !stop.Load() {
				_, err = e.Do(within(t, 200*time.Millisecond), submission(add("c0", 1)))
			}
			return err
		})
	}()
	for range 100 {
		if _, err := e.Do(within(t, time.Minute), submission(add("c1", 1))); err != nil {
			t.Error(err)
		}
	}
	if n := e.attempts(conflicted); n > 10 {
		t.Errorf("%v batches met the held row", n)
	}
	stop.Store(true)
	<-done
	end()
}

// A writer that ends a long search sets the remaining commands aside for the retries, but no command of another tenant.
func TestASearchForManyHeldRowsSetsNoOtherTenantAside(t *testing.T) {
	t.Parallel()
	const n = 200
	w := newWorld(t, n)
	w.exec("insert into toy_counters (tenant_id, id, n) values (2, 'x', 0)")
	e := w.engine(func(c *Config[*toyTx]) { c.Writers = 1 })
	end := w.holder("select from toy_counters where tenant_id = 1 for update")
	queued, first := make(chan struct{}), &toyAdd{tenant: 2, counter: "x", delta: 1}
	first.onApply = func(*toyTx) error { <-queued; return nil } // meanwhile all other calls arrive, to be one batch
	calls := []<-chan answer{e.start(within(t, time.Minute), submission(first))}
	eventually(t, "the writer is busy", func() bool { return e.queue.depth() > 0 && e.health.oldest() > 0 })
	for i := range n {
		calls = append(calls, e.start(within(t, 2*time.Minute), submission(add(fmt.Sprint("c", i), 1))))
	}
	eventually(t, "all are queued", func() bool { return e.queue.depth() == 3*(n+1) })
	other := submission(&toyAdd{tenant: 2, counter: "x", delta: 1})
	other.Tenant = 2
	j, wait := e.submitUntil(other, time.Now().Add(time.Minute))
	close(queued)
	<-wait.done
	if j.err != nil || j.turn != 0 {
		t.Errorf("set aside as %d, error %v", j.turn, j.err)
	}
	end()
	for _, c := range calls {
		if a := <-c; a.err != nil {
			t.Error(a.err)
		}
	}
}

// A statement that must be prepared, because it is new on its connection or was dropped after an error, waits no longer
// for a locked table than a prepared one.
func TestALockedTableDelaysOnlyCommandsThatNeedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.books = newLockingToyTx
	e := w.engine()
	for range 4 { // the connections know the statement
		if _, err := e.Do(within(t, time.Minute), submission(add("c0", 1))); err != nil {
			t.Fatal(err)
		}
	}
	end := w.holder("lock table toy_counters in exclusive mode") // which blocks the locking of rows alone
	blocked := e.start(within(t, 5*time.Second), submission(add("c0", 1)))
	for i := range 20 {
		if _, err := e.Do(within(t, time.Minute), submission((&toyAdd{tenant: 1}).named(fmt.Sprint(i)))); err != nil {
			t.Error(err)
		}
	}
	if a := <-blocked; reason(a.err) != "ROWS_LOCKED" && reason(a.err) != "OUTCOME_UNKNOWN" {
		t.Errorf("answered %v", a.err) // on a slow machine the deadline may pass during an attempt
	}
	if n := e.attempts(lost); n > 0 {
		t.Errorf("%v connections were lost", n)
	}
	end()
}

// A command whose deadline would pass during the next lock wait is answered before that wait, so its outcome is known.
func TestNoWaitBeginsThatACommandCannotOutlast(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(func(c *Config[*toyTx]) { c.LockTimeout = 2 * time.Second })
	end := w.holder("select from toy_counters where id = 'c0' for update")
	defer end()
	if _, err := e.Do(within(t, 5*time.Second), submission(add("c0", 1))); reason(err) != "ROWS_LOCKED" {
		t.Error(err)
	}
}
