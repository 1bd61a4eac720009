package code

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Codes returns the table that the cleaner deletes expired codes from.
func Codes() clean.Table {
	return clean.Table{
		Name: "notify_codes",
		Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64,
			error) {
			return q.CodeClean(ctx, tx, limit)
		},
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.CodeOverdue(ctx, tx) },
	}
}
