package deliver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Metrics are the Prometheus metrics of delivery.
type Metrics struct {
	attempts *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	pickup   *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	parked   *prometheus.GaugeVec
	memory   *prometheus.GaugeVec
	fences   *prometheus.CounterVec
	leases   *prometheus.CounterVec
	failures *prometheus.CounterVec
	batch    prometheus.Histogram
	writes   prometheus.Histogram
}

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "ledgerd", Subsystem: "notify", Name: name, Help: help}
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts(opts(name, help)), labels)
}

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Namespace: "ledgerd", Subsystem: "notify", Name: name, Help: help, Buckets: buckets}
}

// NewMetrics creates the metrics, and registers them if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		attempts: counters("attempts_total",
			"Attempts to send, by channel, provider and outcome: sent, temporary, refused, permanent, unknown.",
			"channel", "provider", "outcome"),
		seconds: prometheus.NewHistogramVec(histogram("attempt_seconds", "Duration of attempts.",
			prometheus.ExponentialBuckets(0.001, 2, 16)), []string{"channel"}),
		pickup: prometheus.NewHistogramVec(histogram("pickup_seconds",
			"Time from when a message was due to the start of its attempt.",
			prometheus.ExponentialBuckets(0.0005, 2, 20)), []string{"channel"}),
		ended: counters("ended_total", "Messages that became dead or unknown, by channel: an operator or a delivery "+
			"report resolves them.", "channel", "state"),
		lag: gauges("lag_seconds", "How long the oldest due message of a channel has waited for a process to take "+
			"it; 0: none waits.",
			"channel"),
		parked: gauges("parked", "Messages that are dead or unknown now; at most 10,000 are counted.", "channel",
			"state"),
		memory: gauges("held", "Messages that this process has leased: running are being sent, "+
			"the others wait for an attempt or for their result to be written.",
			"channel", "state"),
		fences: counters("fences_lost_total",
			"Messages that another process took over before this one could mark or finish them: "+
				"this process was stalled, or its leases are too short.",
			"at"),
		leases: counters("taken_over_total", "Messages taken over from processes whose leases expired.",
			"channel"),
		failures: counters("database_failures_total", "Polls and writes that failed, and are retried.", "of"),
		batch: prometheus.NewHistogram(histogram("finish_batch_messages", "Messages per write of results.",
			prometheus.ExponentialBuckets(1, 2, 11))),
		writes: prometheus.NewHistogram(histogram("finish_seconds", "Duration of writes of results.",
			prometheus.ExponentialBuckets(0.0005, 2, 16))),
	}
	for _, at := range []string{"mark", "finish"} { // export 0, so that rate() sees the first increment
		m.fences.WithLabelValues(at)
	}
	for _, of := range []string{"poll", "finish"} {
		m.failures.WithLabelValues(of)
	}
	if reg != nil {
		reg.MustRegister(m.attempts, m.seconds, m.pickup, m.ended, m.lag, m.parked, m.memory, m.fences, m.leases,
			m.failures, m.batch, m.writes)
	}
	return m
}

// channel exports the series of a channel before their first event.
func (m *Metrics) channel(c send.Channel) {
	for _, state := range []string{dead, unknown} {
		m.ended.WithLabelValues(string(c), state)
		m.parked.WithLabelValues(string(c), state)
	}
	m.lag.WithLabelValues(string(c))
	m.leases.WithLabelValues(string(c))
}

func (m *Metrics) attempted(c send.Channel, r *result, f *send.Failure, took time.Duration) {
	outcome, provider := "sent", r.provider
	if f != nil {
		outcome, provider = f.Outcome.String(), f.Provider
	}
	m.attempts.WithLabelValues(string(c), printable(provider, 64), outcome).Inc()
	m.seconds.WithLabelValues(string(c)).Observe(took.Seconds())
}

func (m *Metrics) pickedUp(c send.Channel, after time.Duration) {
	m.pickup.WithLabelValues(string(c)).Observe(max(after, 0).Seconds())
}

func (m *Metrics) lost(at string) { m.fences.WithLabelValues(at).Inc() }

func (m *Metrics) lapsed(c send.Channel) { m.leases.WithLabelValues(string(c)).Inc() }

func (m *Metrics) pollFailed() { m.failures.WithLabelValues("poll").Inc() }

func (m *Metrics) writeFailed() { m.failures.WithLabelValues("finish").Inc() }

func (m *Metrics) wrote(n int, took time.Duration) {
	m.batch.Observe(float64(n))
	m.writes.Observe(took.Seconds())
}

func (m *Metrics) over(c send.Channel, state string) { m.ended.WithLabelValues(string(c), state).Inc() }

func (m *Metrics) inFlight(c send.Channel, running, held int) {
	m.memory.WithLabelValues(string(c), "running").Set(float64(running))
	m.memory.WithLabelValues(string(c), "waiting").Set(float64(held - running))
}

// lags sets the lag of every channel; 0 for those not in the map.
func (m *Metrics) lags(by map[send.Channel]time.Duration) {
	for _, c := range []send.Channel{send.SMS, send.Email, send.Push, send.Webhook} {
		m.lag.WithLabelValues(string(c)).Set(max(by[c].Seconds(), 0))
	}
}

func (m *Metrics) parkedAre(rows []db.ParkedCountRow) {
	m.parked.Reset()
	for _, c := range []send.Channel{send.SMS, send.Email, send.Push, send.Webhook} {
		for _, state := range []string{dead, unknown} {
			m.parked.WithLabelValues(string(c), state)
		}
	}
	for _, r := range rows {
		m.parked.WithLabelValues(r.Channel, r.State).Set(float64(r.Messages))
	}
}
