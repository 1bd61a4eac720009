package commit

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of an engine.
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

// NewMetrics makes them and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit", Name: name, Help: help})
	}
	m := &Metrics{
		reg: reg,
		size: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "batch_commands",
			Help: "Commands in a batch.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "stage_seconds",
			Help: "Time of a batch's stages.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}, []string{"stage"}),
		keys: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "keys_total",
			Help: "Calls with a request key by operation and outcome: first, refused, replayed, mismatch, expired (ran again, for its life was over); taken_over counts lapsed leases that were taken over."}, []string{"operation", "outcome"}),
		replayAge: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "replay_age_seconds",
			Help:    "Time from the call that ran to the call that got its recorded answer: keys have to live longer than nearly all.",
			Buckets: []float64{1, 10, 60, 300, 1800, 3600, 6 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600}}),
		overlaps: counter("overlaps_total", "Batches that took over rows of batches not yet committed."),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "attempts_total",
			Help: "Attempts at committing a batch, by how they ended: committed; conflicted (optimistic, and another process changed its rows, or its predecessor failed); raced; collided; blocked; incomplete; overfull; lost; rejected; broken."}, []string{"ending"}),
		culprits:  counter("culprits_total", "Commands that the database refused."),
		lockWaits: counter("lock_waits_total", "Commands put aside because another transaction held their rows."),
		deadlocks: counter("deadlocks_total", "Deadlocks between batches: each is a defect."),
		unknown:   counter("unknown_outcomes_total", "COMMITs whose answer was lost, and had to be found out."),
		panics:    counter("panics_total", "Commands that panicked: each is a defect."),
		refused:   counter("busy_total", "Commands refused because too much was waiting."),
	}
	m.load, m.apply, m.flush = m.stages.WithLabelValues("load"), m.stages.WithLabelValues("apply"), m.stages.WithLabelValues("flush")
	if reg != nil {
		reg.MustRegister(m.size, m.stages, m.keys, m.replayAge, m.overlaps, m.attempts, m.culprits, m.lockWaits, m.deadlocks, m.unknown, m.panics, m.refused)
	}
	return m
}

func (m *Metrics) depth(read func() float64) {
	if m.reg != nil {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "commit", Name: "waiting_rows",
			Help: "Rows of the commands that wait or run."}, read))
	}
}

// ended counts an attempt.
func (m *Metrics) ended(end ending, err error) {
	m.attempts.WithLabelValues(end.String()).Inc()
	if isDeadlock(err) {
		m.deadlocks.Inc()
	}
}

func (m *Metrics) key(operation, outcome string) { m.keys.WithLabelValues(operation, outcome).Inc() }
