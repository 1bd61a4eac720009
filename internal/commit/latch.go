package commit

import (
	"cmp"
	"reflect"
	"slices"
	"sync"
	"time"
)

// latchTable has a latch for every batch that runs in this process, by the hashes of its rows and names. Batches with a
// row or name in common wait for each other here. In the database they would hold a connection in a lock wait, which
// counts against LockTimeout. An optimistic batch (see Optimistic) waits for a batch with a shared row only until that
// batch is applied.
type latchTable struct {
	entrance sync.Mutex // held by the batch that acquires next, against starvation
	mu       sync.Mutex
	changed  sync.Cond
	shared   map[uint64]*latch // the last batch with the row
	owned    map[uint64]*latch
	acquired int64          // latches so far
	lowest   int64          // the lowest sequence number that has not passed
	passed   map[int64]bool // higher ones that have passed
}

// LatchKeys gathers the hashes of a batch's rows and names. Equal rows and names have equal hashes throughout the
// process.
type LatchKeys struct{ shared, owned []uint64 }

// Share adds a row that an optimistic batch may take over from its predecessor.
func (l *LatchKeys) Share(hash uint64) { l.shared = append(l.shared, hash) }

// Own adds a row or name that only one batch at a time works with.
func (l *LatchKeys) Own(hash uint64) { l.owned = append(l.owned, hash) }

// latch records the rows and names of one batch.
type latch struct {
	LatchKeys
	seq          int64         // see mode
	participants []Participant // set by publish; they do not change afterwards
	writer       *RowWriter    // allocated separately: successors keep it longer than the latch

	// Guarded by latchTable.mu.
	order     int64 // in the order of acquiring
	published bool
	ended     bool
	failed    bool
}

// participant returns the batch's participant of p's type, or nil if the batch has none.
func (l *latch) participant(p Participant) Participant {
	for _, other := range l.participants {
		if reflect.TypeOf(other) == reflect.TypeOf(p) {
			return other
		}
	}
	return nil
}

func newLatchTable() *latchTable {
	t := &latchTable{shared: make(map[uint64]*latch), owned: make(map[uint64]*latch), lowest: 1,
		passed: make(map[int64]bool)}
	t.changed.L = &t.mu
	return t
}

// acquire waits until no other batch has one of the rows or names, then takes all of them. An optimistic batch may
// share rows with published batches. These are its predecessors, returned in the order in which they acquired. Batches
// acquire in the order of their sequence numbers, so that commands with a row in common take effect in order of
// arrival. A rerun has no sequence number.
func (t *latchTable) acquire(l *latch, optimistic bool) (predecessors []*latch) {
	defer t.pass(l.seq)
	t.awaitSeq(l.seq)
	t.entrance.Lock()
	defer t.entrance.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var free bool
		if predecessors, free = t.findPredecessors(l, optimistic); free {
			break
		}
		t.changed.Wait()
	}
	for _, h := range l.shared {
		t.shared[h] = l
	}
	for _, h := range l.owned {
		t.owned[h] = l
	}
	t.acquired++
	l.order = t.acquired
	slices.SortFunc(predecessors, func(a, b *latch) int { return cmp.Compare(a.order, b.order) })
	return predecessors
}

// maxSeqWait bounds the wait for lower sequence numbers: the connection of such a batch may be silent.
const maxSeqWait = time.Second

// awaitSeq waits until all lower sequence numbers have passed, for at most maxSeqWait.
func (t *latchTable) awaitSeq(seq int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lowest >= seq {
		return
	}
	over := false
	timer := time.AfterFunc(maxSeqWait, func() {
		t.mu.Lock()
		over = true
		t.mu.Unlock()
		t.changed.Broadcast()
	})
	defer timer.Stop()
	for t.lowest < seq && !over {
		t.changed.Wait()
	}
	for ; t.lowest < seq; t.lowest++ { // higher ones do not wait for them again
		delete(t.passed, t.lowest)
	}
}

// pass records that the batch with a sequence number has acquired its latch, or never will.
func (t *latchTable) pass(seq int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq < t.lowest {
		return
	}
	t.passed[seq] = true
	for ; t.passed[t.lowest]; t.lowest++ {
		delete(t.passed, t.lowest)
	}
	t.changed.Broadcast()
}

// findPredecessors returns the batches that have rows of l. free is false if l must wait for one of them.
func (t *latchTable) findPredecessors(l *latch, optimistic bool) (predecessors []*latch, free bool) {
	for _, h := range l.owned {
		if t.owned[h] != nil {
			return nil, false
		}
	}
	var last *latch
	for _, h := range l.shared {
		o := t.shared[h]
		switch {
		case o == nil || o == last:
			continue
		case !optimistic || !o.published:
			return nil, false
		}
		if last = o; !slices.Contains(predecessors, o) {
			predecessors = append(predecessors, o)
		}
	}
	return predecessors, true
}

// publish allows other batches to take over the rows of an applied batch, which is about to commit.
func (t *latchTable) publish(l *latch, participants []Participant) {
	l.participants = participants
	t.mu.Lock()
	l.published = true
	t.mu.Unlock()
	t.changed.Broadcast()
}

// await waits until all predecessors have ended, and reports whether all have committed.
func (t *latchTable) await(predecessors []*latch) (committed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	committed = true
	for _, l := range predecessors {
		for !l.ended {
			t.changed.Wait()
		}
		committed = committed && !l.failed
	}
	return committed
}

// release releases the rows and names of a latch, except rows that another batch has taken over.
func (t *latchTable) release(l *latch, committed bool) {
	t.mu.Lock()
	for _, h := range l.shared {
		if t.shared[h] == l {
			delete(t.shared, h)
		}
	}
	for _, h := range l.owned {
		if t.owned[h] == l {
			delete(t.owned, h)
		}
	}
	l.ended, l.failed = true, !committed
	t.mu.Unlock()
	t.changed.Broadcast()
}
