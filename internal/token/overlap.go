package token

import "github.com/ledgerd/ledgerd/internal/commit"

// Tokens are names to a batch that overlaps: batches with a token in common run one behind the other, and none
// takes a token over. So the rows can be locked and written at once, and there is nothing left for Write. What
// a batch waits for while it holds them does not wait for them: batches of this process that want them are
// kept apart, and those of others lock tokens before all else.
var _ commit.Overlapping = (*Book)(nil)

// Rows are none: all are names.
func (b *Book) Rows(hashes []uint64) []uint64 { return hashes }

// Names are the tokens that are to be spent.
func (b *Book) Names(hashes []uint64) []uint64 { return b.rows.Rows(hashes) }

// CanOverlap is always so.
func (b *Book) CanOverlap() bool { return true }

// TakeOver has nothing to take.
func (b *Book) TakeOver(commit.Table, *commit.Writer) {}

// Read locks: nobody else's commit is waited for before.
func (b *Book) Read(p *commit.Pipe) { b.Lock(p) }

// Write has nothing to add to Flush.
func (b *Book) Write(*commit.Pipe) {}

// Confirm has nothing to confirm: the rows are locked.
func (b *Book) Confirm(*commit.Pipe) {}
