package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Tables are the messages and their contents, as the cleaner sees them. A message takes its content with it.
func Tables() []clean.Table {
	return []clean.Table{
		{
			Name: "inbox_messages",
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return q.MessageClean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.MessageOverdue(ctx, tx) },
		},
		{
			Name: "inbox_contents",
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return q.ContentClean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.ContentOverdue(ctx, tx) },
		},
	}
}
