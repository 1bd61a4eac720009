package commit

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

const voidTimeout = 10 * time.Second

var errWarned = errors.New("commit: the database warned at COMMIT")

// resolveOutcome determines the outcome of an attempt whose COMMIT was sent and not confirmed. It reports whether
// every job has its answer, which may be OUTCOME_UNKNOWN; otherwise the attempt had no effect. No caller is answered
// before.
func (e *Engine[T]) resolveOutcome(a *attempt[T], err error) (answered bool) {
	e.metrics.unknown.Inc()
	e.log.Warn("the outcome of a COMMIT is unknown", "batch_id", a.id, "error", err)
	if errors.Is(err, errWarned) {
		for _, j := range a.jobs {
			if j.deferred != nil {
				continue // undone and deferred
			}
			j.reset()
			j.err = fault.OutcomeUnknown.New("committed, but a synchronous standby did not confirm it: " +
				"retry with the same key").Because(err)
		}
		return true
	}
	a.durable = e.determineOutcome(a.id, a.nonce)
	return a.durable
}

// determineOutcome finds out whether an attempt has committed, and retries until it knows. It inserts a void row under
// the batch's number, which waits for the transaction if that still runs. If the void row or another attempt's row
// exists, the batch can never commit, because its own row would collide.
//
// A committed batch may have been interrupted while it waited for a synchronous standby. A second void row, under a
// number of its own, waits for the standby.
func (e *Engine[T]) determineOutcome(id, nonce int64) (committed bool) {
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

// durably runs a transaction that is as durable as batches, and again after recording the epoch if that was missing. It
// fails if the database warns that the commit may be lost.
func durably(ctx context.Context, conn *pgx.Conn, run func(pgx.Tx) error) error {
	err := durablyOnce(ctx, conn, run)
	if !lacksEpoch(err) {
		return err
	}
	if err := recordEpoch(ctx, conn); err != nil {
		return err
	}
	return durablyOnce(ctx, conn, run)
}

func durablyOnce(ctx context.Context, conn *pgx.Conn, run func(pgx.Tx) error) error {
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

// Durably runs a transaction beside the engine that is as durable as batches: run may be called twice. Returns fault
// OUTCOME_UNKNOWN if it may have been committed: COMMIT was not answered, a pooler or server gave up meanwhile (FATAL),
// or a synchronous standby has not confirmed it.
func Durably(ctx context.Context, conn *pgx.Conn, run func(pgx.Tx) error) error {
	ran := false
	err := durably(ctx, conn, func(tx pgx.Tx) error {
		err := run(tx)
		ran = err == nil
		return err
	})
	p, ok := errors.AsType[*pgconn.PgError](err)
	refused := ok && p.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback)
	if err == nil || !ran || refused { // pgconn.SafeToRetry is also true if the connection broke during COMMIT
		return err
	}
	unknown := fault.OutcomeUnknown.New("the database has not confirmed the commit, so the change may have been " +
		"made: read it, and repeat the change if it is missing").Because(err)
	unknown.Step = fault.ReadAgain // there is no request key
	return unknown
}
