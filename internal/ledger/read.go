package ledger

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader serves reads outside the engine. Every answer comes from one snapshot of the committed rows, without
// row locks. Every query filters by tenant. It is safe for concurrent use.
type Reader struct {
	pool *pgxpool.Pool
}

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Page requests a part of a list: a size, or 0 for the default, and the token returned with the previous page.
// The answer's token is empty after the last page. A page may be short or empty although a next token follows.
type Page struct {
	Size  int
	Token string
}

// How many rows one page may examine for a filter that no index supports.
const (
	scanMax          = 50_000
	scanMaxStatement = 5_000
)

func (p Page) size() int { return paging.Size(p.Size) }

// one is for a read of a single statement, whose own snapshot suffices.
func (r *Reader) one() db.DBTX { return pg.Planned{DB: r.pool} }

// roundUp rounds up to the microseconds of the database, so that "at or after" and "before" a time in between
// both mean the later microsecond.
func roundUp(t time.Time) time.Time {
	if r := t.Truncate(time.Microsecond); r.Before(t) {
		return r.Add(time.Microsecond)
	}
	return t
}

// noEnd is later than every recorded time.
var noEnd = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// span converts two times, either of which may be zero (open), to the range [from, before).
func span(from, before time.Time) (start, end time.Time) {
	if before.IsZero() {
		before = noEnd
	}
	return roundUp(from), roundUp(before)
}
