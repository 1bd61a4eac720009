package commit

import (
	"context"
	"slices"
	"time"
)

// settlePoll is how often Settle looks.
const settlePoll = 2 * time.Millisecond

// Settle waits until all batches that run now, in any process on the database, have ended. A batch
// that begins later has a later time than this call.
func Settle(ctx context.Context, d DB) error {
	open, err := q.BatchesOpen(ctx, d)
	for err == nil && len(open) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settlePoll):
		}
		var still []string
		still, err = q.BatchesOpen(ctx, d)
		open = slices.DeleteFunc(open, func(b string) bool { return !slices.Contains(still, b) })
	}
	return err
}
