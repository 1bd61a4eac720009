package lock

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed locks, outside the engine.
type Reader struct{ reads pg.Planned }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pg.Planned{DB: pool}} }

// Get returns the current holder of a lock and the number of waiters.
func (r *Reader) Get(ctx context.Context, k Key) (Lock, error) {
	l, err := q.LockGet(ctx, r.reads, db.LockGetParams{TenantID: k.Tenant, Name: k.Name})
	if errors.Is(err, pgx.ErrNoRows) {
		n, err := q.WaiterCount(ctx, r.reads, db.WaiterCountParams{TenantID: k.Tenant, Name: k.Name})
		return Lock{Name: k.Name, Waiters: int(n)}, err
	}
	return Lock{Name: l.Name, Principal: l.Principal, Holder: l.Holder, Fence: l.Fence, Holds: int(l.Holds),
		Lease: millis(l.LeaseMs), AcquiredAt: l.AcquiredAt, ExpiresAt: l.ExpiresAt, RequestID: l.RequestID,
		Waiters: int(l.Waiters)}, err
}

func millis(n int32) time.Duration { return time.Duration(n) * time.Millisecond }

// defaultPage is the page size if the caller names none.
const defaultPage = 100

// List returns the currently held locks whose names begin with a prefix, ordered by name. The token is the next
// token of the previous page. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, prefix string, size int,
	token string) (locks []Lock, next string, err error) {
	pages := paging.Of("locks", tenant, prefix)
	place, err := pages.After(token, 1)
	if err != nil {
		return nil, "", err
	}
	after := ""
	if place != nil {
		after = place[0]
	}
	if size == 0 {
		size = defaultPage
	}
	rows, err := q.LockPage(ctx, r.reads,
		db.LockPageParams{TenantID: tenant, After: after, Prefix: prefix, Size: int32(size) + 1})
	if err != nil {
		return nil, "", err
	}
	for _, l := range rows[:min(len(rows), size)] {
		locks = append(locks, Lock{Name: l.Name, Principal: l.Principal, Holder: l.Holder, Fence: l.Fence,
			Holds: int(l.Holds), Lease: millis(l.LeaseMs), AcquiredAt: l.AcquiredAt, ExpiresAt: l.ExpiresAt,
			RequestID: l.RequestID})
	}
	if len(rows) > size {
		next = pages.Token(rows[size-1].Name)
	}
	return locks, next, nil
}
