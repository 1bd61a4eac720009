package commit

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Guessing is an Overlapping table whose names mostly are new: it may take a name that it does not remember for
// one that is not there, and spare itself the look. The unique constraint finds out; then the batch runs again and looks.
type Guessing interface {
	Overlapping
	// Guess is called before Lock or Read. The table adds what it finds and makes to the memory. Unless sure, Read
	// leaves out what it guesses not to be there; Guess tells whether that is anything. Flush must insert it, under
	// a name constraint, or else Confirm make sure that it is not there.
	Guess(memory *Memory, sure bool) (guessed bool)
}

// errWrongGuess: a name was there that was taken for new, or the time was not what it was reckoned to be.
var errWrongGuess = errors.New("commit: a guess was wrong")

// guess lets the tables take names for new, unless guesses went wrong lately.
func (b *batch[B]) guess() {
	for _, t := range b.tables {
		if g, ok := t.(Guessing); ok && g.Guess(b.engine.memory, b.sure || !b.overlap) {
			b.guessed = true
		}
	}
}

// wrongGuess turns the failure of a batch that guessed into errWrongGuess, if that may be why it failed: it runs again
// and looks, and so do all for a while.
func (b *batch[B]) wrongGuess(err error) error {
	var p *pgconn.PgError
	if !b.guessed || b.sent || !errors.As(err, &p) || p.Code != "LD003" && !(p.Code == "23505" && b.engine.names[p.ConstraintName]) {
		return err
	}
	b.engine.doubt.take()
	return fmt.Errorf("%w: %w", errWrongGuess, err)
}

// Memory remembers hashes of names that were seen lately, at least the last half million: of what was seen in
// that time it says so for sure, of anything else about once in a thousand. Two Bloom filters (Bloom, 1970) of which each
// name touches one cache line; when the newer one is full the older one is forgotten. Takes 2 MiB. Safe for
// many goroutines.
type Memory struct {
	mu    sync.Mutex // to change generations
	newer atomic.Pointer[generation]
	older atomic.Pointer[generation]
}

const (
	generationNames  = 1 << 19
	generationBlocks = generationNames * 16 / 512
)

type generation struct {
	names  atomic.Int64
	blocks [generationBlocks][8]atomic.Uint64
}

// NewMemory makes an empty one.
func NewMemory() *Memory {
	m := &Memory{}
	m.newer.Store(new(generation))
	return m
}

// Add remembers a name by a hash of 64 good bits.
func (m *Memory) Add(hash uint64) {
	g := m.newer.Load()
	if g.has(hash) {
		return
	}
	g.add(hash)
	if g.names.Add(1) < generationNames {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newer.Load() == g {
		m.older.Store(g)
		m.newer.Store(new(generation))
	}
}

// Has tells whether the name was added lately.
func (m *Memory) Has(hash uint64) bool {
	if m.newer.Load().has(hash) {
		return true
	}
	older := m.older.Load()
	return older != nil && older.has(hash)
}

// bits are six places in the block that the hash leads to: nine bits of the hash each, mixed, because those that
// chose the block say nothing more.
func bits(hash uint64) (block uint64, mixed uint64) {
	return hash % generationBlocks, hash / generationBlocks * 0x9e3779b97f4a7c15 >> 10
}

func (g *generation) add(hash uint64) {
	block, mixed := bits(hash)
	for range 6 {
		g.blocks[block][mixed>>6&7].Or(1 << (mixed & 63))
		mixed >>= 9
	}
}

func (g *generation) has(hash uint64) bool {
	block, mixed := bits(hash)
	for range 6 {
		if g.blocks[block][mixed>>6&7].Load()&(1<<(mixed&63)) == 0 {
			return false
		}
		mixed >>= 9
	}
	return true
}
