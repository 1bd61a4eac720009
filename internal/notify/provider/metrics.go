package provider

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// metrics are the Prometheus metrics of all providers.
type metrics struct {
	attempts *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	skipped  *prometheus.CounterVec
	opened   *prometheus.GaugeVec
}

// newMetrics creates the metrics, and registers them if reg is not nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd",
			Name: "notify_provider_attempts_total",
			Help: "Attempts by provider and outcome: sent, temporary, refused, permanent, unknown."},
			[]string{"provider", "channel", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd",
			Name:    "notify_provider_seconds",
			Help:    "Duration of attempts.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"provider", "channel"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd",
			Name: "notify_provider_skipped_total",
			Help: "Attempts that skipped the provider because it had failed recently."},
			[]string{"provider", "channel"}),
		opened: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ledgerd", Name: "notify_provider_breaker_open",
			Help: "1 while the provider is skipped after failures."}, []string{"provider", "channel"}),
	}
	if reg != nil {
		reg.MustRegister(m.attempts, m.seconds, m.skipped, m.opened)
	}
	return m
}

// gauges are the metrics of one provider.
type gauges struct {
	outcome map[string]prometheus.Counter
	seconds prometheus.Observer
	skipped prometheus.Counter
	opened  prometheus.Gauge
}

func (m *metrics) of(name string, channel send.Channel) *gauges {
	g := &gauges{outcome: map[string]prometheus.Counter{}, seconds: m.seconds.WithLabelValues(name, string(channel)),
		skipped: m.skipped.WithLabelValues(name, string(channel)),
		opened:  m.opened.WithLabelValues(name, string(channel))}
	for _, outcome := range []string{"sent", "temporary", "refused", "permanent", "unknown"} { // export 0
		g.outcome[outcome] = m.attempts.WithLabelValues(name, string(channel), outcome)
	}
	return g
}

func (g *gauges) tried(f *send.Failure, took time.Duration) {
	outcome := "sent"
	if f != nil {
		outcome = f.Outcome.String()
	}
	g.outcome[outcome].Inc()
	g.seconds.Observe(took.Seconds())
}

func (g *gauges) open(is bool) {
	if is {
		g.opened.Set(1)
	} else {
		g.opened.Set(0)
	}
}
