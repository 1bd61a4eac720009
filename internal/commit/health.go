package commit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// health records why commits fail. A probe clears the error by committing a batch without commands: a load balancer
// that watches Ready may have stopped sending calls.
type health struct {
	broken    atomic.Pointer[error] // nil: commits succeed
	probing   atomic.Bool
	clockLead lead

	mu      sync.Mutex
	running map[int64]time.Time // running attempts, with their start
	begun   int64               // attempts so far
}

const (
	probePause = 250 * time.Millisecond
	// stuckAfter is the age of an attempt at which the engine is no longer ready: the connection may be silent.
	stuckAfter = 5 * time.Second
)

// Ready returns the reason why batches cannot commit now, or nil.
func (e *Engine[T]) Ready() error {
	if err := e.health.broken.Load(); err != nil {
		return *err
	}
	if age := e.health.oldest(); age > stuckAfter {
		return fmt.Errorf("commit: a batch has been running for %v", age.Truncate(time.Millisecond))
	}
	return nil
}

// begin records a running attempt, until end.
func (h *health) begin() (attempt int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running == nil {
		h.running = make(map[int64]time.Time)
	}
	h.begun++
	h.running[h.begun] = time.Now()
	return h.begun
}

func (h *health) end(attempt int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, attempt)
}

// oldest returns the age of the oldest running attempt.
func (h *health) oldest() (age time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for began := range maps.Values(h.running) {
		age = max(age, time.Since(began))
	}
	return age
}

// markUnready records why commits fail, and starts a probe that clears the error once a commit succeeds.
func (e *Engine[T]) markUnready(err error) {
	e.health.broken.Store(&err)
	if e.health.probing.CompareAndSwap(false, true) {
		go e.probe()
	}
}

func (e *Engine[T]) markReady() {
	if e.health.broken.Load() != nil {
		e.health.broken.Store(nil)
	}
}

// probe commits batches without commands until one succeeds.
func (e *Engine[T]) probe() {
	for {
		for e.health.broken.Load() != nil {
			select {
			case <-e.ended:
				return
			case <-time.After(probePause):
			}
			if e.probeOnce() == nil {
				e.noticeEpoch()
				e.markReady()
			}
		}
		e.health.probing.Store(false)
		if e.health.broken.Load() == nil || !e.health.probing.CompareAndSwap(false, true) {
			return
		}
	}
}

// noticeEpoch records a new epoch after a restore or a failover, so that cursors of the epoch before end at once. The
// first batch would record it too.
func (e *Engine[T]) noticeEpoch() {
	if err := RecordEpoch(context.Background(), e.pool); err != nil {
		e.log.Warn("the epoch of the database was not recorded", "error", err)
	}
}

// probeOnce commits a batch without commands, under a number of its own.
func (e *Engine[T]) probeOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	id, err := e.batchIDs.next(conn.Conn())
	if err != nil {
		_ = conn.Conn().Close(ctx)
	}
	conn.Release()
	if err != nil {
		return err
	}
	_, err = e.void(id, 0)
	return err
}

// lead is how far recorded times were ahead of the database's clock within leadMemory: the clock ran fast, or was set
// back.
type lead struct {
	nanoseconds atomic.Int64
	seen        atomic.Int64 // Unix nanoseconds
}

const (
	leadTolerated = time.Second
	leadMemory    = time.Minute
)

func (l *lead) observe(at Times) {
	if ahead := at.Recorded.Sub(at.Now); ahead > leadTolerated {
		l.nanoseconds.Store(int64(ahead))
		l.seen.Store(time.Now().UnixNano())
	}
}

// ClockLead returns how far a recorded time was ahead of the database's clock in the last minute; 0 if at most one
// second. Later changes of such rows get the same recorded time until the clock reaches it.
func (e *Engine[T]) ClockLead() time.Duration {
	if time.Since(time.Unix(0, e.health.clockLead.seen.Load())) > leadMemory {
		return 0
	}
	return time.Duration(e.health.clockLead.nanoseconds.Load())
}

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
	attempts  [endings]prometheus.Counter
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
			Help: "Calls with a request key, by operation and outcome: first, refused, replayed, mismatch, " +
				"expired (the key's life was over, so the call ran again); taken_over counts expired leases of work " +
				"and of locks that another caller took over."}, []string{"operation", "outcome"}),
		replayAge: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit",
			Name: "replay_age_seconds",
			Help: "Time from the call that ran to a repeat that got the recorded answer. The life of keys must " +
				"be longer than nearly all of these.",
			Buckets: []float64{1, 10, 60, 300, 1800, 3600, 6 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600}}),
		overlaps:  counter("overlaps_total", "Batches that read rows of predecessors before these had committed."),
		culprits:  counter("culprits_total", "Commands that the database rejected."),
		lockWaits: counter("lock_waits_total", "Commands postponed because another transaction had locked their rows."),
		deadlocks: counter("deadlocks_total", "Deadlocks between batches: each is a defect."),
		unknown: counter("unknown_outcomes_total",
			"COMMITs whose response was lost, so that the outcome had to be looked up."),
		panics:  counter("panics_total", "Recovered panics, in commands, participants or observers: each is a defect."),
		refused: counter("busy_total", "Commands refused because the queue was full."),
	}
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit",
		Name: "attempts_total",
		Help: "Attempts to commit a batch, by ending: done; incomplete (a command needs more rows); " +
			"overfull (more row ids than a batch has); conflicted (optimistic, and another process changed its rows, " +
			"or its predecessor failed); raced (another transaction took a name first, a deadlock or serialization " +
			"failure, a cancelled statement, a statement no longer prepared, or an epoch that is not recorded yet); " +
			"collided (the number of the batch or a row id was used before); blocked (a lock wait timed out); " +
			"lost (the connection failed); rejected (the database refuses the data of a command); broken (schema, " +
			"rights or disk)."}, []string{"ending"})
	for end := range endings {
		m.attempts[end] = attempts.WithLabelValues(end.String())
	}
	m.load, m.apply, m.flush = m.stages.WithLabelValues("load"), m.stages.WithLabelValues("apply"),
		m.stages.WithLabelValues("flush")
	if reg != nil {
		reg.MustRegister(m.size, m.stages, m.keys, m.replayAge, m.overlaps, attempts, m.culprits, m.lockWaits,
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
			Help: "How far the newest recorded time of any row was ahead of the database's clock in the last minute. " +
				"One second or less is reported as 0."}, lead))
}

func (m *Metrics) countAttempt(end ending, err error) {
	m.attempts[end].Inc()
	if err != nil && isDeadlock(err) {
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
