package lock

import (
	"context"
	"errors"

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
		Lease: pg.Milliseconds(l.LeaseMs), AcquiredAt: l.AcquiredAt, ExpiresAt: l.ExpiresAt, RequestID: l.RequestID,
		Waiters: int(l.Waiters)}, err
}

// List returns the currently held locks whose names begin with a prefix, ordered by name. The token is the next
// token of the previous page. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, prefix string, size int, token string) ([]Lock, string,
	error) {
	return paging.ReadNamed(paging.Of("locks", tenant, prefix), size, token,
		func(after string, n int32) ([]db.LockPageRow, error) {
			return q.LockPage(ctx, r.reads, db.LockPageParams{TenantID: tenant, After: after, Prefix: prefix, Size: n})
		}, func(l *db.LockPageRow) string { return l.Name },
		func(l *db.LockPageRow) (Lock, error) {
			return Lock{Name: l.Name, Principal: l.Principal, Holder: l.Holder, Fence: l.Fence, Holds: int(l.Holds),
				Lease: pg.Milliseconds(l.LeaseMs), AcquiredAt: l.AcquiredAt, ExpiresAt: l.ExpiresAt,
				RequestID: l.RequestID}, nil
		})
}
