package notify

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Channels lists all channels.
var Channels = []send.Channel{send.SMS, send.Email, send.Push, send.Webhook}

// Metrics are the outbox's Prometheus metrics.
type Metrics struct {
	accepted *prometheus.CounterVec
	repeats  *prometheus.CounterVec
	limited  *prometheus.CounterVec
	parts    prometheus.Gauge
	codes    *prometheus.CounterVec
}

// NewMetrics creates the metrics, and registers them if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Subsystem: "notify", Name: name,
			Help: help}, labels)
	}
	m := &Metrics{
		accepted: counter("accepted_total", "Messages that this process accepted and committed, by channel.",
			"channel"),
		repeats: counter("repeats_total",
			"Sends that were answered with an earlier message, by channel and by how it was recognised: biz_no, "+
				"fingerprint. A batch that runs again counts them again.", "channel", "by"),
		codes: counter("codes_total", "Codes, by channel, by dial code of phone numbers, and by outcome: sent, "+
			"suppressed, verified, wrong, too_soon, too_many, tries_spent. Many sent but few verified for a dial "+
			"code point to SMS pumping.", "outcome", "channel", "dial_code"),
		limited: counter("limited_total",
			"Messages that a limit refused, by channel and scope of the limit. A batch that runs again "+
				"counts them again.",
			"channel", "scope"),
		parts: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ledgerd", Subsystem: "notify",
			Name: "partitions_overdue",
			Help: "Expired partitions that this process could not drop at its last try, " +
				"because other sessions used them."}),
	}
	for _, c := range Channels { // export 0, so that rate() sees the first increment
		m.accepted.WithLabelValues(string(c))
	}
	if reg != nil {
		reg.MustRegister(m.accepted, m.repeats, m.limited, m.parts, m.codes)
	}
	return m
}

// SetUndropped sets the number of partitions that could not be dropped.
func (m *Metrics) SetUndropped(n int) { m.parts.Set(float64(n)) }

// Code counts an outcome of a code.
func (m *Metrics) Code(what, channel, dialCode string) {
	if m != nil {
		m.codes.WithLabelValues(what, channel, dialCode).Inc()
	}
}

// tally is an increment to apply when the batch has ended.
type tally struct {
	channel send.Channel
	what    string
}

func (m *Metrics) count(accepted []send.Channel, repeats, limited []tally) {
	if m == nil {
		return
	}
	for _, c := range accepted {
		m.accepted.WithLabelValues(string(c)).Inc()
	}
	for _, t := range repeats {
		m.repeats.WithLabelValues(string(t.channel), t.what).Inc()
	}
	for _, t := range limited {
		m.limited.WithLabelValues(string(t.channel), t.what).Inc()
	}
}
