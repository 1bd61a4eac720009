package commit

import (
	"context"
	"time"
)

// cleanBatch is how many expired rows one statement deletes.
const cleanBatch = 1000

// CleanKeys deletes request keys whose life is over. It tells how many it deleted.
func (e *Engine[B]) CleanKeys(ctx context.Context) (deleted int64, err error) {
	return e.Clean(ctx, func(ctx context.Context, d DB, batch int32) (int64, error) { return q.KeyClean(ctx, d, batch) })
}

// Cleaner is one statement that deletes up to batch rows whose life is over, and passes over locked ones.
type Cleaner func(ctx context.Context, d DB, batch int32) (deleted int64, err error)

// Clean deletes rows whose life is over, in small batches without waiting for anybody, until none is left
// or ctx ends. Several processes may clean at once. It tells how many
// were deleted.
func (e *Engine[B]) Clean(ctx context.Context, some Cleaner) (deleted int64, err error) {
	for {
		n, err := e.cleanSome(ctx, some)
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

// cleanSome deletes one batch, with the settings of every batch: the planner would rather read the
// whole table.
func (e *Engine[B]) cleanSome(ctx context.Context, some Cleaner) (deleted int64, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	p := NewPipe(ctx)
	p.exec("begin isolation level read committed", "BEGIN")
	p.Queue(func(d DB) error { return q.SettingsApply(ctx, d, settings(e.lockWait)) })
	p.Queue(func(d DB) (err error) { deleted, err = some(ctx, d, cleanBatch); return err })
	p.exec("commit", "COMMIT")
	return deleted, p.Run(conn.Conn())
}
