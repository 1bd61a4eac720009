package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// Gate is the interceptor of every service. It authenticates the caller, admits large requests before they are read,
// validates the message, encodes errors, and counts calls. Admission.Handler sets the request's id and its body.
type Gate struct {
	// Authenticate returns the identity behind an API key or a token. Nil: every caller is Anyone.
	Authenticate func(ctx context.Context, key string) (access.Identity, error)
	// Certificate returns the identity behind a verified client certificate, the first of its chain. It is for calls
	// without Authorization. Nil: certificates identify no caller.
	Certificate func(ctx context.Context, chain []*x509.Certificate) (access.Identity, error)
	// Anyone is the identity of callers without Authorization, for development. Zero: they are refused.
	Anyone  access.Identity
	Log     *slog.Logger
	Metrics *Metrics
	// Traces: a call may have a span.
	Traces bool
	// Reads bounds the reads of a tenant. Nil: unbounded.
	Reads *Reads
	// Memory has hints, such as the strategies of items.
	Memory *flow.Memory
	// Webhooks validates the URLs of endpoints.
	Webhooks webhook.URLPolicy
	// NewOrderNo makes a number for an order whose caller brings none.
	NewOrderNo func() (string, error)
	// Gateway returns a payment gateway that is configured here for a tenant, or nil.
	Gateway func(payment.GatewayKey) *gateway.Configured
}

// Options returns the handler options of a service behind the gate. More interceptors run around the gate's: they see
// authenticated calls, and the errors that callers get.
func (g *Gate) Options(more ...connect.Interceptor) []connect.HandlerOption {
	return append(codecs(), connect.WithRequestGate(g.admit), connect.WithInterceptors(more...),
		connect.WithInterceptors(g), connect.WithRecover(panicked))
}

// admit authenticates a caller, reads the request's header, and admits the request's body.
func (g *Gate) admit(ctx context.Context, spec connect.Spec, p connect.Peer, h http.Header) (context.Context, error) {
	c := &call{gate: g, procedure: spec.Procedure, start: time.Now(),
		identity: g.Anyone, header: h, requestID: h.Get(requestIDKey),
		json: strings.Contains(h.Get("Content-Type"), "json") || p.Query.Get("encoding") == "json"}
	if c.request = requestOf(ctx); c.request != nil && spec.StreamType&connect.StreamTypeClient == 0 {
		c.intake = c.request.intake // client streams, those of reflection, are not admitted by size
	}
	err := c.authenticate(ctx, spec)
	if err == nil {
		err = c.intake.admit(ctx, c.identity.Tenant)
	}
	if err != nil {
		return nil, c.finish(ctx, err)
	}
	return c.within(ctx), nil
}

// authenticate identifies the caller, checks the limits of its API key and its role, and reads the header.
func (c *call) authenticate(ctx context.Context, spec connect.Spec) (err error) {
	if c.gate.identifies(c.header) {
		if c.identity, err = c.gate.identify(ctx, c.header); err != nil {
			return err
		}
	}
	if calls := c.identity.Calls; calls != nil {
		if err = calls.Enter(); err != nil {
			return err
		}
		if c.request != nil {
			c.request.calls = calls
		}
	}
	if err = c.requireRole(permissionOf(spec.Procedure)); err != nil {
		return err
	}
	if c.key, c.keyLife, err = readKey(c.header); err != nil {
		return err
	}
	if c.token, err = readToken(spec, c.header); err != nil {
		return err
	}
	c.claim, err = readClaim(spec, c.header)
	return err
}

// identifies reports whether the call must be authenticated. In development only calls with Authorization are.
func (g *Gate) identifies(h http.Header) bool {
	return g.Authenticate != nil && (g.Anyone.Role == 0 || len(h["Authorization"]) > 0)
}

// identify authenticates by the Authorization header, or without one by client certificate. It refuses two headers: a
// proxy may have checked the other one.
func (g *Gate) identify(ctx context.Context, h http.Header) (access.Identity, error) {
	const scheme = "Bearer "
	values := h["Authorization"]
	if len(values) == 0 && g.Certificate != nil {
		if r := requestOf(ctx); r != nil && r.chain != nil {
			return g.Certificate(ctx, r.chain)
		}
	}
	if len(values) != 1 || len(values[0]) < len(scheme) || !strings.EqualFold(values[0][:len(scheme)], scheme) {
		return access.Identity{}, access.Unauthenticated.New("send Authorization: Bearer KEY, once")
	}
	return g.Authenticate(ctx, values[0][len(scheme):])
}

// reauthenticate re-authenticates a long-lived stream, because its API key may have been revoked.
func (c *call) reauthenticate(ctx context.Context) (err error) {
	if c.gate.identifies(c.header) {
		_, err = c.gate.identify(ctx, c.header)
	}
	return err
}

// maxRead bounds the duration of a read, which holds a connection. The engine bounds mutations itself.
const maxRead = time.Minute

// WrapUnary validates the request, runs the call, and encodes its error.
func (g *Gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c := callOf(ctx)
		message := req.Any().(proto.Message)
		res, err := connect.AnyResponse(nil), checkCall(message)
		if full := c.intake.decoded(message); err == nil {
			err = full
		}
		if err == nil {
			err = c.permit(message)
		}
		switch {
		case err != nil:
		case req.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects:
			within, cancel := context.WithTimeout(ctx, maxRead)
			defer cancel()
			res, err = g.Reads.run(within, c, func() (connect.AnyResponse, error) { return next(within, req) })
		default:
			if res, err = next(ctx, req); err == nil {
				err = c.admitResponse(ctx, res)
			}
		}
		if err = c.finish(ctx, err); err != nil {
			return nil, err
		}
		return res, nil
	}
}

// admitResponse admits a large response of a call that was not a read, such as the repeat of a large Begin, unless it
// is no larger than the memory that the request holds until the response is written.
func (c *call) admitResponse(ctx context.Context, res connect.AnyResponse) error {
	err := c.gate.Reads.admitResponse(ctx, c, res)
	if err == nil {
		return nil
	}
	return fault.OutcomeUnknown.New("the call was made, but there is no memory for its response, because callers " +
		"receive large responses too slowly: repeat it with the same key or biz_no, or read what it made").
		Because(err)
}

// WrapStreamingClient does nothing: the gate is for servers only.
func (g *Gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler validates the messages received on a stream, and encodes its error.
func (g *Gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := callOf(ctx)
		return c.finish(ctx, g.Reads.watch(ctx, c.identity,
			func() error { return next(ctx, checkedConn{conn, c}) }))
	}
}

type checkedConn struct {
	connect.StreamingHandlerConn
	call *call
}

func (c checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		if malformed, ok := errors.AsType[*connect.Error](err); ok && malformed.Code() == connect.CodeInternal {
			return fault.FieldInvalid.New("the request cannot be read: %s", malformed.Message()).Because(err)
		}
		return err
	}
	err := check(m.(proto.Message))
	if in := c.call.intake; in != nil {
		in.admission.release(&in.memory) // the stream may last for hours
	}
	if err != nil {
		return err
	}
	return c.call.permit(m.(proto.Message))
}

// finish counts the call and converts its error to a Connect error.
func (c *call) finish(ctx context.Context, err error) error {
	m := c.gate.Metrics
	m.duration.WithLabelValues(c.procedure).Observe(time.Since(c.start).Seconds())
	c.trace(ctx, "request_id", c.requestID)
	if err == nil {
		m.calls.WithLabelValues(c.procedure, "ok", "").Inc()
		return nil
	}
	f := faultOf(ctx, err)
	m.calls.WithLabelValues(c.procedure, string(f.Reason.Code), f.Reason.Name).Inc()
	c.logFault(ctx, f, err)
	c.trace(ctx, "reason", f.Reason.Name)
	return connectError(c.withFieldNames(f), c.requestID)
}

// withFieldNames returns the fault with field names as in the caller's encoding.
func (c *call) withFieldNames(f *fault.Fault) *fault.Fault {
	if c.json {
		return inJSONNames(f)
	}
	return f
}

// logFault logs failures of the server, refusals and duplicates. The engine logs the use of keys.
func (c *call) logFault(ctx context.Context, f *fault.Fault, err error) {
	log := c.gate.Log
	switch {
	case f.Reason == fault.InternalError:
		log.ErrorContext(ctx, "call failed", "procedure", c.procedure, "request_id", c.requestID, "error", err)
	case f.Reason.Class == fault.System:
		level := slog.LevelWarn
		if ctx.Err() == context.Canceled && (f.Reason == fault.NotRun || f.Reason == fault.OutcomeUnknown) {
			level = slog.LevelDebug // the caller went away
		}
		log.Log(ctx, level, "call failed", "procedure", c.procedure, "request_id", c.requestID, "error", err)
	case f.Reason.Class == fault.Duplicate:
		log.InfoContext(ctx, "call was a duplicate", "procedure", c.procedure, "reason", f.Reason.Name, "key", c.key,
			"first_request_id", f.Metadata["first_request_id"], "request_id", c.requestID)
	case f.Reason.Class == fault.Refusal && (f.RequestID == "" || f.RequestID == c.requestID):
		log.InfoContext(ctx, "call refused", "procedure", c.procedure, "reason", f.Reason.Name, "key", c.key,
			"request_id", c.requestID)
	}
}

// trace sets an attribute on the call's span, if it has one. Names are those of log lines.
func (c *call) trace(ctx context.Context, name, value string) {
	if !c.gate.Traces {
		return
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String(name, value))
	}
}

func panicked(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
	return fmt.Errorf("panic: %v\n%s", p, debug.Stack())
}

// RequireAdmin is middleware for handlers outside of Connect. It requires a key with the role admin or operator and
// without scopes; in development, callers without a key pass.
func (g *Gate) RequireAdmin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.identifies(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		id, err := g.identify(r.Context(), r.Header)
		switch {
		case fault.Is(err, access.Unauthenticated):
			http.Error(w, fault.Of(err).Message, http.StatusUnauthorized)
		case err != nil:
			http.Error(w, faultOf(r.Context(), err).Message, http.StatusServiceUnavailable)
		case id.Role < access.Admin || id.Scopes != nil:
			http.Error(w, "the API key must have the role admin or operator, and no scopes", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Metrics counts calls and errors, and measures durations.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics if reg is not nil.
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
