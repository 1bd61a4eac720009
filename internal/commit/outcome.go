package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

const voidTimeout = 10 * time.Second

var errWarned = errors.New("commit: the database warned at COMMIT")

// findOut settles an attempt whose COMMIT was sent and not confirmed. It reports whether the
// jobs' outcomes stand; else nothing was kept. No caller is answered before.
func (e *Engine[T]) findOut(a *attempt[T], err error) (stands bool) {
	e.metrics.unknown.Inc()
	e.log.Warn("the outcome of a COMMIT is unknown", "batch_id", a.id, "error", err)
	if errors.Is(err, errWarned) {
		for _, j := range a.jobs {
			if j.later {
				continue // it was undone, and runs after this batch
			}
			j.reset()
			j.err = fault.OutcomeUnknown.New("committed, but a synchronous standby did not confirm it: retry with the same key").Because(err)
		}
		return true
	}
	a.durable = e.settle(a.id, a.nonce)
	return a.durable
}

// tell tells the participants how the transaction ended, once.
func (a *attempt[T]) tell() {
	if !a.flushed {
		return
	}
	for _, x := range a.participants {
		if o, ok := x.(Observer); ok {
			a.tellOne(o)
		}
	}
}

// tellOne recovers a panic in Ended, so that callers still get their answers.
func (a *attempt[T]) tellOne(o Observer) {
	defer func() {
		if r := recover(); r != nil {
			a.engine.metrics.panics.Inc()
			a.engine.log.Error("panic after a batch", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	o.Ended(a.durable)
}

// settle finds out whether an attempt has committed, however long it takes. It puts a void row under
// the batch's number: that waits for the other transaction if it still runs. If the void row lands, or another
// attempt's row is there, the batch can never commit, because its own row would collide.
//
// A batch that has committed may still have been cut off while it waited for a synchronous standby.
// A second void row, under a number of its own, waits for the standby after it.
func (e *Engine[T]) settle(id, nonce int64) (committed bool) {
	for wait := 5 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		committed, err := e.void(id, nonce)
		if err == nil && committed {
			err = e.probeOnce()
		}
		if err == nil {
			e.log.Info("the outcome of a COMMIT was found", "batch_id", id, "committed", committed)
			return committed
		}
		e.markUnready(err)
		time.Sleep(wait)
	}
}

// void puts a row of no commands under a batch's number, as durably as batches are, and reports whether
// the attempt's own row was there before.
func (e *Engine[T]) void(id, nonce int64) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer func() { // a connection that failed may be silent; others of the pool too
		if err != nil {
			_ = conn.Conn().Close(ctx)
		}
		conn.Release()
	}()
	for {
		var row db.BatchVoidRow
		err := durably(ctx, conn.Conn(), func(tx pgx.Tx) (err error) {
			row, err = q.BatchVoid(ctx, tx, db.BatchVoidParams{BatchID: id, Nonce: nonce, Instance: e.instance})
			return err
		})
		if errors.Is(err, pgx.ErrNoRows) { // it committed while this waited: now it can be seen
			continue
		}
		return err == nil && row.Commands > 0 && row.Nonce == nonce, err
	}
}

// durably runs a transaction that is as durable as batches are, and that fails when the database is not
// sure that it lasts.
func durably(ctx context.Context, conn *pgx.Conn, run func(pgx.Tx) error) error {
	pg.ClearWarning(conn)
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := q.DurabilityRaise(ctx, tx); err != nil {
			return err
		}
		return run(tx)
	})
	if err == nil && pg.Warned(conn) {
		return errWarned
	}
	return err
}

// batchIDs hands out batch numbers from blocks of the sequence. Numbers may be given out twice when the
// database loses what it last did (an asynchronous standby is promoted, a backup is restored): then batches
// collide, and take a new block.
type batchIDs struct {
	mu            sync.Mutex
	unused, limit int64
	fetched       time.Time
}

const (
	batchBlock = 1000
	blockLife  = time.Hour // a number is used within an hour of being fetched
)

// next gives a number. A fetch that hangs holds up its own writer alone.
func (b *batchIDs) next(conn *pgx.Conn) (int64, error) {
	if id, ok := b.take(); ok {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	var first int64
	err := durably(ctx, conn, func(tx pgx.Tx) (err error) {
		first, err = q.BatchBlock(ctx, tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit { // else another writer was faster, and this block is left over
		b.unused, b.limit, b.fetched = first, first+batchBlock, time.Now()
	}
	b.unused++
	return b.unused - 1, nil
}

func (b *batchIDs) take() (id int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit || time.Since(b.fetched) > blockLife {
		b.unused = b.limit
		return 0, false
	}
	b.unused++
	return b.unused - 1, true
}

// discardBlock gives up the rest of the block.
func (b *batchIDs) discardBlock() {
	b.mu.Lock()
	b.unused = b.limit
	b.mu.Unlock()
}

// Epoch is a stretch of the database's history in which commits have one order and none was lost. A
// restore into another cluster or database begins another one, and so does each promotion of a standby.
type Epoch struct {
	Number int32
	// Term names the epoch in cursors. No other copy of the database has it, unless it was copied later
	// without Postgres noticing, as by a snapshot of its disk.
	Term  string
	Began time.Time
}

// CurrentEpoch reads the epoch, and records it when no server has noticed it yet.
func CurrentEpoch(ctx context.Context, pool *pgxpool.Pool) (Epoch, error) {
	for recorded := false; ; recorded = true {
		e, err := q.EpochRead(ctx, pool)
		if err != nil {
			return Epoch{}, fmt.Errorf("read the epoch: %w", err)
		}
		if e.Nonce != "" {
			return Epoch{Number: e.Epoch, Term: fmt.Sprintf("%d-%s", e.Epoch, e.Nonce), Began: e.BeganAt}, nil
		}
		if recorded {
			return Epoch{}, fmt.Errorf("epoch %d was recorded but is missing: the database was replaced meanwhile",
				e.Epoch)
		}
		if err := q.EpochBegin(ctx, pool); err != nil {
			return Epoch{}, fmt.Errorf("begin epoch %d: %w", e.Epoch, err)
		}
	}
}

// runningPoll is how often AwaitRunning looks.
const runningPoll = 2 * time.Millisecond

// AwaitRunning waits until all batches that run now, in any process on the database, have ended. A batch
// that begins later has a later time than this call.
func AwaitRunning(ctx context.Context, d DB) error {
	open, err := q.BatchesOpen(ctx, d)
	for err == nil && len(open) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(runningPoll):
		}
		var still []string
		still, err = q.BatchesOpen(ctx, d)
		open = slices.DeleteFunc(open, func(b string) bool { return !slices.Contains(still, b) })
	}
	return err
}
