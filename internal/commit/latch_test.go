package commit

import (
	"sync"
	"testing"
	"time"
)

// In the database the second batch would exceed LockTimeout and be bisected.
func TestBatchesOfOneProcessWaitAtTheLatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(func(c *Config[*toyTx]) { c.LockTimeout = 10 * time.Millisecond })
	applying, goOn := make(chan struct{}), make(chan struct{})
	first := add("c0", 1)
	var once sync.Once
	first.onApply = func(*toyTx) error {
		once.Do(func() { close(applying); <-goOn })
		return nil
	}
	a := e.start(within(t, 20*time.Second), submission(first))
	<-applying
	b := e.start(within(t, 20*time.Second), submission(add("c0", 1)))
	other := e.start(within(t, 20*time.Second), submission(add("c1", 1)))
	eventually(t, "a batch waits at the latch", func() bool {
		if e.latches.entrance.TryLock() {
			e.latches.entrance.Unlock()
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
	if n := e.metric(t, "ledgerd_commit_lock_waits_total"); n != 0 {
		t.Errorf("%v commands were blocked", n)
	}
	if n := w.value("c0"); n != 1_000_002 {
		t.Errorf("the counter is %d", n)
	}
	if n := len(e.latches.shared); n != 0 {
		t.Errorf("%d rows are still latched", n)
	}
}

func acquire(r *latchTable, optimistic bool, shared, owned []uint64) (*latch, []*latch) {
	l := &latch{LatchKeys: LatchKeys{shared, owned}}
	return l, r.acquire(l, optimistic)
}

// A pessimistic batch waits for all batches with a row or name in common, and for no others.
func TestLatchesBlockOnlyBatchesWithACommonRow(t *testing.T) {
	r := newLatchTable()
	a, _ := acquire(r, true, []uint64{1, 2}, nil)
	b, _ := acquire(r, true, []uint64{3}, []uint64{9})
	entered := make(chan *latch)
	go func() {
		s, before := acquire(r, false, []uint64{2}, []uint64{9})
		if len(before) > 0 {
			t.Error("a pessimistic batch has predecessors")
		}
		entered <- s
	}()
	r.publish(a, nil)
	r.publish(b, nil)
	still := func(what string) {
		select {
		case <-entered:
			t.Fatal("acquired while ", what, " was latched")
		case <-time.After(20 * time.Millisecond):
		}
	}
	still("a row, and a name,")
	r.release(b, true)
	still("a row")
	r.release(a, true)
	r.release(<-entered, true)
	if len(r.shared) != 0 || len(r.owned) != 0 {
		t.Errorf("%d rows and %d names are still taken", len(r.shared), len(r.owned))
	}
}

// An optimistic batch waits until its predecessors are published, and learns which they are.
func TestLatchesLetBatchesOverlapPublishedOnes(t *testing.T) {
	r := newLatchTable()
	a, _ := acquire(r, true, []uint64{1, 2}, nil)
	b, _ := acquire(r, true, []uint64{3}, nil)
	r.publish(a, nil)
	type result struct {
		s      *latch
		before []*latch
	}
	entered := make(chan result)
	go func() {
		s, before := acquire(r, true, []uint64{2, 3, 1}, []uint64{9})
		entered <- result{s, before}
	}()
	select {
	case <-entered:
		t.Fatal("acquired before the other batch was published")
	case <-time.After(20 * time.Millisecond):
	}
	r.publish(b, nil)
	c := <-entered
	if len(c.before) != 2 || c.before[0] == c.before[1] {
		t.Errorf("overlaps %d batches", len(c.before))
	}
	r.release(a, true)
	waited := make(chan bool)
	go func() { waited <- r.await(c.before) }()
	select {
	case <-waited:
		t.Fatal("did not wait for the other batch")
	case <-time.After(20 * time.Millisecond):
	}
	r.release(b, false)
	if <-waited {
		t.Error("a failed batch counts as committed")
	}
	if r.shared[1] != c.s {
		t.Error("release released a row that another batch had taken over")
	}
	r.release(c.s, false)
	if len(r.shared) != 0 || len(r.owned) != 0 {
		t.Errorf("%d rows and %d names are still taken", len(r.shared), len(r.owned))
	}
}

func TestBatchesAcquireInTheOrderOfTheirSequenceNumbers(t *testing.T) {
	t.Parallel()
	r := newLatchTable()
	entered := make(chan *latch, 2)
	second, fourth := &latch{seq: 2}, &latch{seq: 4}
	for _, s := range []*latch{fourth, second} {
		go func() {
			r.acquire(s, false)
			entered <- s
		}()
	}
	r.pass(3) // its jobs were abandoned
	r.pass(3) // a second pass is allowed
	select {
	case s := <-entered:
		t.Fatalf("%d acquired before 1", s.seq)
	case <-time.After(20 * time.Millisecond):
	}
	r.acquire(&latch{seq: 1}, false)
	<-entered
	<-entered
	if second.order != 2 || fourth.order != 3 {
		t.Errorf("batch 2 acquired as number %d, batch 4 as number %d", second.order, fourth.order)
	}
	if len(r.passed) != 0 {
		t.Errorf("passed numbers are left: %v", r.passed)
	}
}

// A batch that hangs before its latch, on a silent connection, blocks the others only for maxSeqWait.
func TestWaitForALowerSequenceNumberIsBounded(t *testing.T) {
	t.Parallel()
	r := newLatchTable()
	acquired := make(chan struct{})
	take := func(seq int64) {
		l := &latch{seq: seq}
		r.acquire(l, true)
		r.release(l, true)
		acquired <- struct{}{}
	}
	go take(2)
	select {
	case <-acquired:
	case <-time.After(30 * time.Second):
		t.Fatal("the wait for the first batch, which hangs, does not end")
	}
	r.pass(1)
	if r.lowest != 3 {
		t.Errorf("the next number is %d", r.lowest)
	}
}
