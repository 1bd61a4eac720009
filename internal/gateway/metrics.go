package gateway

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the Prometheus metrics of all gateways.
type metrics struct {
	callbacks *prometheus.CounterVec
	calls     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
}

// outcome is the end of a callback, as the metric names it.
type outcome string

const (
	taken    outcome = "accepted"   // committed and acknowledged
	again    outcome = "retry"      // not done yet, or no memory for its body: the gateway is asked to send it again
	failed   outcome = "failed"     // not committed: the gateway is asked to send it again
	other    outcome = "other"      // acknowledged, about an object that ledgerd does not track
	forged   outcome = "forged"     // signature missing, wrong or too old
	format   outcome = "unreadable" // verified, but unreadable: the gateway is asked to send it again
	tooLarge outcome = "too_large"  // longer than 1 MiB, or cut off
)

var outcomes = []outcome{taken, again, failed, other, forged, format, tooLarge}

var calls = []string{"create", "query", "close", "refund", "query_refund"}

// newMetrics creates the metrics, and registers them if reg is not nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd",
			Name: "payment_callbacks_total",
			Help: "Callbacks of payment gateways by outcome: accepted, retry, failed, other, forged, " +
				"unreadable, too_large."},
			[]string{"gateway", "outcome"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Name: "payment_calls_total",
			Help: "Calls to payment gateways by outcome: ok, no_trade, not_sent, refused, unknown."},
			[]string{"gateway", "call", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd",
			Name: "payment_call_seconds", Help: "Duration of calls to payment gateways.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"gateway", "call"}),
	}
	if reg != nil {
		reg.MustRegister(m.callbacks, m.calls, m.seconds)
	}
	return m
}

// export makes the counters of a gateway appear with value 0.
func (m *metrics) export(gateway string) {
	for _, o := range outcomes {
		m.callbacks.WithLabelValues(gateway, string(o))
	}
	for _, call := range calls {
		for _, o := range []string{"ok", "no_trade", NotSent.String(), Refused.String(), Unknown.String()} {
			m.calls.WithLabelValues(gateway, call, o)
		}
	}
}

func (m *metrics) callback(gateway string, o outcome) {
	m.callbacks.WithLabelValues(gateway, string(o)).Inc()
}

func (m *metrics) called(gateway, call string, err error, took time.Duration) {
	result := Unknown.String()
	var failed *CallError
	switch {
	case err == nil:
		result = "ok"
	case errors.Is(err, ErrNoTrade):
		result = "no_trade"
	case errors.As(err, &failed):
		result = failed.Outcome.String()
	}
	m.calls.WithLabelValues(gateway, call, result).Inc()
	m.seconds.WithLabelValues(gateway, call).Observe(took.Seconds())
}
