package commit

import (
	"cmp"
	"reflect"
	"slices"
	"sync"
)

// roster knows the rows and names of the batches that this process runs, by hash. A batch that needs
// one of them waits here, not in the database: there it would hold a connection in a lock wait that
// counts against LockTimeout. Batches without a row in common run side by side; a batch that overlaps
// (see Overlapping) waits only until those before it are applied.
type roster struct {
	door    sync.Mutex // held by the batch that enters next, so that none is passed over for ever
	mu      sync.Mutex
	changed sync.Cond
	rows    map[uint64]*stay // the last batch that has the row
	names   map[uint64]*stay
	entered int64          // batches so far
	turn    int64          // the lowest turn that has not passed
	passed  map[int64]bool // turns behind it
}

// stay is one batch on the roster.
type stay struct {
	rows, names []uint64
	turn        int64   // see manner
	tables      []Table // set by apply: nobody changes them any more
	writer      *Writer // by itself: who took rows over keeps it

	// Guarded by roster.mu.
	place   int64 // in the order of entering
	applied bool
	ended   bool
	failed  bool
}

// table is the batch's table of t's kind, or nil if its commands needed nothing of it.
func (s *stay) table(t Table) Table {
	for _, other := range s.tables {
		if reflect.TypeOf(other) == reflect.TypeOf(t) {
			return other
		}
	}
	return nil
}

func newRoster() *roster {
	r := &roster{rows: make(map[uint64]*stay), names: make(map[uint64]*stay), turn: 1, passed: make(map[int64]bool)}
	r.changed.L = &r.mu
	return r
}

// enter waits until no other batch has one of the rows or names, then takes them all. A batch that
// overlaps may take rows of applied ones: those are returned, in the order in which they entered.
// Batches enter in the order of their turns, so that works that have a row in common take effect in
// the order in which they came, unless a batch has to run again, which has no turn then.
func (r *roster) enter(s *stay, overlap bool) (before []*stay) {
	defer r.pass(s.turn)
	r.await(s.turn)
	r.door.Lock()
	defer r.door.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var free bool
		if before, free = r.ahead(s, overlap); free {
			break
		}
		r.changed.Wait()
	}
	for _, h := range s.rows {
		r.rows[h] = s
	}
	for _, h := range s.names {
		r.names[h] = s
	}
	r.entered++
	s.place = r.entered
	slices.SortFunc(before, func(a, b *stay) int { return cmp.Compare(a.place, b.place) })
	return before
}

// await waits until all lower turns have passed.
func (r *roster) await(turn int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.turn < turn {
		r.changed.Wait()
	}
}

// pass lets the next turn come: this one has entered, or will not.
func (r *roster) pass(turn int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if turn < r.turn {
		return
	}
	r.passed[turn] = true
	for ; r.passed[r.turn]; r.turn++ {
		delete(r.passed, r.turn)
	}
	r.changed.Broadcast()
}

// ahead finds the batches that have rows of s, if s need not wait for any of them.
func (r *roster) ahead(s *stay, overlap bool) (before []*stay, free bool) {
	for _, h := range s.names {
		if r.names[h] != nil {
			return nil, false
		}
	}
	var last *stay
	for _, h := range s.rows {
		o := r.rows[h]
		switch {
		case o == nil || o == last:
			continue
		case !overlap || !o.applied:
			return nil, false
		}
		if last = o; !slices.Contains(before, o) {
			before = append(before, o)
		}
	}
	return before, true
}

// apply lets others take over the rows of an applied batch that is about to commit.
func (r *roster) apply(s *stay, tables []Table) {
	s.tables = tables
	r.mu.Lock()
	s.applied = true
	r.mu.Unlock()
	r.changed.Broadcast()
}

// wait waits until all of the batches have ended, and tells whether all have committed.
func (r *roster) wait(batches []*stay) (committed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	committed = true
	for _, s := range batches {
		for !s.ended {
			r.changed.Wait()
		}
		committed = committed && !s.failed
	}
	return committed
}

// leave gives back what enter took and no other batch has taken since.
func (r *roster) leave(s *stay, committed bool) {
	r.mu.Lock()
	for _, h := range s.rows {
		if r.rows[h] == s {
			delete(r.rows, h)
		}
	}
	for _, h := range s.names {
		if r.names[h] == s {
			delete(r.names, h)
		}
	}
	s.ended, s.failed = true, !committed
	r.mu.Unlock()
	r.changed.Broadcast()
}
