package commit

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Metrics has the metrics of an engine.
type Metrics struct {
	reg       prometheus.Registerer
	size      prometheus.Histogram
	stages    *prometheus.HistogramVec
	load      prometheus.Observer
	apply     prometheus.Observer
	flush     prometheus.Observer
	keys      *prometheus.CounterVec
	replayAge prometheus.Histogram
	overlaps  prometheus.Counter
	attempts  *prometheus.CounterVec
	culprits  prometheus.Counter
	lockWaits prometheus.Counter
	deadlocks prometheus.Counter
	unknown   prometheus.Counter
	panics    prometheus.Counter
	refused   prometheus.Counter
}

// NewMetrics registers the metrics if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit", Name: name,
			Help: help})
	}
	m := &Metrics{
		reg: reg,
		size: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "batch_commands",
			Help: "Commands per batch.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "stage_seconds",
			Help: "Duration of a batch's stages.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)},
			[]string{"stage"}),
		keys: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "keys_total",
			Help: "Calls with a request key, by operation and outcome: first, refused, replayed, mismatch, expired (the key's life was over, so the call ran again); taken_over counts lapsed leases of work that another caller took over."}, []string{"operation", "outcome"}),
		replayAge: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name:    "replay_age_seconds",
			Help:    "Time from the call that ran to a repeat that got the recorded answer. The life of keys must be longer than nearly all of these.",
			Buckets: []float64{1, 10, 60, 300, 1800, 3600, 6 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600}}),
		overlaps: counter("overlaps_total", "Batches that read rows of predecessors before these had committed."),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "attempts_total",
			Help: "Attempts to commit a batch, by ending: committed; conflicted (optimistic, and another process changed its rows, or its predecessor failed); raced; collided; blocked; incomplete; overfull; lost; rejected; broken."}, []string{"ending"}),
		culprits:  counter("culprits_total", "Commands that the database rejected."),
		lockWaits: counter("lock_waits_total", "Commands postponed because another transaction had locked their rows."),
		deadlocks: counter("deadlocks_total", "Deadlocks between batches: each is a defect."),
		unknown: counter("unknown_outcomes_total",
			"COMMITs whose response was lost, so that the outcome had to be looked up."),
		panics:  counter("panics_total", "Recovered panics, in commands, participants or observers: each is a defect."),
		refused: counter("busy_total", "Commands refused because the queue was full."),
	}
	m.load, m.apply, m.flush = m.stages.WithLabelValues("load"), m.stages.WithLabelValues("apply"),
		m.stages.WithLabelValues("flush")
	if reg != nil {
		reg.MustRegister(m.size, m.stages, m.keys, m.replayAge, m.overlaps, m.attempts, m.culprits, m.lockWaits,
			m.deadlocks, m.unknown, m.panics, m.refused)
	}
	return m
}

// gauges registers metrics that are computed when they are scraped.
func (m *Metrics) gauges(depth, lead func() float64) {
	if m.reg == nil {
		return
	}
	m.reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "inflight_rows",
			Help: "Estimated rows of the commands that are queued or running."}, depth),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "clock_lead_seconds",
			Help: "How far the newest recorded time of any row was ahead of the database's clock in the last minute; 0 up to one second."}, lead))
}

func (m *Metrics) countAttempt(end ending, err error) {
	m.attempts.WithLabelValues(end.String()).Inc()
	if isDeadlock(err) {
		m.deadlocks.Inc()
	}
}

func (m *Metrics) key(operation, outcome string) { m.keys.WithLabelValues(operation, outcome).Inc() }

// counts has outcomes of calls that are not yet added to commit_counts.
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

// Count counts the outcome of a call, as a metric and for commit_counts. The operation and the outcome are constants of
// the code, never input of callers.
func (e *Engine[T]) Count(tenant int32, operation, outcome string) {
	e.metrics.key(operation, outcome)
	e.counts.add(count{tenant, operation, outcome}, 1)
}

// SaveCounts adds the counts since the last call to commit_counts. After an error they are kept for the next call.
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
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.operation, b.operation),
			cmp.Compare(a.outcome, b.outcome))
	})
	var arg db.CountsAddParams
	for _, k := range keys {
		arg.Tenants = append(arg.Tenants, k.tenant)
		arg.Operations = append(arg.Operations, k.operation)
		arg.Outcomes = append(arg.Outcomes, k.outcome)
		arg.Counts = append(arg.Counts, taken[k])
	}
	if err := q.CountsAdd(pg.ForTenants(ctx, arg.Tenants...), pg.Planned{DB: e.pool}, arg); err != nil {
		for k, n := range taken {
			e.counts.add(k, n)
		}
		return err
	}
	return nil
}

// Counts describes commit_counts to the cleaner.
func Counts() clean.Table {
	return clean.Table{
		Name: "commit_counts",
		Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64,
			error) {
			return q.CountsClean(ctx, tx, limit)
		},
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.CountsOverdue(ctx, tx) },
	}
}
