package audit

import (
	"cmp"
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

const defaultPage = 100

// lastTime is after all times of requests.
var lastTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)

// Events lists events, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Events(ctx context.Context, tenant int32, f Filter, size int, token string) (list []Event, next string,
	err error) {
	size = cmp.Or(size, defaultPage)
	end := f.Before
	if end.IsZero() {
		end = lastTime
	}
	pages := paging.Of("audit", tenant, string(f.Kind), f.Name, f.Principal, f.From.Format(time.RFC3339Nano),
		end.Format(time.RFC3339Nano))
	before, err := pages.AfterNumber(token, math.MaxInt64)
	if err != nil {
		return nil, "", err
	}
	d := pg.Planned{DB: r.pool}
	var rows []db.EventPageRow
	if f.Name == "" {
		rows, err = q.EventPage(ctx, d, db.EventPageParams{TenantID: tenant, BeforeID: before, StartAt: f.From,
			EndAt: end, Kind: string(f.Kind), Principal: f.Principal, Count: int32(size) + 1})
	} else {
		var found []db.EventPageOfNameRow
		found, err = q.EventPageOfName(ctx, d, db.EventPageOfNameParams{TenantID: tenant, Kind: string(f.Kind),
			Name: f.Name, BeforeID: before, StartAt: f.From, EndAt: end, Principal: f.Principal,
			Count: int32(size) + 1})
		for _, row := range found {
			rows = append(rows, db.EventPageRow(row))
		}
	}
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = pages.TokenNumber(rows[size-1].EventID)
	}
	for _, row := range rows {
		list = append(list, Event{ID: row.EventID, Kind: Kind(row.Kind), Name: row.Name, Before: row.Before,
			After: row.After, At: row.RecordedAt.UTC(), Principal: pg.OrZero(row.Principal),
			KeyID:     pg.OrZero(row.KeyID),
			RequestID: pg.OrZero(row.RequestID), DatabaseRole: row.DatabaseRole,
			ApprovedBy: pg.OrZero(row.ApprovedBy)})
	}
	return list, next, nil
}
