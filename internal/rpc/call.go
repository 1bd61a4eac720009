package rpc

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// RequestIDHeader names a request through every log line, row and answer.
const RequestIDHeader = "X-Request-ID"

// call is what the interceptor knows of the call in hand.
type call struct {
	identity  access.Identity
	requestID string
	key       string // Idempotency-Key, or empty
	replayed  bool   // set by the handler: the answer was recorded, or the thing was there before
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// Gate is the one interceptor: it names the request, lets the caller in, checks the request, turns
// errors into what callers read, and counts.
type Gate struct {
	// Authenticate tells who holds an API key. Nil lets everybody in as Anyone.
	Authenticate func(ctx context.Context, key string) (access.Identity, error)
	// Anyone is who calls when nobody is asked.
	Anyone  access.Identity
	Log     *slog.Logger
	Metrics *Metrics
}

// Metrics are rate, errors and duration of calls.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes them, and registers them if reg is not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Name: "calls_total",
			Help: "Calls by procedure, code and reason."}, []string{"procedure", "code", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "ledgerd", Name: "call_seconds",
			Help: "Time of calls.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}, []string{"procedure"}),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.duration)
	}
	return m
}

// WrapUnary lets a unary call through the gate.
func (g *Gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		c, err := g.enter(ctx, req.Spec(), req.Header())
		if err == nil {
			if m, ok := req.Any().(proto.Message); ok {
				err = validate(m)
			}
		}
		var res connect.AnyResponse
		if err == nil {
			res, err = next(context.WithValue(ctx, callKey{}, c), req)
		}
		err = g.leave(ctx, req.Spec(), c, start, err)
		if err != nil {
			return nil, err
		}
		c.mark(res.Header())
		return res, nil
	}
}

// WrapStreamingClient has nothing to do: servers only.
func (g *Gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler lets a streaming call through the gate.
func (g *Gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		start := time.Now()
		c, err := g.enter(ctx, conn.Spec(), conn.RequestHeader())
		c.mark(conn.ResponseHeader())
		if err == nil {
			err = next(context.WithValue(ctx, callKey{}, c), checkedConn{conn})
		}
		return g.leave(ctx, conn.Spec(), c, start, err)
	}
}

// checkedConn checks every message that comes in.
type checkedConn struct{ connect.StreamingHandlerConn }

func (c checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	if p, ok := m.(proto.Message); ok {
		return validate(p)
	}
	return nil
}

func (g *Gate) enter(ctx context.Context, spec connect.Spec, h http.Header) (*call, error) {
	c := &call{requestID: h.Get(RequestIDHeader)}
	if !goodRequestID(c.requestID) {
		c.requestID = newRequestID()
	}
	c.identity = g.Anyone
	if g.Authenticate != nil {
		key, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
		if !ok {
			return c, access.Unauthenticated.New("send Authorization: Bearer KEY")
		}
		var err error
		if c.identity, err = g.Authenticate(ctx, key); err != nil {
			return c, err
		}
	}
	if need := roleFor(spec); c.identity.Role < need {
		return c, access.PermissionDenied.New("the API key's role is %s, the call needs %s", c.identity.Role, need)
	}
	if values := h.Values(KeyHeader); len(values) > 0 {
		if len(values) > 1 {
			return c, fault.FieldInvalid.New("%s was sent %d times", KeyHeader, len(values))
		}
		var err error
		if c.key, err = ParseKey(values[0]); err != nil {
			return c, err
		}
	}
	return c, nil
}

// roleFor reads the service descriptor: reads are marked side-effect free, AdminService is for admins.
func roleFor(spec connect.Spec) access.Role {
	m, ok := spec.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return access.Read // reflection
	}
	if m.Parent().Name() == "AdminService" {
		return access.Admin
	}
	if o, ok := m.Options().(*descriptorpb.MethodOptions); ok &&
		o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
		return access.Read
	}
	if strings.HasPrefix(string(m.FullName()), "grpc.") {
		return access.Read
	}
	return access.Write
}

func (g *Gate) leave(ctx context.Context, spec connect.Spec, c *call, start time.Time, err error) error {
	took := time.Since(start)
	g.Metrics.duration.WithLabelValues(spec.Procedure).Observe(took.Seconds())
	if err == nil {
		g.Metrics.calls.WithLabelValues(spec.Procedure, "ok", "").Inc()
		return nil
	}
	var e *connect.Error
	if errors.As(err, &e) && fault.Of(err) == nil {
		c.mark(e.Meta()) // the transport's own: a body that cannot be read, a client that left
		g.Metrics.calls.WithLabelValues(spec.Procedure, e.Code().String(), "").Inc()
		return e
	}
	f := faultOf(ctx, g.Log, spec.Procedure, c.requestID, err)
	g.Metrics.calls.WithLabelValues(spec.Procedure, string(f.Reason.Code), f.Reason.Name).Inc()
	if f.Reason.Class == fault.Refusal {
		g.Log.InfoContext(ctx, "call refused", "procedure", spec.Procedure, "reason", f.Reason.Name,
			"request_id", c.requestID, "first_request_id", f.RequestID)
	}
	e = connectError(f, c.requestID)
	c.mark(e.Meta())
	return e
}

// mark puts what the caller wants to know of the answer into its headers.
func (c *call) mark(h http.Header) {
	h.Set(RequestIDHeader, c.requestID)
	if c.replayed {
		h.Set(ReplayedHeader, "true")
	}
}

// validate holds a request against the rules in its proto.
func validate(m proto.Message) error {
	err := protovalidate.Validate(m)
	if err == nil {
		return nil
	}
	var v *protovalidate.ValidationError
	if !errors.As(err, &v) {
		return err
	}
	f := fault.FieldInvalid.New("the request breaks %d rules", len(v.Violations))
	for _, x := range v.Violations {
		f = f.WithField(protovalidate.FieldPathString(x.Proto.GetField()), x.Proto.GetMessage())
	}
	if len(f.Fields) == 1 {
		f.Message = f.Fields[0].Path + ": " + f.Fields[0].Description
	}
	return f
}

func goodRequestID(s string) bool {
	if len(s) < 1 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

var requestIDText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func newRequestID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return requestIDText.EncodeToString(b[:])
}

// Guard lets callers with an API key through to a plain HTTP handler.
func (g *Gate) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Authenticate != nil {
			key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if _, err := g.Authenticate(r.Context(), key); err != nil {
				http.Error(w, "send Authorization: Bearer KEY", http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
