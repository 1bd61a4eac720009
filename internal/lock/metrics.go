package lock

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of locks.
type Metrics struct {
	waits   *prometheus.HistogramVec
	waiting prometheus.Gauge
	lapsed  prometheus.Counter
	refused *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "lock",
			Name: "wait_seconds",
			Help: "Time that calls waited for locks, by outcome: acquired; held (the wait ran out); ended (the call " +
				"or the server ended).", Buckets: prometheus.ExponentialBuckets(0.001, 3, 13)}, []string{"outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "lock", Name: "waiting",
			Help: "Calls in this process that wait for locks."}),
		lapsed: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "lock",
			Name: "leases_lapsed_total",
			Help: "Leases that expired without a release. Counted when another holder acquires the lock, " +
				"or the cleaner deletes it."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "lock",
			Name: "fences_lost_total",
			Help: "Calls whose fence was no longer current (LOCK_LOST), by call."}, []string{"call"}),
	}
	// Export zeros from the start, so that rate() sees the first refusal.
	for _, call := range []string{"renew", "release", "hold"} {
		m.refused.WithLabelValues(call)
	}
	if reg != nil {
		reg.MustRegister(m.waits, m.waiting, m.lapsed, m.refused)
	}
	return m
}

// Lapsed counts leases that expired without a release.
func (m *Metrics) Lapsed(n int) { m.lapsed.Add(float64(n)) }

// Refused counts a call that was refused for an outdated fence.
func (m *Metrics) Refused(call string) { m.refused.WithLabelValues(call).Inc() }

func (m *Metrics) waited(since time.Time, outcome string) {
	m.waits.WithLabelValues(outcome).Observe(time.Since(since).Seconds())
}
