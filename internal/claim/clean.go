package claim

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Keys describes the claims to the cleaner.
func Keys() clean.Table {
	return clean.Table{
		Name: "claim_keys",
		Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64,
			error) {
			return q.ClaimClean(ctx, tx, limit)
		},
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.ClaimOverdue(ctx, tx) },
	}
}
