package clean

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a cleaner.
type Metrics struct {
	deleted *prometheus.CounterVec
	age     *prometheus.GaugeVec
}

// NewMetrics makes the metrics and registers them; with a nil registerer they stay unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "clean",
			Name: "deleted_total",
			Help: "Expired rows that this process deleted."}, []string{"table"}),
		age: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "clean",
			Name: "overdue_seconds",
			Help: "Time since expiry of the oldest remaining row, when this process last cleaned the table."},
			[]string{"table"}),
	}
	if reg != nil {
		reg.MustRegister(m.deleted, m.age)
	}
	return m
}

func (m *Metrics) cleaned(table string, n int64) { m.deleted.WithLabelValues(table).Add(float64(n)) }

func (m *Metrics) overdue(table string, seconds float64) { m.age.WithLabelValues(table).Set(seconds) }
