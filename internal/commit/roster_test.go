package commit

import (
	"sync"
	"testing"
	"time"
)

// In the database the second batch would run into LockTimeout, and be taken apart to find who waits.
func TestBatchesOfOneProcessWaitForEachOtherHere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(func(c *Config[*toyBook]) { c.LockTimeout = 10 * time.Millisecond })
	applying, goOn := make(chan struct{}), make(chan struct{})
	first := add("c0", 1)
	var once sync.Once
	first.onApply = func(*toyBook) error {
		once.Do(func() { close(applying); <-goOn })
		return nil
	}
	a := e.start(within(t, 20*time.Second), work(first))
	<-applying
	b := e.start(within(t, 20*time.Second), work(add("c0", 1)))
	other := e.start(within(t, 20*time.Second), work(add("c1", 1)))
	eventually(t, "a batch waits at the roster", func() bool {
		if e.roster.door.TryLock() {
			e.roster.door.Unlock()
			return false
		}
		return true
	})
	close(goOn)
	for _, done := range []<-chan answer{a, b, other} {
		if r := <-done; r.err != nil {
			t.Error(r.err)
		}
	}
	if n := e.metric("ledgerd_commit_lock_waits_total"); n != 0 {
		t.Errorf("%v commands were put aside", n)
	}
	if n := w.value("c0"); n != 1_000_002 {
		t.Errorf("the counter is %d", n)
	}
	if n := len(e.roster.rows); n != 0 {
		t.Errorf("%d rows are still taken", n)
	}
}

// Batches without a row in common pass; one with some waits for all of them.
func TestRosterLetsBatchesWithoutACommonRowPass(t *testing.T) {
	r := newRoster()
	r.enter([]uint64{1, 2})
	r.enter([]uint64{3})
	entered := make(chan struct{})
	go func() {
		r.enter([]uint64{2, 3})
		close(entered)
	}()
	r.leave([]uint64{1, 2})
	select {
	case <-entered:
		t.Fatal("entered while a row was taken")
	case <-time.After(20 * time.Millisecond):
	}
	r.leave([]uint64{3})
	<-entered
	r.leave([]uint64{2, 3})
	if len(r.rows) != 0 {
		t.Errorf("%d rows are still taken", len(r.rows))
	}
}
