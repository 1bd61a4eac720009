package audit

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/audit/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Event is a change of a setting, as it is recorded.
type Event struct {
	ID            int64
	Kind          Kind
	Name          string
	Before, After json.RawMessage // objects; empty: there was, or is, no such setting
	At            time.Time
	Principal     string // empty: the service itself, or a login of the database
	KeyID         string // empty: no API key
	RequestID     string
	DatabaseRole  string
	ApprovedBy    string // principal; empty: the change needed no approval
}

// Filter selects events. Empty fields select all.
type Filter struct {
	Kind         Kind
	Name         string // needs Kind
	Principal    string
	From, Before time.Time
}

// Reader reads committed events, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// lastTime is after all times of requests.
var lastTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)

// Events lists events, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Events(ctx context.Context, tenant int32, f Filter, size int, token string) ([]Event, string, error) {
	if f.Before.IsZero() {
		f.Before = lastTime
	}
	pages := paging.Of("audit", tenant, string(f.Kind), f.Name, f.Principal, f.From.Format(time.RFC3339Nano),
		f.Before.Format(time.RFC3339Nano))
	return paging.ReadNumbered(pages, size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.EventPageRow, error) { return r.page(ctx, tenant, f, before, n) },
		func(row *db.EventPageRow) int64 { return row.EventID },
		func(row *db.EventPageRow) (Event, error) {
			return Event{ID: row.EventID, Kind: Kind(row.Kind), Name: row.Name, Before: row.Before, After: row.After,
				At: row.RecordedAt, Principal: pg.OrZero(row.Principal), KeyID: pg.OrZero(row.KeyID),
				RequestID: pg.OrZero(row.RequestID), DatabaseRole: row.DatabaseRole,
				ApprovedBy: pg.OrZero(row.ApprovedBy)}, nil
		})
}

func (r *Reader) page(ctx context.Context, tenant int32, f Filter, before int64, n int32) (rows []db.EventPageRow,
	err error) {
	d := pg.Planned{DB: r.pool}
	if f.Name == "" {
		return q.EventPage(ctx, d, db.EventPageParams{TenantID: tenant, BeforeID: before, StartAt: f.From,
			EndAt: f.Before, Kind: string(f.Kind), Principal: f.Principal, Count: n})
	}
	found, err := q.EventPageOfName(ctx, d, db.EventPageOfNameParams{TenantID: tenant, Kind: string(f.Kind),
		Name: f.Name, BeforeID: before, StartAt: f.From, EndAt: f.Before, Principal: f.Principal, Count: n})
	for _, row := range found {
		rows = append(rows, db.EventPageRow(row))
	}
	return rows, err
}
