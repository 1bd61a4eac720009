package server

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// locks are where calls wait for locks, and what counts them.
type locks struct {
	reads   *pgxpool.Pool
	waiting *lock.WaitQueue
	metrics *lock.Metrics
}

func newLocks(s *Server, instance string) *locks {
	l := &locks{reads: s.reads, metrics: lock.NewMetrics(s.registry)}
	l.waiting = lock.NewWaitQueue(lock.WaitQueueConfig{Reads: s.reads, Instance: instance, Closing: s.closing,
		Metrics: l.metrics, Log: s.log,
		Do: func(ctx context.Context, c commit.Caller, command commit.Command[*lock.Tx]) (any, error) {
			out, err := s.engine.Do(ctx,
				flow.Submission{Tenant: c.Tenant, RequestID: c.RequestID, Command: flow.Lock(command), Rows: 1,
					Bytes: 512})
			return out.Answer, err
		}})
	return l
}

// spareLocks is for how long a lock that nobody holds stays: Release, asked again, finds that it was done.
const spareLocks = time.Minute

func (l *locks) clean(ctx context.Context) error {
	lapsed, err := lock.Clean(ctx, l.reads, spareLocks)
	l.metrics.Lapsed(lapsed)
	return err
}
