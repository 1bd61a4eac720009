package claim

import "github.com/ledgerd/ledgerd/internal/commit"

// Claims are names to a batch that overlaps: batches with a key in common run one behind the other, and none
// takes a claim over. So the rows can be locked and written at once, and there is nothing left for Write. What
// a batch waits for while it holds them does not wait for them: batches of this process that want them are
// kept apart, and those of others lock claims before what many share. A claim that another process inserts
// meanwhile is found by the unique constraint: the batch runs again, and looks.
var _ commit.Overlapping = (*Book)(nil)

// Rows are none: all are names.
func (b *Book) Rows(hashes []uint64) []uint64 { return hashes }

// Names are the keys that are used or dropped.
func (b *Book) Names(hashes []uint64) []uint64 { return b.claims.Rows(hashes) }

// CanOverlap is always so: a command sees nothing but the claims that it names.
func (b *Book) CanOverlap() bool { return true }

// TakeOver has nothing to take.
func (b *Book) TakeOver(commit.Table, *commit.Writer) {}

// Read locks.
func (b *Book) Read(p *commit.Pipe) { b.Lock(p) }

// Write has nothing to add to Flush.
func (b *Book) Write(*commit.Pipe) {}

// Confirm has nothing to confirm: the rows are locked.
func (b *Book) Confirm(*commit.Pipe) {}
