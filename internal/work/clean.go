package work

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Works are work done elsewhere, as the cleaner sees it. What runs under a live lease and what is parked has no end
// of life.
func Works() clean.Table {
	return clean.Table{
		Name: "work_records",
		Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64,
			error) {
			return q.WorkClean(ctx, tx, limit)
		},
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.WorkOverdue(ctx, tx) },
	}
}
