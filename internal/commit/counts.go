package commit

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
)

// counts are how calls ended, until they are added to those of the database.
type counts struct {
	mu sync.Mutex
	n  map[count]int64
}

type count struct {
	tenant             int32
	operation, outcome string
}

func (c *counts) add(k count, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[count]int64)
	}
	c.n[k] += n
}

func (c *counts) take() map[count]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = nil
	return n
}

// Count counts how a call of an operation ended, as metric and for commit_counts. Both names come from the
// code, never from callers.
func (e *Engine[T]) Count(tenant int32, operation, outcome string) {
	e.metrics.key(operation, outcome)
	e.counts.add(count{tenant, operation, outcome}, 1)
}

// SaveCounts adds what was counted since the last time to commit_counts. After an error it is still to be
// added.
func (e *Engine[T]) SaveCounts(ctx context.Context) error {
	taken := e.counts.take()
	if len(taken) == 0 {
		return nil
	}
	keys := make([]count, 0, len(taken))
	for k := range taken {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b count) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.operation, b.operation), cmp.Compare(a.outcome, b.outcome))
	})
	var arg db.CountsAddParams
	for _, k := range keys {
		arg.Tenants, arg.Operations = append(arg.Tenants, k.tenant), append(arg.Operations, k.operation)
		arg.Outcomes, arg.Counts = append(arg.Outcomes, k.outcome), append(arg.Counts, taken[k])
	}
	if err := q.CountsAdd(ctx, e.pool, arg); err != nil {
		for k, n := range taken {
			e.counts.add(k, n)
		}
		return err
	}
	return nil
}

// Counts are the old ones of commit_counts, as the cleaner sees them.
func Counts() clean.Table {
	return clean.Table{
		Name:    "commit_counts",
		Delete:  func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) { return q.CountsClean(ctx, tx, limit) },
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.CountsOverdue(ctx, tx) },
	}
}
