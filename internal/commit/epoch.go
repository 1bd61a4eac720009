package commit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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
			return Epoch{Number: e.Epoch, Term: fmt.Sprintf("%d-%s", e.Epoch, e.Nonce), Began: e.BegunAt}, nil
		}
		if recorded {
			return Epoch{}, fmt.Errorf("epoch %d was recorded but is missing: the database was replaced meanwhile",
				e.Epoch)
		}
		if err := RecordEpoch(ctx, pool); err != nil {
			return Epoch{}, err
		}
	}
}

// RecordEpoch records the present epoch unless its row exists. Unlike CurrentEpoch, it also detects that the files of
// the database were copied or upgraded.
func RecordEpoch(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, voidTimeout)
	defer cancel()
	return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return recordEpoch(ctx, conn.Conn()) })
}

// recordWait bounds the wait for another session that is about to record the epoch.
const recordWait = 2 * time.Second

// recordEpoch runs a short transaction of its own, because all commits wait for it. Its last statement and COMMIT are
// one message, so that a process that dies does not block others. A warning at COMMIT does not matter: the next commit
// waits for the standby too. Returns fault DATABASE_UNAVAILABLE.
func recordEpoch(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, voidTimeout)
	defer cancel()
	p := NewPipe(ctx)
	// Under another default isolation level, the loser of a race would fail.
	p.exec(beginSQL, "BEGIN")
	// Keep this second: a new connection sends two statements before it prepares the others, which takes locks.
	p.Queue(func(d DB) error { return q.LockTimeoutApply(ctx, d, ms(recordWait)) })
	p.Queue(func(d DB) error { return q.DurabilityRaise(ctx, d) })
	p.Queue(func(d DB) error { return q.EpochRecord(ctx, d) })
	p.exec("commit", "COMMIT")
	if err := p.Run(conn); err != nil {
		abort(conn)
		// Drop the SQLSTATE: the caller would take it for that of its own statement.
		return unavailable(fmt.Errorf("record the epoch: %s", err.Error()))
	}
	return nil
}

// lacksEpoch reports that a statement draws a number or commits in an epoch that no server has recorded.
func lacksEpoch(err error) bool { return hasState(err, "LD006") }

// SameDatabase reports whether two pools connect to the same database, or to standbys of it.
func SameDatabase(ctx context.Context, a, b *pgxpool.Pool) (bool, error) {
	var history [2]string
	for i, pool := range []*pgxpool.Pool{a, b} {
		var err error
		if history[i], err = q.EpochHistory(ctx, pool); err != nil {
			return false, fmt.Errorf("identify the database: %w", err)
		}
	}
	return history[0] == history[1], nil
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
