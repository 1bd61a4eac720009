package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// cleanBatch is the row limit of one delete statement.
const cleanBatch = 500

// Clean deletes expired queue entries, and locks without waiters that have been free or expired for at least
// spare. It works in small batches until no stale row is left or ctx ends, and returns the number of leases
// that expired without a release. Several processes may clean at once.
//
// Stale rows are found by paging through the whole table: an index for them would make every renewal more
// expensive. A delete statement blocks batches that use locks while it runs; see BatchEnter in the queries.
func Clean(ctx context.Context, pool *pgxpool.Pool, spare time.Duration) (lapsed int, err error) {
	ctx = pg.ForAllTenants(ctx)
	for {
		n, err := exclusively(ctx, pool, func(tx pgx.Tx) (int64, error) { return q.WaiterClean(ctx, tx, cleanBatch) })
		if err != nil {
			return 0, fmt.Errorf("clean waiters: %w", err)
		}
		if n < cleanBatch {
			break
		}
	}
	seconds := int32(spare / time.Second)
	for after := (Key{}); ; {
		page, err := q.LockStalePage(ctx, pg.Planned{DB: pool},
			db.LockStalePageParams{AfterTenant: after.Tenant, AfterName: after.Name, SpareS: seconds, Size: cleanBatch})
		if err != nil || len(page) == 0 {
			return lapsed, err
		}
		arg := db.LockCleanParams{SpareS: seconds}
		for _, l := range page {
			arg.Tenants = append(arg.Tenants, l.TenantID)
			arg.Names = append(arg.Names, l.Name)
			after = Key{l.TenantID, l.Name}
		}
		n, err := exclusively(ctx, pool, func(tx pgx.Tx) (int64, error) {
			r, err := q.LockClean(ctx, tx, arg)
			return int64(r.Lapsed), err
		})
		if err != nil {
			return lapsed, fmt.Errorf("clean locks: %w", err)
		}
		lapsed += int(n)
	}
}

// exclusively runs one statement while no batch uses locks. A lock timeout bounds its wait for running batches,
// because later batches queue behind it.
func exclusively(ctx context.Context, pool *pgxpool.Pool, clean func(pgx.Tx) (int64, error)) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pg.Begin(ctx, pg.ReadCommitted), func(tx pgx.Tx) error {
		if err := q.CleanSettings(ctx, tx); err != nil {
			return err
		}
		if err := q.CleanEnter(ctx, tx); err != nil {
			return err
		}
		n, err = clean(tx)
		return err
	})
	return n, err
}
