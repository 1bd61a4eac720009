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
		n, err := e.cleanSome(ctx)
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
func (e *Engine[B]) cleanSome(ctx context.Context) (deleted int64, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	p := NewPipe(ctx)
	p.exec("begin isolation level read committed", "BEGIN")
	p.Queue(func(d DB) error { return q.SettingsApply(ctx, d, settings(e.lockWait)) })
	p.Queue(func(d DB) (err error) { deleted, err = q.KeyClean(ctx, d, cleanBatch); return err })
	p.exec("commit", "COMMIT")
	return deleted, p.Run(conn.Conn())
}
