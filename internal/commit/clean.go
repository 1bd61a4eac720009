package commit

import (
	"context"
	"time"
)

// cleanBatch is how many expired keys one statement deletes.
const cleanBatch = 1000

// CleanKeys deletes request keys whose life is over, in small batches without waiting for anybody,
// until none is left or ctx ends. Several processes may clean at once. It tells how many it deleted.
func (e *Engine[B]) CleanKeys(ctx context.Context) (deleted int64, err error) {
	for {
		n, err := q.KeyClean(ctx, e.pool, cleanBatch)
		deleted += n
		if err != nil || n < cleanBatch {
			return deleted, err
		}
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(20 * time.Millisecond): // leave the disk to the callers
		}
	}
}
