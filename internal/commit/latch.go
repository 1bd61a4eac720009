package commit

import (
	"cmp"
	"reflect"
	"slices"
	"sync"
	"time"
)

// latchTable has a latch for every batch that runs in this process, by the hashes of its rows and names. A
// batch that needs one of them waits here, not in the database: there it would hold a connection in a
// lock wait that counts against LockTimeout. Batches without a row in common run side by side; an
// optimistic batch (see Optimistic) waits for another one with a shared row only until that one is applied.
type latchTable struct {
	entrance sync.Mutex // held by the batch that acquires next, so that none is passed over for ever
	mu       sync.Mutex
	changed  sync.Cond
	shared   map[uint64]*latch // the last batch that has the row
	owned    map[uint64]*latch
	acquired int64          // latches so far
	ticket   int64          // the lowest ticket that has not passed
	passed   map[int64]bool // tickets behind it
}

// Latches gathers the hashes of what a batch works with. A hash is the same for the same row or name
// throughout the process.
type Latches struct{ shared, owned []uint64 }

// Share names a row that an optimistic batch may take over from the batch before.
func (l *Latches) Share(hash uint64) { l.shared = append(l.shared, hash) }

// Own names a row or name that no two batches work with at the same time.
func (l *Latches) Own(hash uint64) { l.owned = append(l.owned, hash) }

// latch records the rows and names of one batch.
type latch struct {
	Latches
	ticket       int64         // see mode
	participants []Participant // set by publish: from then on they do not change
	writer       *Writer       // allocated apart: successors keep it without the latch

	// Guarded by latchTable.mu.
	place     int64 // in the order of acquiring
	published bool
	ended     bool
	failed    bool
}

// participant is the batch's participant of p's kind, or nil if its commands needed nothing of it.
func (l *latch) participant(p Participant) Participant {
	for _, other := range l.participants {
		if reflect.TypeOf(other) == reflect.TypeOf(p) {
			return other
		}
	}
	return nil
}

func newLatchTable() *latchTable {
	t := &latchTable{shared: make(map[uint64]*latch), owned: make(map[uint64]*latch), ticket: 1,
		passed: make(map[int64]bool)}
	t.changed.L = &t.mu
	return t
}

// acquire waits until no other batch has one of the rows or names, then takes them all. An optimistic
// batch may share rows with published ones: those are its predecessors, in the order in which they acquired.
// Batches acquire in the order of their tickets, so that commands with a row in common take effect in
// the order in which they came, unless a batch has to run again, which has no ticket then.
func (t *latchTable) acquire(l *latch, optimistic bool) (predecessors []*latch) {
	defer t.pass(l.ticket)
	t.awaitTicket(l.ticket)
	t.entrance.Lock()
	defer t.entrance.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var free bool
		if predecessors, free = t.ahead(l, optimistic); free {
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
	l.place = t.acquired
	slices.SortFunc(predecessors, func(a, b *latch) int { return cmp.Compare(a.place, b.place) })
	return predecessors
}

// ticketPatience bounds the wait for lower tickets: the connection of one that has not passed may be silent.
const ticketPatience = time.Second

// awaitTicket waits until all lower tickets have passed, or its patience is over.
func (t *latchTable) awaitTicket(ticket int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ticket >= ticket {
		return
	}
	over := false
	timer := time.AfterFunc(ticketPatience, func() {
		t.mu.Lock()
		over = true
		t.mu.Unlock()
		t.changed.Broadcast()
	})
	defer timer.Stop()
	for t.ticket < ticket && !over {
		t.changed.Wait()
	}
	for ; t.ticket < ticket; t.ticket++ { // the next ones do not wait for them again
		delete(t.passed, t.ticket)
	}
}

// pass lets the next ticket come: this one has acquired its latch, or will not.
func (t *latchTable) pass(ticket int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ticket < t.ticket {
		return
	}
	t.passed[ticket] = true
	for ; t.passed[t.ticket]; t.ticket++ {
		delete(t.passed, t.ticket)
	}
	t.changed.Broadcast()
}

// ahead finds the batches that have rows of l, if l need not wait for any of them.
func (t *latchTable) ahead(l *latch, optimistic bool) (predecessors []*latch, free bool) {
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

// publish lets others take over the rows of an applied batch that is about to commit.
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

// release gives back what acquire took and no other batch has taken since.
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
