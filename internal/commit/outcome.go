package commit

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

const voidTimeout = 10 * time.Second

var errWarned = errors.New("commit: the database warned at COMMIT")

// findOut settles a batch whose COMMIT went out without coming back as done. It returns nil when the
// jobs' outcomes stand, and err when nothing was kept. Nobody is answered before.
func (e *Engine[B]) findOut(b *batch[B], err error) error {
	id, jobs := b.id, b.jobs
	e.metrics.unknown.Inc()
	e.log.Warn("the outcome of a COMMIT is unknown", "batch_id", id, "error", err)
	if errors.Is(err, errWarned) {
		e.health.doubted.Store(true)
		for _, j := range jobs {
			j.reset()
			j.err = fault.OutcomeUnknown.New("the database committed without being sure that it lasts").Because(err)
		}
		return nil
	}
	if b.committed = e.resolve(id); b.committed {
		return nil
	}
	return err
}

// end tells the tables how the transaction ended, once.
func (b *batch[B]) end() {
	if !b.flushed {
		return
	}
	for _, t := range b.tables {
		if o, ok := t.(Ending); ok {
			b.tell(o)
		}
	}
}

// tell keeps a panic from those who wait for answers.
func (b *batch[B]) tell(t Ending) {
	defer func() {
		if r := recover(); r != nil {
			b.engine.metrics.panics.Inc()
			b.engine.log.Error("panic after a batch", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	t.Ended(b.committed)
}

// resolve finds out whether a batch has committed, however long it takes. It puts a void row under
// the batch's number: that waits for the other transaction if it still runs, and if it lands, the
// batch can never commit, because its own row would collide.
//
// A batch that has committed may still have been cut off while it waited for a synchronous standby.
// A second void row, under a number of its own, waits for the standby after it.
func (e *Engine[B]) resolve(id int64) (committed bool) {
	for wait := 5 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
		committed, err := e.void(ctx, id)
		if err == nil && committed {
			err = e.probeOnce()
		}
		cancel()
		if err == nil {
			e.log.Info("the outcome of a COMMIT is known", "batch_id", id, "committed", committed)
			return committed
		}
		e.breaks(err)
		time.Sleep(wait)
	}
}

// void puts a row of no commands under a batch number, and tells whether a batch was there before.
func (e *Engine[B]) void(ctx context.Context, id int64) (committed bool, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	pg.ClearWarning(conn.Conn())
	for {
		commands, err := q.BatchVoid(ctx, conn, db.BatchVoidParams{BatchID: id, Instance: e.instance})
		switch {
		case errors.Is(err, pgx.ErrNoRows): // it committed while this waited: now it can be seen
			continue
		case err == nil && pg.Warned(conn.Conn()):
			return false, errWarned
		}
		return commands > 0, err
	}
}

// batchIDs hands out batch numbers from blocks of the sequence.
type batchIDs struct {
	mu            sync.Mutex
	unused, limit int64
}

const batchBlock = 1000

func (b *batchIDs) next(ctx context.Context, d DB) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit {
		first, err := q.BatchBlock(ctx, d)
		if err != nil {
			return 0, err
		}
		b.unused, b.limit = first, first+batchBlock
	}
	b.unused++
	return b.unused - 1, nil
}
