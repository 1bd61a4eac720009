package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

// background starts the work that nobody calls for: holds lapse, dead keys and tokens go.
func (s *Server) background(ctx context.Context) {
	s.every(ctx, time.Second, "lapse holds", s.lapse)
	cleaner := &clean.Cleaner{Pool: s.batches, Metrics: clean.NewMetrics(s.registry), Log: s.log, Busy: s.engine.Busy,
		Tables: slices.Concat([]clean.Table{commit.Keys(), commit.Counts(), token.Tokens(), claim.Keys(), work.Works(),
			code.Codes()}, inbox.Tables(), notify.Tables())}
	s.work.Go(func() { cleaner.Run(ctx) })
	s.every(ctx, 10*time.Second, "save counts", s.engine.SaveCounts)
	s.every(ctx, ids.RenewEvery, "renew the worker number of ids", s.ids.Renew)
	s.every(ctx, 30*time.Second, "clean locks", s.locks.clean)
	s.work.Go(func() { s.locks.waiting.Run(ctx) })
	s.work.Go(func() { s.deliver(ctx) })
	s.every(ctx, time.Hour, "create and drop partitions of messages", s.keepPartitions)
}

// keepPartitions makes and drops partitions of messages. Proofs stay for ever.
func (s *Server) keepPartitions(ctx context.Context) error {
	made, dropped, left, err := notify.KeepPartitions(ctx, s.batches)
	s.outbox.Metrics.LeftOver(left)
	if made+dropped+left > 0 {
		s.log.Info("created and dropped partitions of messages", "made", made, "dropped", dropped, "left_over", left)
	}
	return err
}

// every runs work again and again until ctx ends. A failure is logged; the next turn tries again.
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
			if err := work(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn(what+" failed", "error", err)
			}
		}
	}()
}

// lapseBatch is how many due holds one turn looks at.
const lapseBatch = 500

// lapse lets all holds lapse whose time has come, oldest first. It passes over an account whose row
// somebody holds: the next turn tries it again.
func (s *Server) lapse(ctx context.Context) error {
	var failures []error
	for after := (ledger.DueHold{}); ; {
		due, err := ledger.DueHolds(ctx, s.reads, after, lapseBatch)
		if err != nil || len(due) == 0 {
			return errors.Join(append(failures, err)...)
		}
		after = due[len(due)-1]
		byTenant := map[int32][]flow.Submission{}
		for _, a := range ledger.AccountsOf(due) {
			byTenant[a.Tenant] = append(byTenant[a.Tenant], flow.Submission{Tenant: a.Tenant, RequestID: "scheduler",
				Command: flow.Ledger(&ledger.LapseCommand{Account: a}), Rows: 1, Bytes: 256})
		}
		for _, submissions := range byTenant {
			for _, r := range s.engine.DoAll(ctx, submissions) {
				if r.Err != nil {
					failures = append(failures, r.Err)
				}
			}
		}
	}
}
