package ledger

import (
	"context"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// StatementFilter selects entries of an account. Zero values match everything.
type StatementFilter struct {
	Type      string    // type of their transfers
	From      time.Time // recorded at or after
	Before    time.Time // recorded before
	Ascending bool      // oldest first; otherwise newest first
}

// StatementLine is an entry with fields of its transfer.
type StatementLine struct {
	Entry
	BizNo    string
	Type     string
	Metadata map[string]string
}

// Statement lists the entries of an account by version. A page examines a bounded number of entries, so with a
// type filter a page may be short although a next token follows. Returns faults ACCOUNT_NOT_FOUND,
// PAGE_TOKEN_INVALID.
func (r *Reader) Statement(ctx context.Context, tenant int32, code, asset string, f StatementFilter,
	page Page) ([]StatementLine, string, error) {
	l := paging.Of("statement", tenant, code, asset, f.Type, timeText(f.From), timeText(f.Before),
		strconv.FormatBool(f.Ascending))
	after, err := l.AfterNumber(page.Token, -1)
	if err != nil {
		return nil, "", err
	}
	var lines []StatementLine
	next := ""
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		a, err := q.BalanceRead(ctx, d, db.BalanceReadParams{TenantID: tenant, Code: code, Asset: asset})
		if err != nil {
			return orNotFound(err, tenant, code, asset)
		}
		low, high, err := f.versions(ctx, d, tenant, a)
		if err != nil {
			return err
		}
		w := window{low, high, f.Ascending}
		if after >= 0 {
			w = w.after(after)
		}
		size := page.size()
		look := size
		if f.Type != "" {
			look = max(size, scanMaxStatement)
		}
		part := w.first(int64(look))
		rows, err := q.EntryPage(ctx, d,
			db.EntryPageParams{TenantID: tenant, AccountID: a.AccountID, Low: part.low, High: part.high,
				OnlyType: f.Type, Direction: part.direction(), Count: int32(size)})
		if err != nil {
			return err
		}
		last := part.last()
		if len(rows) == size {
			last = rows[size-1].Version
		}
		if rest := w.after(last); rest.low < rest.high {
			next = l.TokenNumber(last)
		}
		for _, row := range rows {
			lines = append(lines, lineOf(code, asset, a, row))
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return lines, next, nil
}

// versions is the version range (low, high] of the filter's time range.
func (f *StatementFilter) versions(ctx context.Context, d db.DBTX, tenant int32,
	a db.BalanceReadRow) (low, high int64, err error) {
	if f.From.IsZero() && f.Before.IsZero() {
		return 0, a.Version, nil
	}
	start, end := span(f.From, f.Before)
	row, err := q.VersionRange(ctx, d, db.VersionRangeParams{TenantID: tenant, AccountID: a.AccountID,
		LowAt: start.Add(-time.Microsecond), HighAt: end.Add(-time.Microsecond)})
	return row.Low, row.High, err
}

// window is the version range (low, high], ascending or descending. Versions have no gaps, so a range tells its
// number of entries.
type window struct {
	low, high int64
	up        bool
}

// after is the rest of the window after a version.
func (w window) after(version int64) window {
	if w.up {
		w.low = max(w.low, version)
	} else {
		w.high = min(w.high, version-1)
	}
	return w
}

// first is the window's first n versions.
func (w window) first(n int64) window {
	if w.up {
		w.high = min(w.high, w.low+n)
	} else {
		w.low = max(w.low, w.high-n)
	}
	return w
}

// last is the window's last version.
func (w window) last() int64 {
	if w.up {
		return w.high
	}
	return w.low + 1
}

func (w window) direction() int64 {
	if w.up {
		return 1
	}
	return -1
}

func lineOf(code, asset string, a db.BalanceReadRow, r db.EntryPageRow) StatementLine {
	return StatementLine{
		Entry: Entry{AccountID: a.AccountID, Account: code, Asset: asset, Scale: uint8(a.Scale), Version: r.Version,
			TransferID: r.TransferID, Posting: r.Posting, Amount: r.Amount, Before: r.BalanceBefore,
			After:      r.BalanceAfter,
			RecordedAt: r.RecordedAt, EffectiveAt: pg.OrZero(r.EffectiveAt)},
		BizNo: r.BizNo, Type: r.Type, Metadata: pg.Metadata(r.Metadata),
	}
}
