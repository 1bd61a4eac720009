package commit

import (
	"errors"
	"hash/maphash"
	"slices"
	"time"
)

// Participant is one domain's part in a batch: the rows that the batch's commands work with. The methods are called in
// the order listed here. Each queues at most a few statements and reads their rows. Base has defaults for simple
// domains.
type Participant interface {
	// Discover finds the rows to lock by reads without locks: of columns that never change, of rows that are checked
	// again under the lock, or of settings that may be a second old.
	Discover(p *Pipe)
	// Latch adds a hash of every row that Lock will lock and of every name that the batch looks up or may take. Called
	// after Discover.
	Latch(l *LatchKeys)
	// CanOverlap reports whether the batch may run optimistically (see Optimistic): whether all data that its commands
	// may read either depends on rows and names added by Latch, or may be as old as the last commit before the batch,
	// such as the settings of limits. Called after Discover.
	CanOverlap() bool
	// Lock locks and loads rows, sorted by key. FOR NO KEY UPDATE.
	Lock(p *Pipe)
	// Lookup reads data guarded by the rows, and which names are taken. Called after Lock or Read. In an optimistic
	// batch the shared rows are not locked yet: Confirm does that.
	Lookup(p *Pipe)
	// Latest returns the newest recorded time of the batch's rows, or zero. The batch is recorded no earlier.
	Latest() time.Time
	// Start passes the times of the batch and its source of row ids.
	Start(at Times, newID func() int64)
	// Resolve reads dependents of rows just read. Called until no participant queues a statement.
	Resolve(p *Pipe)
	// Mark is called before every command. Undo reverts all changes since Mark.
	Mark()
	Undo()
	// Flush writes the changes, one statement per table, sorted by key.
	Flush(p *Pipe)
}

// Times has the times of one batch, in UTC and whole microseconds.
type Times struct {
	// Now is the database's clock, read after the batch has locked its rows; in an optimistic batch, after it has read
	// them or taken them over. Lives, leases and expiry use only this time.
	Now time.Time
	// Recorded is the time of the batch in the journal: Now, or the newest recorded time of its rows if that is later,
	// so that a row's history stays in order if the clock goes back.
	Recorded time.Time
}

// Base has default methods of Participant. It never overlaps.
type Base struct{}

// Discover does nothing: commands name the keys.
func (Base) Discover(*Pipe) {}

// CanOverlap returns false.
func (Base) CanOverlap() bool { return false }

// Lookup does nothing: Lock has loaded all rows.
func (Base) Lookup(*Pipe) {}

// Latest returns zero: the rows have no recorded time.
func (Base) Latest() time.Time { return time.Time{} }

// Resolve does nothing: the rows have no dependents.
func (Base) Resolve(*Pipe) {}

// Optimistic is a Participant with rows that many batches share. An optimistic batch takes over these rows from the
// memory of an applied batch, its predecessor, which is still being written and committed. It applies its commands and
// writes its inserts, then waits for the predecessor, updates the rows and commits. Until then it locks none of these
// rows. Instead it knows which transaction wrote each row. A row that another transaction has written since is a
// conflict: the batch is rerun with locks. Memory is a hint; the database confirms it before every COMMIT.
//
// This is optimistic concurrency control with commit dependencies: Larson et al., High-Performance
// Concurrency Control Mechanisms for Main-Memory Databases, VLDB 2011.
//
// A batch runs optimistically if all its participants can. Participants that are not Optimistic lock their rows as
// usual. The mix causes no deadlock: latches separate batches of the process that share such a row, and batches of
// other processes lock in the same order.
type Optimistic interface {
	Participant
	// TakeOver copies the rows that the same participant of an applied batch also has. That batch continues to read its
	// own rows. writer will have written the rows that it changed. Among several predecessors the last one wins.
	TakeOver(from Participant, writer *RowWriter)
	// Read loads, without locks, the rows that were not taken over.
	Read(p *Pipe)
	// Confirm locks all shared rows that the batch saw, changed or not, sorted by key, and fails unless each is as its
	// last known writer wrote it. It may leave this to Write if Write updates all of them. Called only in an optimistic
	// batch, just before Write of the same participant.
	Confirm(p *Pipe)
	// Write updates the changed shared rows; Flush does not. Called in every batch, after Flush of all participants.
	Write(p *Pipe)
}

// RowWriter is the transaction of a batch whose rows other batches take over.
type RowWriter struct{ xid uint32 }

// XID is the transaction id: xmin of the rows that it wrote. It is known after the commit, so from Confirm on.
func (w *RowWriter) XID() uint32 { return w.xid }

// ErrConflict ends an optimistic attempt: a predecessor failed, or a participant's Resolve refused the pipe with it
// because the rows taken over do not suffice. The batch is rerun with locks.
var ErrConflict = errors.New("commit: the batch cannot run optimistically")

// Observer is a Participant that learns the outcome of its transaction.
type Observer interface {
	Participant
	// Ended is called once after every Flush that began, as soon as the outcome of its transaction is known, before any
	// caller is answered, and without locks of the engine. durable is false after a rollback, a dry run, a batch that
	// wrote nothing, or an unknown outcome. It must not block.
	Ended(durable bool)
}

// Tx is one batch's transaction as commands see it. Participants is called once, after the Need of every command. It
// returns the participants that the batch needs, in the global lock order.
type Tx interface {
	Participants() []Participant
}

// Rows has the rows of a simple Participant within one batch, by one key. A domain's participant embeds it, and adds
// Lock and Flush with its statements. A key without a row is guarded like one with a row: by its latch within the
// process, and by its unique constraint, which is a name constraint, between processes.
type Rows[K comparable, V any] struct {
	Base
	Now time.Time // of the batch; set by Start
	ID  func() int64

	order  *KeyOrder[K, V]
	wanted map[K]*Row[K, V]
	list   []*Row[K, V] // wanted and added, in order
	mark   int
	saves  []rowSave[K, V]
	gen    uint64
}

// Row is one row of Rows, and the handle that a command keeps from Need to Apply.
type Row[K comparable, V any] struct {
	Key   K
	Value V    // zero if there is no row
	Found bool // the database has the row
	// Exists: the commands of the batch see the row. It is in the database, or a command of the batch created it.
	Exists bool

	added bool // by Add, without a look-up
	dirty bool
	saved uint64
}

type rowSave[K comparable, V any] struct {
	row *Row[K, V]
	old Row[K, V]
}

// KeyOrder is the order and the hash of the keys of a table, equal in all batches of the process.
type KeyOrder[K comparable, V any] struct {
	compare func(a, b K) int
	seed    maphash.Seed
}

// NewKeyOrder declares the order in which all batches lock and write the rows of a table.
func NewKeyOrder[K comparable, V any](compare func(a, b K) int) *KeyOrder[K, V] {
	return &KeyOrder[K, V]{compare, maphash.MakeSeed()}
}

// Rows returns an empty set.
func (t *KeyOrder[K, V]) Rows() Rows[K, V] {
	return Rows[K, V]{order: t, wanted: make(map[K]*Row[K, V]), gen: 1}
}

// Hash returns the hash of a key for LatchKeys.
func (t *KeyOrder[K, V]) Hash(k K) uint64 { return maphash.Comparable(t.seed, k) }

// Want names a row to lock and load. After the load it panics for any other row, because that row would seem not to
// exist. See Wanted.
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

// Wanted returns a row that was wanted, or nil. It is for commands that learn a key only when they run.
func (s *Rows[K, V]) Wanted(k K) *Row[K, V] { return s.wanted[k] }

// Add adds a row whose key is certainly new, such as a random one. No command looks for it.
func (s *Rows[K, V]) Add(k K, v V) *Row[K, V] {
	r := &Row[K, V]{Key: k, Value: v, Exists: true, added: true, dirty: true}
	s.list = append(s.list, r)
	return r
}

// Change returns the row's value for modification, and makes the row if it does not exist. The row will be written,
// unless Undo reverts the change.
func (s *Rows[K, V]) Change(r *Row[K, V]) *V {
	if r.saved != s.gen {
		s.saves = append(s.saves, rowSave[K, V]{r, *r})
		r.saved = s.gen
	}
	r.dirty, r.Exists = true, true
	return &r.Value
}

// Load sets the value that Lock found.
func (s *Rows[K, V]) Load(r *Row[K, V], v V) { r.Value, r.Found, r.Exists = v, true, true }

// Sorted returns all wanted rows, in the table's order.
func (s *Rows[K, V]) Sorted() []*Row[K, V] {
	return s.sorted(func(r *Row[K, V]) bool { return !r.added })
}

// Fresh returns the rows to insert, in the same order.
func (s *Rows[K, V]) Fresh() []*Row[K, V] {
	return s.sorted(func(r *Row[K, V]) bool { return r.dirty && !r.Found })
}

// Changed returns the rows to update, in the same order.
func (s *Rows[K, V]) Changed() []*Row[K, V] {
	return s.sorted(func(r *Row[K, V]) bool { return r.dirty && r.Found })
}

func (s *Rows[K, V]) sorted(want func(*Row[K, V]) bool) []*Row[K, V] {
	var rows []*Row[K, V]
	for _, r := range s.list {
		if want(r) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *Row[K, V]) int { return s.order.compare(a.Key, b.Key) })
	return rows
}

// Latch owns all wanted keys.
func (s *Rows[K, V]) Latch(l *LatchKeys) {
	for k := range s.wanted {
		l.Own(s.order.Hash(k))
	}
}

// Start keeps the batch's time and its source of row ids.
func (s *Rows[K, V]) Start(at Times, newID func() int64) { s.Now, s.ID = at.Now, newID }

// Mark sets the point to which the next Undo reverts.
func (s *Rows[K, V]) Mark() {
	s.gen++
	s.saves, s.mark = s.saves[:0], len(s.list)
}

// Undo reverts all additions and changes since Mark.
func (s *Rows[K, V]) Undo() {
	for _, save := range slices.Backward(s.saves) {
		*save.row = save.old
	}
	s.saves, s.list = s.saves[:0], s.list[:s.mark]
	s.gen++
}

// Sets is the common part of a Participant with several sets of rows: it forwards to each of them.
type Sets struct {
	Base
	Now time.Time // of the batch; set by Start
	ID  func() int64

	sets []rowSet
}

type rowSet interface {
	Latch(l *LatchKeys)
	Start(at Times, newID func() int64)
	Mark()
	Undo()
}

// SetsOf forwards to sets.
func SetsOf(sets ...rowSet) Sets { return Sets{sets: sets} }

// Latch owns all wanted keys.
func (s *Sets) Latch(l *LatchKeys) {
	for _, r := range s.sets {
		r.Latch(l)
	}
}

// Start keeps the batch's time and its source of row ids.
func (s *Sets) Start(at Times, newID func() int64) {
	s.Now, s.ID = at.Now, newID
	for _, r := range s.sets {
		r.Start(at, newID)
	}
}

// Mark sets the point to which the next Undo reverts.
func (s *Sets) Mark() {
	for _, r := range s.sets {
		r.Mark()
	}
}

// Undo reverts all additions and changes since Mark.
func (s *Sets) Undo() {
	for _, r := range s.sets {
		r.Undo()
	}
}
