package commit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// notBefore returns ErrLater for the given number of calls.
func notBefore(times int) func(*toyTx) error {
	return func(*toyTx) error {
		if times--; times >= 0 {
			return ErrLater
		}
		return nil
	}
}

func TestDeferredCommandRunsInALaterBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	e := w.engine()
	runs := 0
	beside := add("c0", 1)
	beside.onApply = func(*toyTx) error { runs++; return nil }
	plain, guarded := add("c0", 10), &toyGuarded{toyAdd: *add("c0", 100), tries: "c1"}
	counted := &toyCounted{toyAdd: *add("c0", 1000), tries: "c2"}
	plain.onApply, guarded.onApply, counted.onApply = notBefore(3), notBefore(2), notBefore(2)
	submissions := []Submission[*toyTx]{keyed("plain", plain), submission(beside), keyed("guarded", guarded)}
	if _, err := e.Do(within(t, 10*time.Second), keyed("counted", counted)); err != nil {
		t.Error(err)
	}
	for i, r := range e.DoAll(within(t, 10*time.Second), submissions) {
		if r.Err != nil {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
	if c, g, n := w.value("c0"), w.value("c1"), w.value("c2"); c != 1_001_111 || g != 1_000_001 || n != 1_000_001 {
		t.Errorf("the counter is %d, the guard's counter %d, the count %d", c, g, n)
	}
	if runs != 1 {
		t.Errorf("the command beside them ran %d times", runs)
	}
	for i, r := range e.DoAll(within(t, 10*time.Second), []Submission[*toyTx]{submissions[0], submissions[2]}) {
		if r.Err != nil || !r.Outcome.Replayed {
			t.Errorf("%d again: %+v", i, r)
		}
	}
}

func TestDryRunIsNotDeferred(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	late := add("c0", 1)
	late.onApply = notBefore(1_000_000)
	dry := submission(late)
	dry.DryRun = true
	if _, err := e.Do(within(t, 10*time.Second), dry); reason(err) != "ROWS_LOCKED" {
		t.Errorf("ended %v", err)
	}
}

func TestCancelledDeferredCallMayBeRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	ctx, cancel := context.WithCancel(within(t, 10*time.Second))
	tries := 0
	late := add("c0", 1)
	late.onApply = func(*toyTx) error {
		if tries++; tries == 3 {
			cancel()
		}
		if tries < 5 {
			return ErrLater
		}
		return nil
	}
	_, err := e.Do(ctx, keyed("k", late))
	if r := reason(err); r != "NOT_RUN" && r != "OUTCOME_UNKNOWN" {
		t.Errorf("ended %v", err)
	}
	if _, err := e.Do(within(t, 10*time.Second), keyed("k", add("c0", 1))); err != nil || w.value("c0") != 1_000_001 {
		t.Errorf("%v; the counter is %d", err, w.value("c0"))
	}
}

// A command that depends on a row held by another transaction is retried at intervals, while other commands commit. It
// ends with ROWS_LOCKED at its deadline. A dry run is retried without pauses, and ends sooner.
func TestHeldCommandsAreTriedAgainUntilTheirDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	e := w.engine()
	var tries atomic.Int64
	held := add("c0", 1)
	held.onApply = func(*toyTx) error {
		if tries.Add(1) < 4 {
			return ErrHeld
		}
		return nil
	}
	for _, direct := range []*Direct{nil, {Attempts: 1}} {
		tries.Store(0)
		first := submission(held)
		first.Direct = direct
		answered := make(chan answer, 1)
		go func() {
			out, err := e.Do(within(t, time.Minute), first)
			answered <- answer{out, err}
		}()
		if _, err := e.Do(within(t, time.Minute), submission(add("c1", 1))); err != nil {
			t.Error(err)
		}
		if a := <-answered; a.err != nil || tries.Load() != 4 {
			t.Errorf("after %d attempts: %v", tries.Load(), a.err)
		}
	}
	if w.value("c0") != 1_000_002 || w.value("c1") != 1_000_002 {
		t.Errorf("the counters are %d and %d", w.value("c0"), w.value("c1"))
	}
	tries.Store(0)
	never := add("c2", 1)
	never.onApply = func(*toyTx) error { tries.Add(1); return ErrHeld }
	if _, err := e.Do(within(t, time.Second), submission(never)); reason(err) != "ROWS_LOCKED" || tries.Load() < 2 ||
		tries.Load() > 60 {
		t.Errorf("after %d attempts: %v", tries.Load(), err)
	}
	dry := submission(never)
	dry.DryRun = true
	if _, err := e.Do(within(t, time.Minute), dry); reason(err) != "ROWS_LOCKED" {
		t.Errorf("dry run: %v", err)
	}
}
