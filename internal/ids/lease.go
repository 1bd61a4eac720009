package ids

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// lease is a worker number with the right to issue its slots below mark. The zero lease has no slots.
type lease struct {
	worker int
	fence  int64     // above 0
	since  time.Time // leased_at
	mark   slot
}

// attempt is one try to lease or renew, shared by all callers that wait for it.
type attempt struct {
	done chan struct{}
	err  error // valid once done is closed
}

const attemptTimeout = 5 * time.Second

var q db.Queries

// Renew renews the lease, if there is one, or leases another number if it was lost. Call it every RenewEvery.
func (g *Generator) Renew(ctx context.Context) error {
	g.mu.Lock()
	held := g.lease.fence > 0 && !g.closed
	g.mu.Unlock()
	if !held {
		return nil
	}
	return g.lead(ctx)
}

// lead obtains or renews a lease. Concurrent callers share one attempt, which continues when a caller leaves.
func (g *Generator) lead(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return fault.ShuttingDown.New("the server is shutting down")
	}
	a := g.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		g.attempt = a
		go g.try(a)
	}
	g.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fault.NotRun.New("the call timed out or was cancelled before a worker number was leased").
			Because(ctx.Err())
	}
}

func (g *Generator) try(a *attempt) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	a.err = g.leaseOrRenew(ctx)
	g.mu.Lock()
	g.attempt = nil
	g.mu.Unlock()
	close(a.done)
}

var errLost = errors.New("another process has leased the worker number")

func (g *Generator) leaseOrRenew(ctx context.Context) error {
	g.mu.Lock()
	held := g.lease
	g.mu.Unlock()
	if held.fence == 0 {
		return g.takeNumber(ctx)
	}
	err := g.renew(ctx, held)
	if errors.Is(err, errLost) {
		g.metrics.lease("lost")
		g.log.WarnContext(ctx, "the worker number of ids was lost: another process has leased it", "worker",
			held.worker, "fence", held.fence)
		err = g.takeNumber(ctx)
	}
	if f := fault.Of(err); f != nil && f.Reason == fault.DatabaseUnavailable {
		return WorkerLost.New("the lease of the worker number cannot be renewed").After(time.Second).Because(err)
	}
	return err
}

// takeNumber leases a number. A lost lease stays usable up to its mark until the new one arrives.
func (g *Generator) takeNumber(ctx context.Context) error {
	var row db.WorkerLeaseRow
	err := g.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
		row, err = q.WorkerLease(ctx, conn,
			db.WorkerLeaseParams{Holder: g.o.Holder, ClockAt: g.reach(), TermMs: g.o.Term.Milliseconds()})
		return row.Now, err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		g.metrics.lease("exhausted")
		return g.exhausted(ctx)
	case err != nil:
		g.metrics.lease("failed")
		return fault.DatabaseUnavailable.New("no worker number can be leased now").After(time.Second).Because(err)
	}
	g.mu.Lock()
	g.lease = lease{worker: int(row.Worker), fence: row.Fence, since: row.Now, mark: slotAt(row.HighWaterAt)}
	g.next = max(g.next.whole(), after(row.FloorAt))
	g.mu.Unlock()
	g.metrics.lease("leased")
	g.metrics.worker.Set(float64(row.Worker))
	g.log.InfoContext(ctx, "worker number of ids leased", "worker", row.Worker, "fence", row.Fence)
	return nil
}

// renew moves the lease's mark forward. Returns errLost, or a fault.
func (g *Generator) renew(ctx context.Context, held lease) error {
	var row db.WorkerRenewRow
	err := g.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
		row, err = q.WorkerRenew(ctx, conn,
			db.WorkerRenewParams{Worker: int16(held.worker), Fence: held.fence, LeasedAt: held.since,
				ClockAt: g.reach(), TermMs: g.o.Term.Milliseconds()})
		return row.Now, err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errLost
	case err != nil:
		g.metrics.lease("failed")
		return fault.DatabaseUnavailable.New("the worker number's lease cannot be renewed now").After(time.Second).
			Because(err)
	}
	g.mu.Lock()
	g.lease.mark = max(g.lease.mark, slotAt(row.HighWaterAt))
	g.mu.Unlock()
	g.metrics.lease("renewed")
	return nil
}

// reach is the time up to which ids were issued, which may be ahead of the database's clock.
func (g *Generator) reach() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.clock.now(); g.next.time().Before(now) && g.clock.anchored {
		return now
	}
	return g.next.time()
}

var errNotDurable = errors.New("the commit did not wait for the synchronous standby")

// ask runs a statement that returns the database's time, and corrects the clock with it.
func (g *Generator) ask(ctx context.Context, run func(context.Context, *pgx.Conn) (time.Time, error)) error {
	held, err := g.o.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer held.Release()
	conn := held.Conn()
	pg.ClearWarning(conn)
	before := g.o.Ticks()
	dbTime, err := run(ctx, conn)
	after, wall := g.o.Ticks(), time.Now()
	switch {
	case err != nil:
		return err
	case pg.Warned(conn):
		return errNotDurable
	case !hasIDs(dbTime):
		return fmt.Errorf("the database's clock is at %v; ids exist only from %v to %v", dbTime, Epoch, Last)
	}
	g.mu.Lock()
	ahead := g.clock.correct(before, after, dbTime)
	g.mu.Unlock()
	g.metrics.offset.WithLabelValues("ids").Set(ahead.Seconds())
	g.metrics.offset.WithLabelValues("wall").Set(outside(wall.Sub(dbTime), after-before).Seconds())
	return nil
}

// outside is how far d lies below 0 or above most.
func outside(d, most time.Duration) time.Duration { return min(d, 0) + max(d-most, 0) }

// exhausted is the error when no number is free, with the time when one may become free.
func (g *Generator) exhausted(ctx context.Context) error {
	f := WorkersExhausted.New("all %d worker numbers are leased by other processes", Workers)
	if row, err := q.WorkerSoonest(ctx, g.o.Pool); err == nil {
		f = f.After(max(row.FreeAt.Sub(row.Now), 100*time.Millisecond))
	}
	return f
}

// Release ends the lease, so that its number is free immediately, and closes the Generator.
func (g *Generator) Release(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true // no ids are issued from here on
	a := g.attempt
	g.mu.Unlock()
	if a != nil {
		select {
		case <-a.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	g.mu.Lock()
	held, used := g.lease, g.next.whole().time()
	g.lease = lease{}
	g.mu.Unlock()
	if held.fence == 0 {
		return nil
	}
	g.metrics.worker.Set(-1)
	_, err := q.WorkerRelease(ctx, g.o.Pool,
		db.WorkerReleaseParams{Worker: int16(held.worker), Fence: held.fence, LeasedAt: held.since, UsedAt: used})
	return err
}
