package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader answers what callers read. It goes past the engine: every answer comes from one snapshot of
// the committed rows, and takes no lock that outlives a statement. Every query begins with the tenant.
// Safe for many goroutines.
type Reader struct {
	pool *pgxpool.Pool
}

// NewReader makes a reader over the service's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Page asks for a part of a list: a size, 0 for the default, and the token that the part before gave.
// The answer's token is empty after the last part. A part may be short, even empty, and have a next.
type Page struct {
	Size  int
	Token string
}

// Sizes of pages, and how many rows one page looks at when a filter that no index serves passes few.
const (
	pageDefault      = 100
	pageMax          = 1_000
	scanMax          = 50_000
	scanMaxStatement = 5_000
)

func (p Page) size() int {
	if p.Size <= 0 {
		return pageDefault
	}
	return min(p.Size, pageMax)
}

// one is where a lone statement for one row runs: its snapshot is that of the answer.
func (r *Reader) one() db.DBTX { return pg.Planned{DB: r.pool} }

// beginRead begins one snapshot, in which what is ordered is read by its index, as far as it is wanted
// and no further: without good statistics reading all and sorting looks as cheap.
const beginRead = "begin isolation level repeatable read read only; set local enable_sort = off; " +
	"set local enable_bitmapscan = off; set local enable_seqscan = off; set local jit = off"

// snapshot runs the statements of a list, or several, on one snapshot.
func (r *Reader) snapshot(ctx context.Context, read func(db.DBTX) error) error {
	options := pgx.TxOptions{BeginQuery: beginRead}
	return pgx.BeginTxFunc(ctx, r.pool, options, func(tx pgx.Tx) error { return read(pg.Planned{DB: tx}) })
}

// Times of the database have six decimals. Between two of them, "at or after" and "before" mean the
// later one.
func roundUp(t time.Time) time.Time {
	if r := t.Truncate(time.Microsecond); r.Before(t) {
		return r.Add(time.Microsecond)
	}
	return t
}

// noEnd is later than every time recorded.
var noEnd = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// span makes the range [from, before) of two times, either of which may be zero: open.
func span(from, before time.Time) (start, end time.Time) {
	if before.IsZero() {
		before = noEnd
	}
	return roundUp(from), roundUp(before)
}
