package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/notify"
)

// background starts the background tasks, such as expiring holds and deleting expired rows.
func (s *Server) background(ctx context.Context) {
	s.every(ctx, time.Second, "observe readiness", s.observeReadiness)
	s.every(ctx, 2*time.Second, "read the epoch of the database", s.observeEpoch)
	s.runDomains(ctx)
	cleaner := &clean.Cleaner{Pool: s.batches, Metrics: clean.NewMetrics(s.registry), Log: s.log, Load: s.engine.Load,
		Tables: expiring()}
	s.work.Go(func() { cleaner.Run(ctx) })
	s.every(ctx, 10*time.Second, "save counts", s.engine.SaveCounts)
	s.every(ctx, ids.RenewEvery, "renew the worker number of ids", s.ids.Renew)
	if s.transport != nil {
		s.every(ctx, reloadPause, "read the TLS files", s.transport.reload)
	}
	if s.issuers != nil {
		s.every(ctx, access.RefreshEvery, "fetch the keys of issuers", s.issuers.Refresh)
	}
}

// keepPartitions creates and drops partitions of messages. Messages and events are never dropped, only contents.
func (s *Server) keepPartitions(ctx context.Context) error {
	made, dropped, left, err := notify.KeepPartitions(ctx, s.batches)
	s.outbox.Metrics.SetUndropped(left)
	if made+dropped+left > 0 {
		s.log.Info("created and dropped partitions of messages", "made", made, "dropped", dropped, "left_over", left)
	}
	return err
}

// taskTimeout bounds a run of a background task, because its connection may hang.
const taskTimeout = time.Minute

// every runs work periodically until ctx ends. It logs failures; the next run retries.
func (s *Server) every(ctx context.Context, pause time.Duration, what string, work func(context.Context) error) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			run, cancel := context.WithTimeout(ctx, taskTimeout)
			if err := work(run); err != nil && ctx.Err() == nil {
				s.log.Warn(what+" failed", "error", err)
			}
			cancel()
		}
	}()
}

// dueBatch is the number of due rows per query.
const dueBatch = 500

const (
	// dueRun bounds one run of a task over due rows; the next run retries rows that failed. dueTry bounds the wait for
	// the rows of one query, so that rows locked by another transaction do not use up the run.
	dueRun, dueTry = 10 * time.Second, 5 * time.Second
	// duePause is how long a tenant is skipped after most of its commands of one query were refused: a limit on
	// messages refuses a timer's move whose event exceeds it. Otherwise that tenant would use up every run.
	duePause = 30 * time.Second
)

// most reports whether n commands are more than half of all, and more than 50.
func most(n, all int) bool { return n > max(100, all)/2 }

// handle returns a task that handles all due rows, oldest first: find returns the due rows after a given one, and
// commands makes the commands for them. The task skips a row that another transaction holds; the next run retries it.
// It skips a tenant for the rest of a run if most of its commands of one query have failed.
func handle[T any](s *Server, find func(ctx context.Context, pool *pgxpool.Pool, after T, limit int32) ([]T, error),
	commands func(due []T) []flow.Submission) func(context.Context) error {
	paused := map[int32]time.Time{} // tenants, until a time
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, dueRun)
		defer cancel()
		failed, first := 0, error(nil)
		out := map[int32]bool{} // tenants skipped for the rest of this run
		var due []T
		var err error
		for after := *new(T); ; after = due[len(due)-1] {
			if due, err = find(ctx, s.reads, after, dueBatch); err != nil {
				break
			}
			byTenant := map[int32][]flow.Submission{}
			for _, x := range commands(due) {
				if x.RequestID, x.Bytes = scheduler, 256; !out[x.Tenant] && time.Now().After(paused[x.Tenant]) {
					byTenant[x.Tenant] = append(byTenant[x.Tenant], x)
				}
			}
			for tenant, results := range s.runDue(ctx, byTenant) {
				before, refused := failed, 0
				for _, r := range results {
					if r.Err == nil {
						continue
					}
					if failed, first = failed+1, cmp.Or(first, r.Err); !temporary(r.Err) {
						refused++
					}
				}
				out[tenant] = most(failed-before, len(results))
				if delete(paused, tenant); most(refused, len(results)) {
					paused[tenant] = time.Now().Add(duePause)
				}
			}
			if len(due) < dueBatch {
				break // rows that became due meanwhile wait for the next run
			}
		}
		if failed > 0 {
			return fmt.Errorf("%d failed, such as: %w", failed, errors.Join(first, err))
		}
		return err
	}
}

// runDue runs the commands of all tenants at the same time: locked rows of one do not delay another.
func (s *Server) runDue(ctx context.Context, byTenant map[int32][]flow.Submission) map[int32][]commit.Result {
	ctx, cancel := context.WithTimeout(ctx, dueTry)
	defer cancel()
	all := map[int32][]commit.Result{}
	var mu sync.Mutex
	var tenants sync.WaitGroup
	for tenant, submissions := range byTenant {
		tenants.Go(func() {
			results := s.engine.DoAll(ctx, submissions)
			mu.Lock()
			defer mu.Unlock()
			all[tenant] = results
		})
	}
	tenants.Wait()
	return all
}

// temporary reports whether an error comes from the present state of the database or the server, not from a refusal of
// the command.
func temporary(err error) bool {
	f := fault.Of(err)
	return f != nil && slices.Contains([]*fault.Reason{fault.RowsLocked, fault.DatabaseUnavailable,
		fault.OutcomeUnknown, fault.NotRun, fault.Busy, fault.ShuttingDown}, f.Reason)
}

// scheduler is the principal of background work. Its request ids begin with it.
const scheduler = "scheduler"
