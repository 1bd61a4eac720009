package server

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// locks has the wait queue of locks, with metrics.
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

// freeLockLife is how long a released lock is kept, so that a repeated Release finds it.
const freeLockLife = time.Minute

func (l *locks) clean(ctx context.Context) error {
	lapsed, err := lock.Clean(ctx, l.reads, freeLockLife)
	l.metrics.Lapsed(lapsed)
	return err
}
