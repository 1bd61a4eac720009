package work

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Works describes the table work_records to the cleaner. Running work with a live lease and parked work never expire.
func Works() clean.Table {
	return clean.Table{
		Name:    "work_records",
		Delete:  func(ctx context.Context, tx pgx.Tx, n int32) (int64, error) { return q.WorkClean(ctx, tx, n) },
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.WorkOverdue(ctx, tx) },
	}
}
