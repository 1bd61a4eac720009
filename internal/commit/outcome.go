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

// resolveOutcome determines the outcome of an attempt whose COMMIT was sent and not confirmed. It reports whether
// every job has its answer, which may be OUTCOME_UNKNOWN; otherwise the attempt had no effect. No caller is answered
// before.
func (e *Engine[T]) resolveOutcome(a *attempt[T], err error) (valid bool) {
	e.metrics.unknown.Inc()
	e.log.Warn("the outcome of a COMMIT is unknown", "batch_id", a.id, "error", err)
	if errors.Is(err, errWarned) {
		for _, j := range a.jobs {
			if j.later {
				continue // undone and deferred
			}
			j.reset()
			j.err = fault.OutcomeUnknown.New("committed, but a synchronous standby did not confirm it: retry with the same key").Because(err)
		}
		return true
	}
	a.durable = e.settle(a.id, a.nonce)
	return a.durable
}

// notifyObservers passes the outcome of the transaction to the Observers, once.
func (a *attempt[T]) notifyObservers() {
	if !a.flushed {
		return
	}
	for _, x := range a.participants {
		if o, ok := x.(Observer); ok {
			a.notifyObserver(o)
		}
	}
}

// notifyObserver recovers a panic in Ended, so that callers are still answered.
func (a *attempt[T]) notifyObserver(o Observer) {
	defer func() {
		if r := recover(); r != nil {
			a.engine.metrics.panics.Inc()
			a.engine.log.Error("panic after a batch", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	o.Ended(a.durable)
}

// settle determines whether an attempt has committed, and retries until it knows. It inserts a void row under the
// batch's number, which waits for the transaction if that still runs. If the void row or another attempt's row exists,
// the batch can never commit, because its own row would collide.
//
// A committed batch may have been interrupted while it waited for a synchronous standby. A second void row, under a
// number of its own, waits for the standby.
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

// void inserts a row without commands under a batch's number, as durably as batches, and reports whether the attempt's
// own row existed before.
func (e *Engine[T]) void(id, nonce int64) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer func() { // close a failed connection: it may be silent
		if err != nil {
			_ = conn.Conn().Close(ctx)
		}
		conn.Release()
	}()
	var row db.BatchOutcomeRow
	err = durably(ctx, conn.Conn(), func(tx pgx.Tx) error {
		err := q.BatchVoid(ctx, tx, db.BatchVoidParams{BatchID: id, Nonce: nonce, Instance: e.instance})
		if err == nil { // a separate statement sees a row that was committed while the first one waited
			row, err = q.BatchOutcome(ctx, tx, id)
		}
		return err
	})
	return err == nil && row.Commands > 0 && row.Nonce == nonce, err
}

// durably runs a transaction that is as durable as batches. It fails if the database warns that the commit may be lost.
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

// batchIDs hands out batch numbers from blocks of the sequence. If the database loses its last commits (an asynchronous
// standby is promoted, a backup is restored), numbers may be handed out twice. Then batches collide, and a new block is
// fetched.
type batchIDs struct {
	mu            sync.Mutex
	unused, limit int64
	fetched       time.Time
}

const (
	batchBlock = 1000
	blockLife  = time.Hour // a number is used within an hour of being fetched
)

// next returns a number. A hanging fetch blocks only its own writer.
func (b *batchIDs) next(conn *pgx.Conn) (int64, error) {
	if id, ok := b.take(); ok {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	var first int64
	fetched := time.Now()
	err := durably(ctx, conn, func(tx pgx.Tx) (err error) {
		first, err = q.BatchBlock(ctx, tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit { // otherwise another writer was faster, and this block is dropped
		b.unused, b.limit, b.fetched = first, first+batchBlock, fetched
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

// discardBlock drops the rest of the block.
func (b *batchIDs) discardBlock() {
	b.mu.Lock()
	b.unused = b.limit
	b.mu.Unlock()
}

// Epoch is a period of the database's history in which commits have one order and none was lost. A restore into another
// cluster or database begins a new epoch, and so does each promotion of a standby.
type Epoch struct {
	Number int32
	// Term identifies the epoch in cursors. It is unique among copies of the database, except copies that Postgres does
	// not notice, such as a snapshot of the disk.
	Term  string
	Began time.Time
}

// CurrentEpoch reads the epoch, and records it if no server has yet.
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

// runningPoll is the poll interval of AwaitRunning.
const runningPoll = 2 * time.Millisecond

// AwaitRunning waits until all batches that run now, in any process, have ended. Batches that begin later have a later
// time than this call.
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
