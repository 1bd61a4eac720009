package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/payment/dispatch"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// openPayments builds the gateways of the settings, if there are any. An unknown tenant is an error.
func (s *Server) openPayments(ctx context.Context) error {
	s.gateways = &gateway.Set{}
	if s.options.Pay != nil {
		var err error
		if s.gateways, err = s.options.Pay.Build(&gateway.Env{Registerer: s.registry,
			Tenant: func(name string) (int32, error) { return access.Tenant(ctx, s.reads, name) }}); err != nil {
			return err
		}
	}
	s.dispatcher = dispatch.New(dispatch.Config{Queue: &payment.Queue{Pool: s.batches},
		Reader: payment.NewReader(s.reads), Gateways: s.gateways.ByName, ApplyNotice: s.applyNotice,
		AccountExists: s.accountExists, Log: s.log,
		KnownGateway: func(k payment.GatewayKey) (payment.Gateway, bool) { return s.engine.Gateways.Last(k) }})
	s.payments = newPaymentMetrics(s.registry)
	for name, g := range s.gateways.ByName {
		s.log.InfoContext(ctx, "a payment gateway is configured", "gateway", name, "kind", g.Kind, "tenant",
			g.TenantName)
	}
	return nil
}

func (s *Server) accountExists(ctx context.Context, tenant int32, code, asset string) (bool, error) {
	_, err := ledger.NewReader(s.reads).Account(pg.ForTenants(ctx, tenant), tenant, code, asset)
	if fault.Is(err, ledger.AccountNotFound) {
		return false, nil
	}
	return err == nil, err
}

// applyNotice applies a notice for the dispatcher.
func (s *Server) applyNotice(ctx context.Context, k payment.GatewayKey, n payment.Received, c gateway.Credential,
	requestID string) (dispatch.Result, error) {
	out, err := s.commitNotice(ctx, k, n, c, requestID)
	return dispatch.Result{Advanced: out.Effect == payment.EffectApplied && !out.Existed,
		Payment: out.Submitted}, err
}

// number finds the payment number of a notice that lacks it, by the numbers of the refund and the transaction.
func (s *Server) number(ctx context.Context, k payment.GatewayKey, n *gateway.Notice) (err error) {
	if n.OutTradeNo == "" {
		n.OutTradeNo, err = payment.NewReader(s.reads).NumberOf(ctx, k, n.RefundNo, n.GatewayRefundID, n.TransactionID)
	}
	return err
}

// numberWait is how long after its time a notice without a payment number of ours must be redelivered by the gateway.
const numberWait = time.Hour

// commitNotice applies a notice, or only keeps it if it concerns no payment of ours, and counts it.
func (s *Server) commitNotice(ctx context.Context, k payment.GatewayKey, n payment.Received, c gateway.Credential,
	requestID string) (flow.NoticeResult, error) {
	var out flow.NoticeResult
	var err error
	switch {
	case n.Kind == gateway.Other:
		out, err = flow.Keep(ctx, s.engine, k, n, payment.EffectKnown, "ledgerd does not handle such notices",
			requestID)
	case n.Kind == gateway.Unreadable:
		out, err = flow.Keep(ctx, s.engine, k, n, payment.EffectUnmatched, n.Text, requestID)
	case n.OutTradeNo == "": // about a payment that was not created here, without a number of ours
		n.ID = httpsend.Cut("kept/"+n.ID, 256) // if it is redelivered and applies, it is recorded under its own id
		out, err = flow.Keep(ctx, s.engine, k, n, payment.EffectUnmatched, "no payment for this notice", requestID)
		// The notice of its transaction may be late: until numberWait the gateway must redeliver this one.
		out.Done = out.Done && time.Since(n.At) >= numberWait
	default:
		out, err = flow.CommitNotice(ctx, s.engine, k, n, c, requestID)
	}
	if err == nil && !out.Existed {
		s.payments.notices.WithLabelValues(k.Gateway, string(n.Kind), string(out.Effect)).Inc()
	}
	return out, err
}

// takeCallback commits a verified callback. It returns false if the gateway must redeliver it.
func (s *Server) takeCallback(ctx context.Context, requestID string, g *gateway.Configured, n *gateway.Notice,
	raw gateway.Raw) (bool, error) {
	ctx = pg.ForTenants(ctx, g.Tenant)
	k := payment.GatewayKey{Tenant: g.Tenant, Gateway: g.Name}
	if err := s.number(ctx, k, n); err != nil {
		return false, err
	}
	asset, _ := g.Asset(n.Currency)
	received := payment.Received{Notice: *n, Asset: asset, Callback: true, Header: flatten(raw.Header), Body: raw.Body}
	out, err := s.commitNotice(ctx, k, received, nil, requestID)
	if err == nil && out.NeedsQuery {
		return s.queryRefund(ctx, requestID, g, n)
	}
	return out.Done, err
}

// queryRefund queries a refund that was not created here, and whose notice does not state how it ended. It returns
// false if the gateway must redeliver the notice: the refund is undecided, or the query failed.
func (s *Server) queryRefund(ctx context.Context, requestID string, g *gateway.Configured, n *gateway.Notice) (bool,
	error) {
	v, err := payment.NewReader(s.reads).Payment(ctx, payment.Key{Tenant: g.Tenant, OutTradeNo: n.OutTradeNo})
	if err != nil && !fault.Is(err, payment.NotFound) { // without a payment, the answer may have the currency
		return false, err
	}
	currency, _ := g.Currency(v.Asset)
	answer, err := g.QueryRefund(ctx, &gateway.Refund{RefundNo: n.RefundNo, GatewayRefundID: n.GatewayRefundID,
		OutTradeNo: n.OutTradeNo, TransactionID: n.TransactionID, Currency: currency})
	if err != nil {
		s.log.WarnContext(ctx, "console refund: the gateway could not be queried",
			"gateway", g.Name, "refund_no", n.RefundNo, "error", err)
		// A notice that lacks the number of its refund has the number of the payment instead. The refund may have
		// another number, and so another notice.
		return errors.Is(err, gateway.ErrNoTrade) && n.RefundNo == n.OutTradeNo, nil
	}
	asset, _ := g.Asset(answer.Currency)
	out, err := s.commitNotice(ctx, payment.GatewayKey{Tenant: g.Tenant, Gateway: g.Name},
		payment.Received{Notice: answer, Asset: asset}, nil, requestID)
	return err == nil && !out.NeedsQuery, err
}

// flatten joins the values of headers.
func flatten(h http.Header) map[string]string {
	m := make(map[string]string, len(h))
	for name, values := range h {
		m[name] = strings.Join(values, ", ")
	}
	return m
}

// callbacks serves the route of callbacks, if any gateway is configured.
func (s *Server) callbacks(mux *http.ServeMux) {
	if len(s.gateways.ByName) > 0 {
		(&gateway.Handler{Set: s.gateways, Take: s.takeCallback, Log: s.log}).Register(mux)
	}
}

// pay makes the due calls at gateways, until shutdown begins.
func (s *Server) pay(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	}()
	s.dispatcher.Run(ctx)
	if s.options.Pay != nil {
		s.gateways.Close()
	}
}

// gateway returns a gateway that is configured for a tenant, or nil.
func (s *Server) gateway(k payment.GatewayKey) *gateway.Configured { return s.dispatcher.Gateway(k) }

// paymentMetrics are the metrics of payments that need the database.
type paymentMetrics struct {
	notices *prometheus.CounterVec
	due     *prometheus.GaugeVec
	flags   prometheus.Gauge
}

func newPaymentMetrics(r prometheus.Registerer) *paymentMetrics {
	m := &paymentMetrics{
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ledgerd_payment_notices_total",
			Help: "Notices of payment gateways, in callbacks and answers, by kind and effect, without repeats."},
			[]string{"gateway", "kind", "effect"}),
		due: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ledgerd_payment_calls_due_seconds",
			Help: "How long the oldest call at a gateway has been due, in seconds."}, []string{"gateway"}),
		flags: prometheus.NewGauge(prometheus.GaugeOpts{Name: "ledgerd_payment_flags_open",
			Help: "Flagged payments that wait for a person, of all tenants."}),
	}
	r.MustRegister(m.notices, m.due, m.flags)
	return m
}

// measurePayments updates the gauges.
func (s *Server) measurePayments(ctx context.Context) error {
	stats, flags, err := (&payment.Queue{Pool: s.reads}).Stats(ctx)
	if err != nil {
		return err
	}
	s.payments.due.Reset()
	for name := range s.gateways.ByName {
		s.payments.due.WithLabelValues(name).Set(0)
	}
	for _, x := range stats {
		s.payments.due.WithLabelValues(x.Gateway).Set(max(x.Age, 0))
	}
	s.payments.flags.Set(float64(flags))
	return nil
}

// flagUnknowns flags the money of payments that were not created in time.
func flagUnknowns(due []payment.DueFlag) []flow.Submission { return flow.FlagUnknowns(due, scheduler) }
