package inbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// cleanBatch is how many rows one statement deletes.
	cleanBatch = 500
	// cleanPause leaves the disk to the callers between two batches.
	cleanPause = 20 * time.Millisecond
)

// Clean deletes messages and contents whose life is over, in small batches without waiting for anybody,
// until none is left or ctx ends. Several processes may clean at once. It tells how many it deleted.
func Clean(ctx context.Context, pool *pgxpool.Pool) (messages, contents int64, err error) {
	for {
		var m, c int64
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			if err = q.CleanSettings(ctx, tx); err != nil {
				return err
			}
			if m, err = q.MessageClean(ctx, tx, cleanBatch); err != nil {
				return err
			}
			c, err = q.ContentClean(ctx, tx, cleanBatch)
			return err
		})
		if err != nil {
			return messages, contents, err
		}
		messages, contents = messages+m, contents+c
		if m < cleanBatch && c < cleanBatch {
			return messages, contents, nil
		}
		select {
		case <-ctx.Done():
			return messages, contents, ctx.Err()
		case <-time.After(cleanPause):
		}
	}
}
