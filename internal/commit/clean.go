package commit

import (
	"context"
	"time"
)

// cleanBatch is how many rows one statement of a cleaner deletes.
const cleanBatch = 1000

// Cleaner deletes at most batch rows whose life is over, without waiting for anybody, and tells how many.
type Cleaner func(ctx context.Context, db DB, batch int32) (int64, error)

// CleanKeys deletes request keys whose life is over: see Clean.
func (e *Engine[B]) CleanKeys(ctx context.Context) (deleted int64, err error) {
	return e.Clean(ctx, func(ctx context.Context, db DB, batch int32) (int64, error) { return q.KeyClean(ctx, db, batch) })
}

// Clean runs a cleaner in small batches until nothing is left or ctx ends. Several processes may clean at
// once. It tells how many rows it deleted.
func (e *Engine[B]) Clean(ctx context.Context, cleaner Cleaner) (deleted int64, err error) {
	for {
		n, err := e.cleanSome(ctx, cleaner)
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
func (e *Engine[B]) cleanSome(ctx context.Context, cleaner Cleaner) (deleted int64, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	p := NewPipe(ctx)
	p.exec("begin isolation level read committed", "BEGIN")
	p.Queue(func(d DB) error { return q.SettingsApply(ctx, d, settings(e.lockWait)) })
	p.Queue(func(d DB) (err error) { deleted, err = cleaner(ctx, d, cleanBatch); return err })
	p.exec("commit", "COMMIT")
	return deleted, p.Run(conn.Conn())
}
