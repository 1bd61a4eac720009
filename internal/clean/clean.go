// Package clean deletes expired rows in small batches, throttled under load, in one process at a time per
// table. It owns no tables; each domain registers its own. An expired row counts as absent whether or not it
// was deleted, so only disk usage depends on the cleaner.
package clean

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Table is one table whose rows expire.
type Table struct {
	// Name is the table's name, for metrics and locks.
	Name string
	// Delete deletes up to limit expired rows, oldest first, skipping locked ones (for update skip locked).
	Delete func(ctx context.Context, tx pgx.Tx, limit int32) (deleted int64, err error)
	// Overdue returns how many seconds ago the oldest remaining row expired; 0: none.
	Overdue func(ctx context.Context, tx pgx.Tx) (seconds float64, err error)

	refused time.Time // since when another session has the table's advisory lock; zero: it has not
}

// Cleaner cleans tables. Several processes may run one on the same database.
type Cleaner struct {
	Pool    *pgxpool.Pool
	Tables  []Table
	Metrics *Metrics
	Log     *slog.Logger
	// Load returns the work waiting for the database, in full batches; cleaning slows down for it. Nil: none.
	Load func() float64
	// Patience is how long another session may have a table's advisory lock. After it the table is cleaned without the
	// lock, because every login of the database can take it. Two processes at once are slower, but correct. 0: 1 min.
	Patience time.Duration
	// Timeout bounds a batch: its connection may be silent. 0: 40 s, longer than a statement may take.
	Timeout time.Duration
}

const (
	firstBatch    = 500
	leastBatch    = 50
	greatestBatch = 5_000
	// targetDuration is the target duration of a batch, which holds row locks and shares the commit throughput.
	targetDuration = 20 * time.Millisecond
	// pauseFactor is the pause after a batch without other load, as a multiple of the batch's duration.
	pauseFactor   = 2
	greatestPause = 2 * time.Second
	// every is the interval between runs over a table.
	every = 10 * time.Second
)

// Run cleans until ctx ends. It logs a failure and tries again in the next round.
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

// Clean deletes the expired rows of a table until none is left, another process cleans the table, or ctx ends.
// It returns the number of deleted rows.
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

// size adjusts the batch size towards the target duration.
func size(limit int32, took time.Duration) int32 {
	switch {
	case took > 2*targetDuration:
		limit /= 2
	case took < targetDuration/2:
		limit *= 2
	}
	return min(max(limit, leastBatch), greatestBatch)
}

// pause is the wait after a batch: proportional to its duration, and longer under load.
func (c *Cleaner) pause(took time.Duration) time.Duration {
	busy := 0.0
	if c.Load != nil {
		busy = c.Load()
	}
	return min(time.Duration(float64(took)*pauseFactor*(1+4*busy)), greatestPause)
}

// mayClean reports whether to clean a table: this session has its advisory lock, or another has had it for too long.
func (c *Cleaner) mayClean(t *Table, leads bool) bool {
	switch {
	case leads:
		t.refused = time.Time{}
		return true
	case t.refused.IsZero():
		t.refused = time.Now()
		return false
	}
	return time.Since(t.refused) >= cmp.Or(c.Patience, time.Minute)
}

// batch deletes one batch and measures the oldest remaining row.
func (c *Cleaner) batch(ctx context.Context, t *Table, limit int32) (deleted int64, leads bool, err error) {
	ctx, cancel := context.WithTimeout(pg.ForAllTenants(ctx), cmp.Or(c.Timeout, 40*time.Second))
	defer cancel()
	tx, err := c.Pool.BeginTx(ctx, pg.Begin(ctx, pg.ReadCommitted))
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
	if err != nil || !c.mayClean(t, begun.Leads) {
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
