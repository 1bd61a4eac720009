package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/inbox/internal/db"
)

// deleteExpired deletes messages with their contents.
func deleteExpired(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
	rows, err := q.MessageExpired(ctx, tx, limit)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	var contents db.ContentDropParams
	tids := make([]pgtype.TID, 0, len(rows))
	for _, r := range rows {
		contents.Tenants = append(contents.Tenants, r.TenantID)
		contents.ConsumerGroups = append(contents.ConsumerGroups, r.ConsumerGroup)
		contents.MessageIds = append(contents.MessageIds, r.MessageID)
		contents.Parts = append(contents.Parts, r.Part)
		tids = append(tids, r.Ctid)
	}
	if err := q.ContentDrop(ctx, tx, contents); err != nil {
		return 0, err
	}
	return q.MessageDelete(ctx, tx, tids)
}

// Tables describes the messages and their contents to the cleaner. Deleting a message deletes its content.
func Tables() []clean.Table {
	return []clean.Table{
		{
			Name:    "inbox_messages",
			Delete:  deleteExpired,
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
