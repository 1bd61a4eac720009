package work

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work/internal/db"
)

// Reader serves reads from committed rows, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Record is a piece of work as readers see it.
type Record struct {
	db.WorkPageRow
	State  State   // effective state now
	Answer *Answer // nil: no answer, or a list result
}

// Get reads a piece of work with its answer. Returns fault WORK_NOT_FOUND.
func (r *Reader) Get(ctx context.Context, k Key) (*Record, error) {
	row, err := q.WorkRead(ctx, pg.Planned{DB: r.pool},
		db.WorkReadParams{TenantID: k.Tenant, Scope: k.Scope, Key: k.Name})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound(k.Scope, k.Name)
	}
	if err != nil {
		return nil, err
	}
	rec := recordOf(db.WorkPageRow{Scope: row.Scope, Key: row.Key, Fingerprint: row.Fingerprint, State: row.State,
		Fence: row.Fence, Attempt: row.Attempt, LeaseExpiresAt: row.LeaseExpiresAt, ParkLapsed: row.ParkLapsed,
		Principal: row.Principal, RequestID: row.RequestID, FirstRequestID: row.FirstRequestID,
		CreatedAt: row.CreatedAt, BegunAt: row.BegunAt, SettledAt: row.SettledAt, SettledBy: row.SettledBy,
		SettledRequestID: row.SettledRequestID, Status: row.Status, BodyBytes: row.BodyBytes, ExpiresAt: row.ExpiresAt,
		Now: row.Now})
	if row.Headers != nil {
		headers, err := decodeHeaders(row.Headers)
		if err != nil {
			return nil, fmt.Errorf("read the headers of a recorded answer: %w", err)
		}
		rec.Answer = &Answer{Status: pg.OrZero(row.Status), Headers: headers, bytes: int(pg.OrZero(row.BodyBytes)),
			body: row.Body, compressed: row.BodyCompressed}
	}
	return rec, nil
}

func recordOf(r db.WorkPageRow) *Record {
	return &Record{WorkPageRow: r, State: stateAt(State(r.State), pg.OrZero(r.LeaseExpiresAt), r.ParkLapsed, r.Now)}
}

// Filter selects the work to list. Empty fields match everything.
type Filter struct {
	Scope string
	State State
}

// List lists work by scope and key, without answers. A page examines a bounded number of rows, so a page may be
// short or empty although a next token follows. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, f Filter, size int,
	token string) (list []*Record, next string, err error) {
	l := paging.Of("records", tenant, f.Scope, string(f.State))
	place, err := l.After(token, 2)
	if err != nil {
		return nil, "", err
	}
	if place == nil {
		place = []string{f.Scope, ""} // keys are not empty
	}
	last := f.Scope
	if last == "" {
		last = strings.Repeat("\U0010ffff", 33) // sorts after every scope, which has at most 32 characters
	}
	size = paging.Size(size)
	var rows []db.WorkPageRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = pages(ctx, d, f.State,
			db.WorkPageParams{TenantID: tenant, AfterScope: place[0], AfterKey: place[1], LastScope: last,
				Count: int32(size + 1)})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = l.Token(rows[size-1].Scope, rows[size-1].Key)
	}
	for _, row := range rows {
		rec := recordOf(row)
		gone := rec.ExpiresAt != nil && !rec.ExpiresAt.After(rec.Now)
		if !gone && (f.State == "" || f.State == rec.State) {
			list = append(list, rec)
		}
	}
	return list, next, nil
}

// pages reads rows, all of one state if a state is given. Parked work has two index ranges, which are merged.
func pages(ctx context.Context, d db.DBTX, s State, arg db.WorkPageParams) ([]db.WorkPageRow, error) {
	open := func(s State) (rows []db.WorkPageRow, err error) {
		found, err := q.WorkPageOpen(ctx, d,
			db.WorkPageOpenParams{TenantID: arg.TenantID, State: string(s), AfterScope: arg.AfterScope,
				AfterKey: arg.AfterKey, LastScope: arg.LastScope, Count: arg.Count})
		for _, r := range found {
			rows = append(rows, db.WorkPageRow(r))
		}
		return rows, err
	}
	switch s {
	case Running, Lapsed:
		return open(Running)
	case Parked:
		parked, err := open(Parked)
		if err != nil {
			return nil, err
		}
		running, err := open(Running)
		return merge(parked, running, int(arg.Count)), err
	}
	return q.WorkPage(ctx, d, arg)
}

// merge merges two sorted lists, truncated where either of them may continue.
func merge(a, b []db.WorkPageRow, count int) (rows []db.WorkPageRow) {
	for len(rows) < count && (len(a) > 0 || len(b) > 0) {
		if len(b) == 0 || len(a) > 0 && before(&a[0], &b[0]) {
			rows, a = append(rows, a[0]), a[1:]
		} else {
			rows, b = append(rows, b[0]), b[1:]
		}
	}
	return rows
}

func before(a, b *db.WorkPageRow) bool {
	return a.Scope < b.Scope || a.Scope == b.Scope && a.Key < b.Key
}
