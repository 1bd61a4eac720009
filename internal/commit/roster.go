package commit

import (
	"cmp"
	"slices"
	"sync"
)

// roster knows the rows and names of the batches that this process runs, by hash. A batch that needs
// one of them waits here, not in the database: there it would hold a connection in a lock wait that
// counts against LockTimeout. Batches without a row in common run side by side; a batch that overlaps
// (see Overlapping) waits only until those before it are applied.
type roster struct {
	door    sync.Mutex // held by the batch whose turn it is, so that none is passed over for ever
	mu      sync.Mutex
	changed sync.Cond
	rows    map[uint64]*stay // the last batch that has the row
	names   map[uint64]*stay
	entered int64 // batches so far
}

// stay is one batch on the roster.
type stay struct {
	rows, names []uint64
	tables      []Table // set by apply: nobody changes them any more
	writer      *Writer // by itself: who took rows over keeps it

	// Guarded by roster.mu.
	turn    int64
	applied bool
	ended   bool
	failed  bool
}

func newRoster() *roster {
	r := &roster{rows: make(map[uint64]*stay), names: make(map[uint64]*stay)}
	r.changed.L = &r.mu
	return r
}

// enter waits until no other batch has one of the rows or names, then takes them all. A batch that
// overlaps may take rows of applied ones: those are returned, in the order in which they entered.
func (r *roster) enter(s *stay, overlap bool) (before []*stay) {
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
	s.turn = r.entered
	slices.SortFunc(before, func(a, b *stay) int { return cmp.Compare(a.turn, b.turn) })
	return before
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
