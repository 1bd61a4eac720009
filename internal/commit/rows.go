package commit

import (
	"hash/maphash"
	"slices"
	"time"
)

// Rows are the rows of a simple Participant within one batch: found, locked, made and changed by one key.
// A domain's participant embeds it, and adds Lock and Flush with its statements. A key that has no row
// yet is guarded like one that has: by its latch within the process, by its unique constraint, which is
// a name constraint, between processes.
type Rows[K comparable, V any] struct {
	Base
	Now time.Time // of the batch, from Start on
	ID  func() int64

	seed   maphash.Seed
	wanted map[K]*Row[K, V]
	list   []*Row[K, V] // wanted and made, as they came
	mark   int
	saves  []rowSave[K, V]
	gen    uint64
}

// Row is one row of Rows, and the handle that a command keeps from Need to Apply.
type Row[K comparable, V any] struct {
	Key   K
	Value V    // zero while there is none
	Found bool // the database has it: set by Lock
	// Exists: it is there for the commands of the batch, in the database or made by one of them.
	Exists bool

	alone bool // made without being looked for
	dirty bool
	saved uint64
}

type rowSave[K comparable, V any] struct {
	row *Row[K, V]
	old Row[K, V]
}

// NewRows makes an empty set. The seed is one for each table, made once in the process.
func NewRows[K comparable, V any](seed maphash.Seed) Rows[K, V] {
	return Rows[K, V]{seed: seed, wanted: make(map[K]*Row[K, V]), gen: 1}
}

// Want names a row to lock and load.
func (s *Rows[K, V]) Want(k K) *Row[K, V] {
	r := s.wanted[k]
	if r == nil {
		r = &Row[K, V]{Key: k}
		s.wanted[k] = r
		s.list = append(s.list, r)
	}
	return r
}

// Known gives a row that was wanted, or nil: for commands that learn a key only when they run.
func (s *Rows[K, V]) Known(k K) *Row[K, V] { return s.wanted[k] }

// Add makes a row whose key cannot be there yet, such as a random one: nobody looks for it.
func (s *Rows[K, V]) Add(k K, v V) *Row[K, V] {
	r := &Row[K, V]{Key: k, Value: v, Exists: true, alone: true, dirty: true}
	s.list = append(s.list, r)
	return r
}

// Change gives the row's value to change, or to make: it will be written, unless Undo takes it back.
func (s *Rows[K, V]) Change(r *Row[K, V]) *V {
	if r.saved != s.gen {
		s.saves = append(s.saves, rowSave[K, V]{r, *r})
		r.saved = s.gen
	}
	r.dirty, r.Exists = true, true
	return &r.Value
}

// Load is what Lock found of a row.
func (s *Rows[K, V]) Load(r *Row[K, V], v V) { r.Value, r.Found, r.Exists = v, true, true }

// Sorted are all rows that were wanted, in the order in which all batches lock and write them.
func (s *Rows[K, V]) Sorted(compare func(a, b K) int) []*Row[K, V] {
	return s.sorted(compare, func(r *Row[K, V]) bool { return !r.alone })
}

// Fresh are the rows to be inserted, Changed those to be updated, sorted likewise.
func (s *Rows[K, V]) Fresh(compare func(a, b K) int) []*Row[K, V] {
	return s.sorted(compare, func(r *Row[K, V]) bool { return r.dirty && !r.Found })
}

// Changed are the rows to be updated, sorted as for Lock.
func (s *Rows[K, V]) Changed(compare func(a, b K) int) []*Row[K, V] {
	return s.sorted(compare, func(r *Row[K, V]) bool { return r.dirty && r.Found })
}

func (s *Rows[K, V]) sorted(compare func(a, b K) int, want func(*Row[K, V]) bool) []*Row[K, V] {
	var rows []*Row[K, V]
	for _, r := range s.list {
		if want(r) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *Row[K, V]) int { return compare(a.Key, b.Key) })
	return rows
}

// Latch names the keys.
func (s *Rows[K, V]) Latch(l *Latches) {
	for k := range s.wanted {
		l.Own(maphash.Comparable(s.seed, k))
	}
}

// Start takes the batch's time and its source of ids.
func (s *Rows[K, V]) Start(at Times, newID func() int64) { s.Now, s.ID = at.Now, newID }

// Mark is where the next Undo goes back to.
func (s *Rows[K, V]) Mark() {
	s.gen++
	s.saves, s.mark = s.saves[:0], len(s.list)
}

// Undo takes back what was made and changed since Mark.
func (s *Rows[K, V]) Undo() {
	for _, save := range slices.Backward(s.saves) {
		*save.row = save.old
	}
	s.saves, s.list = s.saves[:0], s.list[:s.mark]
	s.gen++
}
