package record

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// cleanBatch is how many rows one statement deletes: each may have an answer of 1 MiB.
const cleanBatch = 500

// beginClean begins a transaction that goes by the index, whatever the statistics say.
const beginClean = "begin isolation level read committed; set local enable_seqscan = off; set local jit = off"

// Clean deletes work whose life is over, in small batches, without waiting for anybody, until none is left
// or ctx ends. What runs under a live lease and what is parked has no end of life. Several processes may
// clean at once. It tells how many rows it deleted.
func Clean(ctx context.Context, pool *pgxpool.Pool) (deleted int64, err error) {
	for {
		var n int64
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: beginClean}, func(tx pgx.Tx) (err error) {
			n, err = q.WorkClean(ctx, pg.Planned{DB: tx}, cleanBatch)
			return err
		})
		deleted += n
		if err != nil || n < cleanBatch {
			return deleted, err
		}
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(20 * time.Millisecond): // leave the disk to the callers
		}
	}
}
