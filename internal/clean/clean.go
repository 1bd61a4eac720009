// Package clean removes what is past its life: in small batches, beside the load, one process at a time
// for each table. It owns no tables; each domain brings its own. A row past its life counts as gone whether
// it is still there or not, so that nothing hangs on how far the cleaner has come but disk.
package clean

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean/internal/db"
)

// Table is one table with rows that have a life.
type Table struct {
	// Name is what metrics and locks call it: that of the table.
	Name string
	// Delete removes up to limit rows that are past their life, oldest first, and passes over locked ones
	// (for update skip locked).
	Delete func(ctx context.Context, tx pgx.Tx, limit int32) (deleted int64, err error)
	// Overdue is for how many seconds the oldest life has been over, of rows that are still there; 0: none.
	Overdue func(ctx context.Context, tx pgx.Tx) (seconds float64, err error)
}

// Cleaner cleans tables. Several processes may have one on one database.
type Cleaner struct {
	Pool    *pgxpool.Pool
	Tables  []Table
	Metrics *Metrics
	Log     *slog.Logger
	// Busy tells how much work is waiting for the database, in full batches: cleaning makes room for it.
	// Nil: none.
	Busy func() float64
}

const (
	firstBatch    = 500
	leastBatch    = 50
	greatestBatch = 5_000
	// A batch is made to take about this long: it holds row locks, and its commit is one of many.
	aim = 20 * time.Millisecond
	// rest is how many times as long as a batch took it waits before the next, when nobody else waits.
	rest         = 2
	greatestRest = 2 * time.Second
	// every is the time between two looks at a table that had nothing left.
	every = 10 * time.Second
)

// Run cleans until ctx ends. A failure is logged; the next round tries again.
func (c *Cleaner) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for i := range c.Tables {
			if _, err := c.Clean(ctx, &c.Tables[i]); err != nil && ctx.Err() == nil {
				c.Log.Warn("cleaning failed", "table", c.Tables[i].Name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Clean removes what is past its life in a table, until nothing is left, another process is at it, or ctx
// ends. It tells how many rows it removed.
func (c *Cleaner) Clean(ctx context.Context, t *Table) (deleted int64, err error) {
	for limit := int32(firstBatch); ; {
		begin := time.Now()
		n, leads, err := c.batch(ctx, t, limit)
		took := time.Since(begin)
		deleted += n
		c.Metrics.cleaned(t.Name, n)
		if err != nil || !leads || n < int64(limit) {
			return deleted, err
		}
		limit = size(limit, took)
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(c.pause(took)):
		}
	}
}

// size is the next batch's, so that it takes about as long as aimed for.
func size(limit int32, took time.Duration) int32 {
	switch {
	case took > 2*aim:
		limit /= 2
	case took < aim/2:
		limit *= 2
	}
	return min(max(limit, leastBatch), greatestBatch)
}

// pause is the wait after a batch that took so long: longer, the more others wait.
func (c *Cleaner) pause(took time.Duration) time.Duration {
	busy := 0.0
	if c.Busy != nil {
		busy = c.Busy()
	}
	return min(time.Duration(float64(took)*rest*(1+4*busy)), greatestRest)
}

// batch removes one batch, and looks at the oldest row that is left.
func (c *Cleaner) batch(ctx context.Context, t *Table, limit int32) (deleted int64, leads bool, err error) {
	tx, err := c.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, false, err
	}
	defer func() {
		if rolled := tx.Rollback(context.WithoutCancel(ctx)); !errors.Is(rolled, pgx.ErrTxClosed) {
			err = errors.Join(err, rolled)
		}
	}()
	var q db.Queries
	begun, err := q.CleanBegin(ctx, tx, t.Name)
	if err != nil || !begun.Leads {
		return 0, false, err
	}
	if deleted, err = t.Delete(ctx, tx, limit); err != nil {
		return 0, true, fmt.Errorf("delete from %s: %w", t.Name, err)
	}
	seconds, err := t.Overdue(ctx, tx)
	if err != nil {
		return 0, true, fmt.Errorf("oldest of %s: %w", t.Name, err)
	}
	if err = tx.Commit(ctx); err != nil {
		return 0, true, err
	}
	c.Metrics.overdue(t.Name, seconds)
	return deleted, true, nil
}
