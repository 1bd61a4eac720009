package commit

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Keys are the request keys, as the cleaner sees them.
func Keys() clean.Table {
	return clean.Table{
		Name:    "commit_keys",
		Delete:  func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) { return q.KeyClean(ctx, tx, limit) },
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.KeyOverdue(ctx, tx) },
	}
}

// Busy tells how much work waits, in full batches.
func (e *Engine[T]) Busy() float64 {
	return float64(e.queue.depth()) / float64(e.queue.limits.BatchRows)
}
