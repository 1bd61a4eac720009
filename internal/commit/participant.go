package commit

import (
	"errors"
	"hash/maphash"
	"slices"
	"time"
)

// Participant is one domain's part in a batch: the rows that the batch's commands work with. The methods
// are called in the order in which they stand here; each queues at most a few statements and reads their
// rows. Base has what a simple domain need not say.
type Participant interface {
	// Discover reads columns that never change, without a lock, to find the rows to lock.
	Discover(p *Pipe)
	// Latch adds a hash of every row that Lock is about to lock and of every name that the batch looks up
	// or may take. Called after Discover.
	Latch(l *Latches)
	// CanOverlap reports whether the batch may run optimistically (see Optimistic): whether all that
	// its commands may see hangs on what Latch named. Called after Discover.
	CanOverlap() bool
	// Lock locks and loads rows, sorted by key. FOR NO KEY UPDATE.
	Lock(p *Pipe)
	// Lookup reads what the locks guard and which names are taken, all locks being held.
	Lookup(p *Pipe)
	// Latest is the newest recorded time in the locked rows, or zero: the batch is recorded no earlier.
	Latest() time.Time
	// Start gives the participant the times of the batch and its source of ids.
	Start(at Times, newID func() int64)
	// Resolve reads what hangs on what was just found. Called until no participant queues anything.
	Resolve(p *Pipe)
	// Mark is called before every command; Undo takes back all changes since.
	Mark()
	Undo()
	// Flush writes the changes, one statement a table, sorted by key.
	Flush(p *Pipe)
}

// Times are the times of one batch, both in UTC and in microseconds.
type Times struct {
	// Now is the database's clock when all rows were locked. Lives, leases and expiry go by it alone.
	Now time.Time
	// Recorded is when the batch's journal says that it happened: Now, or the newest recorded time of its
	// rows if that is later, so that a row's history stays in order though the clock went back.
	Recorded time.Time
}

// Base has the methods of Participant that many domains have no use for. It never overlaps.
type Base struct{}

// Discover has nothing to find: commands name the keys.
func (Base) Discover(*Pipe) {}

// CanOverlap is never so.
func (Base) CanOverlap() bool { return false }

// Lookup has nothing to find: the rows are locked.
func (Base) Lookup(*Pipe) {}

// Latest knows no recorded time.
func (Base) Latest() time.Time { return time.Time{} }

// Resolve has nothing to read on.
func (Base) Resolve(*Pipe) {}

// Optimistic is a Participant with rows that many batches share. A batch that runs optimistically takes
// these rows as an applied batch leaves them in memory, while that one is still being written and
// committed, applies its commands to them and writes all that is new. Then it waits for the other batch,
// writes the rows back and commits. It holds no lock of such a row before that. Instead it knows which
// transaction wrote each row, and a row that another transaction has written since is a conflict: the
// batch runs again, with locks. Memory is a hint; the database confirms it before every COMMIT.
//
// This is optimistic concurrency control with commit dependencies: Larson et al., High-Performance
// Concurrency Control Mechanisms for Main-Memory Databases, VLDB 2011.
//
// A batch runs optimistically if all its participants can. Those that are not Optimistic lock their rows
// as ever: no other batch of the process waits for them in the database, because latches keep batches with
// such a row in common apart, and batches of other processes lock in the same order.
type Optimistic interface {
	Participant
	// TakeOver copies the rows that are also in the same participant of an applied batch, which goes on
	// reading its own. Those that it changed will have been written by writer. Of several batches the
	// last has the last word.
	TakeOver(from Participant, writer *Writer)
	// Read does what Lock does, without locks, for the rows that were not taken over.
	Read(p *Pipe)
	// Confirm locks all shared rows that the batch saw, changed or not, sorted by key, and fails unless
	// each is as its last known writer wrote it. It may leave that to Write, if Write writes every one of
	// them. Called only if the batch is optimistic, before Write.
	Confirm(p *Pipe)
	// Write writes the shared rows that changed, which Flush leaves to it. Called last, in every batch.
	Write(p *Pipe)
}

// Writer is the transaction of a batch whose rows others take over.
type Writer struct{ xid uint32 }

// XID is the transaction's number, xmin in the rows that it wrote. Known when it has committed: from
// Confirm on.
func (w *Writer) XID() uint32 { return w.xid }

// ErrConflict ends an optimistic attempt: a predecessor failed, or a participant's Resolve refuses the pipe with it
// because rows that were taken over do not suffice. The batch runs again with locks.
var ErrConflict = errors.New("commit: the batch cannot run optimistically")

// Observer is a Participant that is told how its transaction ended.
type Observer interface {
	Participant
	// Ended is called once after every Flush that began, as soon as the end of its transaction is known,
	// before any caller is answered, and holding nothing of the engine. committed means durably committed;
	// it is false after a rollback, a dry run, a batch that wrote nothing, or an unknown outcome. It must not block.
	Ended(committed bool)
}

// Tx is one batch's transaction as commands see it. Participants is asked once, when every command has
// named its needs: it gives those that are needed, in the one order in which all batches lock them.
type Tx interface {
	Participants() []Participant
}

func optimistic(p Participant) Optimistic {
	o, _ := p.(Optimistic)
	return o
}

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

// Want names a row to lock and load. It panics when the batch has loaded its rows, and this is not one of them: such
// a row would look as if there were none. See Known.
func (s *Rows[K, V]) Want(k K) *Row[K, V] {
	r := s.wanted[k]
	if r == nil {
		if s.ID != nil {
			panic("commit: a row is named after the batch has loaded its rows")
		}
		r = &Row[K, V]{Key: k}
		s.wanted[k] = r
		s.list = append(s.list, r)
	}
	return r
}

// Known gives a row that was wanted, or nil: for commands that learn a key only when they run.
func (s *Rows[K, V]) Known(k K) *Row[K, V] { return s.wanted[k] }

// Add makes a row whose key cannot be there yet, such as a random one: no command looks for it.
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
