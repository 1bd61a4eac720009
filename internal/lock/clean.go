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

// cleanBatch is how many rows one statement deletes.
const cleanBatch = 500

// Clean deletes waiters that are gone and locks that nobody has held for spare and nobody waits for, in
// small batches, until none is left or ctx ends. It tells how many locks had lapsed. Several processes may
// clean at once.
//
// What is stale is looked for by reading the whole table, a page at a time: an index that would find it
// would make every renewal dearer. Deleting shuts out batches that work with locks, for as long as one
// statement takes; see BatchEnter in the queries.
func Clean(ctx context.Context, pool *pgxpool.Pool, spare time.Duration) (lapsed int, err error) {
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
			arg.Tenants, arg.Names = append(arg.Tenants, l.TenantID), append(arg.Names, l.Name)
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

// exclusively runs one statement with no batch of locks beside it. When one stays for long it gives up:
// batches that come later wait meanwhile.
func exclusively(ctx context.Context, pool *pgxpool.Pool, clean func(pgx.Tx) (int64, error)) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
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
