package audit

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Tx holds the events of one batch's transaction. It reads no rows and takes no locks: the domains lock the settings
// that they change.
type Tx struct {
	commit.Base
	events []event
	mark   int
	now    time.Time
}

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{} }

// Add records a change.
func (tx *Tx) Add(c commit.Caller, x Change) error {
	e, changed, err := newEvent(c, x)
	if changed && err == nil {
		tx.events = append(tx.events, e)
	}
	return err
}

func (tx *Tx) Latch(*commit.LatchKeys) {}

// CanOverlap is true: events depend on nothing that other batches write.
func (tx *Tx) CanOverlap() bool { return true }

func (tx *Tx) Lock(*commit.Pipe) {}

func (tx *Tx) Start(at commit.Times, _ func() int64) { tx.now = at.Now }

func (tx *Tx) Mark() { tx.mark = len(tx.events) }

func (tx *Tx) Undo() { tx.events = tx.events[:tx.mark] }

// Flush inserts the events.
func (tx *Tx) Flush(p *commit.Pipe) {
	if len(tx.events) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error { return insert(p.Context(), d, tx.events, tx.now) })
}
