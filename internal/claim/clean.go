package claim

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Tables are the claims, as the cleaner sees them.
func Tables() []clean.Table {
	all := make([]clean.Table, len(tables))
	for i := range tables {
		all[i] = clean.Table{
			Name: tables[i].name,
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return tables[i].clean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return tables[i].overdue(ctx, tx) },
		}
	}
	return all
}
