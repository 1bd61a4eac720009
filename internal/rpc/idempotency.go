package rpc

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/work"
)

// Idempotency serves IdempotencyService.
type Idempotency struct {
	*Mutations
	Claims *claim.Reader
	Works  *Works
}

// Works has the dependencies of calls on work, besides the engine.
type Works struct {
	reader   *work.Reader
	waiters  *work.Waiters
	outcomes *prometheus.CounterVec
	log      *slog.Logger
	closing  <-chan struct{}
}

// NewWorks reads from the read pool. Waiting calls end when closing is closed.
func NewWorks(reads *pgxpool.Pool, reg prometheus.Registerer, log *slog.Logger, closing <-chan struct{}) *Works {
	r := &Works{reader: work.NewReader(reads), waiters: work.NewWaiters(reads, log), log: log, closing: closing,
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "work",
			Name: "outcomes_total",
			Help: "Calls on work in other systems, by call and outcome: run, taken_over, wait, replayed, parked, " +
				"mismatch; ok, repeat, fence_lost, refused."},
			[]string{"call", "outcome"})}
	r.outcomes.WithLabelValues("begin", "parked") // start at 0, so that rate() sees the first increment
	for _, call := range []string{"extend", "complete", "abandon"} {
		r.outcomes.WithLabelValues(call, "fence_lost")
	}
	if reg != nil {
		reg.MustRegister(r.outcomes)
	}
	return r
}
