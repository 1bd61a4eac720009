package commit

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Overlapping is a Table whose batches may overlap: such a batch takes the rows as an applied batch
// before it leaves them, while that one is still being written and committed, applies its commands to
// them and writes all that is new. Then it waits for the other batch, writes the rows back and
// commits. It holds no row lock before that. Instead it knows which transaction wrote each row, and a
// row that another one has written since makes the batch run again, with locks. So what was taken
// over, or read without a lock, is never more than a guess, which the database confirms.
//
// This is optimistic concurrency control with commit dependencies: Larson et al., High-Performance
// Concurrency Control Mechanisms for Main-Memory Databases, VLDB 2011.
//
// A batch overlaps if all its tables can; the methods are called in this order, among those of Table.
type Overlapping interface {
	Table
	// Names adds a hash of every name that the batch looks up or may take. Batches with a name in
	// common do not overlap.
	Names(hashes []uint64) []uint64
	// CanOverlap tells whether whatever the commands may see hangs on the rows of Rows and the names
	// of Names. Called after Need.
	CanOverlap() bool
	// TakeOver copies the rows that are also in the same table of an applied batch, which goes on
	// reading its own. Those that it changed will have been written by writer. Of several batches the
	// last has the last word.
	TakeOver(from Table, writer *Writer)
	// Read does what Lock does, without locks, for the rows that were not taken over.
	Read(p *Pipe)
	// Write is called after Flush, which leaves to it all rows that others may have: it writes those
	// that changed, sorted by key, and fails unless each is as its last known writer wrote it.
	Write(p *Pipe)
	// Confirm locks the rows that the batch saw and did not change, and fails unless each is as its
	// last known writer wrote it. Called only when the batch overlaps.
	Confirm(p *Pipe)
}

// Writer is the transaction of a batch whose rows others take over.
type Writer struct{ xid uint32 }

// XID is the transaction's number, xmin in the rows that it wrote. Known when it has committed: from
// Write on.
func (w *Writer) XID() uint32 { return w.xid }

// ErrLeftBehind is what a table's Resolve refuses the pipe with when what was taken over does not
// suffice: the batch runs again with locks.
var ErrLeftBehind = errors.New("commit: the batch cannot overlap")

// overlapping gives the table, if it is one.
func overlapping(t Table) Overlapping {
	o, _ := t.(Overlapping)
	return o
}

// leftBehind turns the failure of a batch that overlapped into ErrLeftBehind, if running again with
// locks may help. When others were in the way, no batch overlaps for a while.
func (b *batch[B]) leftBehind(err error) error {
	if !b.overlap || b.sent || errors.Is(err, errAgain) || errors.Is(err, errTooManyIDs) || errors.Is(err, ErrLeftBehind) || errors.Is(err, errWrongGuess) {
		return err
	}
	switch b.engine.classify(err) {
	case lost, broken:
		return err
	case race, locked:
		if !b.outrun {
			b.engine.caution.take()
		}
	case data: // perhaps an entry that somebody else has written under the same number
	}
	return fmt.Errorf("%w: %w", ErrLeftBehind, err)
}

// caution keeps batches from overlapping where other processes change the same rows, and from guessing where they
// take the same names, or the clock was another one: after a batch found it so, for a second, and for twice as long each time that it happens again at once.
type caution struct {
	mu    sync.Mutex
	until time.Time
	pause time.Duration
}

const (
	leastCaution    = time.Second
	greatestCaution = time.Minute
)

func (c *caution) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().After(c.until)
}

// take begins a time of caution.
func (c *caution) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Before(c.until) {
		return
	}
	if now.Before(c.until.Add(c.pause)) {
		c.pause = min(2*c.pause, greatestCaution)
	} else {
		c.pause = leastCaution
	}
	c.until = now.Add(c.pause)
}
