package rpc

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Metrics are rate, errors and duration of calls.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	meters   sync.Map // procedure to *meter
}

// meter is a procedure's own part of Metrics, so that a call need not look its labels up.
type meter struct {
	ok       prometheus.Counter
	duration prometheus.Observer
	calls    *prometheus.CounterVec // still without code and reason
}

// NewMetrics makes them, and registers them if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Name: "calls_total",
			Help: "Calls by procedure, code and reason."}, []string{"procedure", "code", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd", Name: "call_seconds",
			Help: "Duration of calls.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}, []string{"procedure"}),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.duration)
	}
	return m
}

func (m *Metrics) of(procedure string) *meter {
	if found, ok := m.meters.Load(procedure); ok {
		return found.(*meter)
	}
	calls := m.calls.MustCurryWith(prometheus.Labels{"procedure": procedure})
	made, _ := m.meters.LoadOrStore(procedure,
		&meter{ok: calls.WithLabelValues("ok", ""), duration: m.duration.WithLabelValues(procedure), calls: calls})
	return made.(*meter)
}

func (m *meter) failed(f *fault.Fault) {
	m.calls.WithLabelValues(string(f.Reason.Code), f.Reason.Name).Inc()
}
