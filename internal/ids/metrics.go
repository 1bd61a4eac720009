package ids

import "github.com/prometheus/client_golang/prometheus"

// Metrics of a Generator.
type Metrics struct {
	reg       prometheus.Registerer
	snowflake prometheus.Counter
	uuids     prometheus.Counter
	waits     prometheus.Counter
	leases    *prometheus.CounterVec
	offset    *prometheus.GaugeVec
	worker    prometheus.Gauge
}

// NewMetrics makes the metrics and registers them; with a nil registerer they stay unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	made := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "ids", Name: "made_total",
		Help: "Ids made by kind: snowflake (order numbers too), uuid_v7."}, []string{"kind"})
	m := &Metrics{
		reg: reg, snowflake: made.WithLabelValues("snowflake"), uuids: made.WithLabelValues("uuid_v7"),
		waits: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "ids", Name: "waits_total",
			Help: "Waits because all ids up to the present time were used."}),
		leases: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "ids",
			Name: "leases_total",
			Help: "Attempts to lease or renew a worker number, by outcome: leased, renewed, lost, exhausted, failed."},
			[]string{"outcome"}),
		offset: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "ids",
			Name: "clock_offset_seconds",
			Help: "Lower bound of how far a clock is ahead of Postgres's clock: the machine's clock (wall), " +
				"or the clock that ids are made from (ids). Measured at every lease and renewal."},
			[]string{"clock"}),
		worker: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "ids", Name: "worker",
			Help: "The worker number that the process has leased; -1: none."}),
	}
	m.worker.Set(-1)
	// Export zeros from the start, so that rate() sees the first one.
	for _, outcome := range []string{"lost", "exhausted"} {
		m.leases.WithLabelValues(outcome)
	}
	if reg != nil {
		reg.MustRegister(made, m.waits, m.leases, m.offset, m.worker)
	}
	return m
}

func (m *Metrics) lease(outcome string) { m.leases.WithLabelValues(outcome).Inc() }

// left registers the gauge of how long ids last without a renewal.
func (m *Metrics) left(read func() float64) {
	if m.reg != nil {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "ids",
			Name: "left_seconds",
			Help: "How long ids can be made without another renewal of the worker number's lease; 0 without a lease."},
			read))
	}
}
