package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// call is what the gate knows of the call in hand.
type call struct {
	gate      *Gate
	procedure string
	start     time.Time
	meter     *meter
	intake    *intake // nil: the request is small
	identity  access.Identity
	header    http.Header // of the request, with its API key
	requestID string
	key       string        // Idempotency-Key, or empty
	keyLife   time.Duration // as the caller wants it; 0: he does not say
	keyless   bool          // set by the handler: nothing is recorded
	// conditions stand before the change that the call makes; the header named them.
	conditions []flow.Condition
	token      *flow.SubmitToken // of conditions; nil: none was sent
	claim      *flow.ClaimCondition
	bad        map[int]error // items of a batch that break a rule, when each stands for itself
	replayed   bool          // set by the handler: the answer was recorded, or the resource was there before
	next       string        // set by the handler: the next submit token
	secret     bool          // set by the handler: the answer must not be stored on its way
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// Gate stands before every service. It authenticates the caller and admits large requests before they are read, checks
// the message, turns errors into what callers read, and counts. The request has its id from Named, its body from
// Admission.Bounded.
type Gate struct {
	// Authenticate tells who holds an API key. Nil lets everybody in as Anyone.
	Authenticate func(ctx context.Context, key string) (access.Identity, error)
	// Anyone is who calls when nobody is asked.
	Anyone  access.Identity
	Log     *slog.Logger
	Metrics *Metrics
	// Webhooks says where endpoints may be.
	Webhooks webhook.Guard
}

// Options put the gate before a service. More interceptors run around it: they see whom it let in, and the
// errors that callers get.
func (g *Gate) Options(more ...connect.Interceptor) []connect.HandlerOption {
	return append(codecs(), connect.WithRequestGate(g.admit), connect.WithInterceptors(more...),
		connect.WithInterceptors(g), connect.WithRecover(panicked))
}

// admit lets a caller in, or not, by the header of his request.
func (g *Gate) admit(ctx context.Context, spec connect.Spec, _ connect.Peer, h http.Header) (context.Context, error) {
	c := &call{gate: g, procedure: spec.Procedure, start: time.Now(), meter: g.Metrics.of(spec.Procedure),
		identity: g.Anyone,
		header:   h, requestID: h.Get(RequestIDHeader)}
	err := g.enter(ctx, c, spec, h)
	if err == nil && spec.StreamType&connect.StreamTypeClient == 0 { // one message is all there is to read
		c.intake, _ = ctx.Value(intakeKey{}).(*intake)
		err = c.intake.admit(ctx, c.identity.Tenant)
	}
	if err != nil {
		return nil, c.leave(ctx, err)
	}
	return context.WithValue(ctx, callKey{}, c), nil
}

func (g *Gate) enter(ctx context.Context, c *call, spec connect.Spec, h http.Header) (err error) {
	if g.Authenticate != nil {
		if c.identity, err = g.identify(ctx, h); err != nil {
			return err
		}
	}
	if need := roleFor(spec); c.identity.Role < need {
		return access.PermissionDenied.New("the API key's role is %s, the call needs %s", c.identity.Role, need)
	}
	if values := h[KeyHeader]; len(values) > 1 {
		return fault.FieldInvalid.New("header %s was sent %d times: send it once", KeyHeader, len(values))
	} else if len(values) == 1 {
		if c.key, c.keyLife, err = parseKeyHeader(values[0]); err != nil {
			return err
		}
	}
	if values := h[TokenHeader]; len(values) > 0 {
		if err := c.spend(spec, values); err != nil {
			return err
		}
	}
	return c.enterClaim(spec, h)
}

// enterClaim reads a claim that stands before a changing call.
func (c *call) enterClaim(spec connect.Spec, h http.Header) error {
	values := h[ClaimHeader]
	switch {
	case len(values) == 0:
		return nil
	case len(values) > 1:
		return fault.FieldInvalid.New("header %s was sent %d times: send it once", ClaimHeader, len(values))
	case spec.IdempotencyLevel == connect.IdempotencyNoSideEffects:
		return fault.FieldInvalid.New("header %s is for mutations only", ClaimHeader)
	}
	p, err := readClaim(values[0])
	if err != nil {
		return err
	}
	c.claim = flow.NewClaimCondition(c.caller(), p)
	c.conditions = append(c.conditions, c.claim)
	return nil
}

// identify reads the one Authorization header: of two, somebody on the way may have checked the other.
func (g *Gate) identify(ctx context.Context, h http.Header) (access.Identity, error) {
	const scheme = "Bearer "
	values := h["Authorization"]
	if len(values) != 1 || len(values[0]) < len(scheme) || !strings.EqualFold(values[0][:len(scheme)], scheme) {
		return access.Identity{}, access.Unauthenticated.New("send Authorization: Bearer KEY, once")
	}
	return g.Authenticate(ctx, values[0][len(scheme):])
}

// stillIn tells whether a call that lasts would be let in now: its key may have been revoked.
func (c *call) stillIn(ctx context.Context) (err error) {
	if c.gate.Authenticate != nil {
		_, err = c.gate.identify(ctx, c.header)
	}
	return err
}

// roleFor tells what a call needs: reads are marked side-effect free; what nobody thought of is for admins.
func roleFor(spec connect.Spec) access.Role {
	service, _, _ := strings.Cut(strings.TrimPrefix(spec.Procedure, "/"), "/")
	switch {
	case strings.HasPrefix(service, "grpc.reflection."):
		return access.Read
	case !strings.HasPrefix(service, "ledgerd."), strings.HasSuffix(service, ".AdminService"),
		spec.Procedure == notifyv1connect.WebhookServiceGetSecretProcedure:
		return access.Admin
	case spec.IdempotencyLevel == connect.IdempotencyNoSideEffects:
		return access.Read
	}
	return access.Write
}

// maxRead bounds a read whose caller sets no deadline: it holds a connection. The engine has a bound of
// its own.
const maxRead = time.Minute

// WrapUnary checks a request, and shapes its answer.
func (g *Gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c := callOf(ctx)
		if req.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, maxRead)
			defer cancel()
		}
		message := req.Any().(proto.Message)
		res, err := connect.AnyResponse(nil), c.check(message)
		c.intake.decoded(message)
		if err == nil {
			res, err = next(ctx, req)
		}
		if err = c.leave(ctx, err); err != nil {
			return nil, err
		}
		c.mark(res.Header())
		if c.claim != nil && c.claim.Count() > 0 { // 0: the answer was recorded
			res.Header().Set(ClaimCountHeader, strconv.FormatInt(c.claim.Count(), 10))
		}
		return res, nil
	}
}

// WrapStreamingClient has nothing to do: servers only.
func (g *Gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler checks what comes in on a stream, and shapes its error.
func (g *Gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := callOf(ctx)
		return c.leave(ctx, next(ctx, checkedConn{conn, c.intake}))
	}
}

type checkedConn struct {
	connect.StreamingHandlerConn
	intake *intake
}

func (c checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	err := check(m.(proto.Message))
	if c.intake != nil {
		c.intake.admission.leave(&c.intake.ticket) // the stream may last for hours
	}
	return err
}

// leave counts a call and gives its error the shape that callers read.
func (c *call) leave(ctx context.Context, err error) error {
	c.meter.duration.Observe(time.Since(c.start).Seconds())
	c.trace(ctx, "request_id", c.requestID)
	if err == nil {
		c.meter.ok.Inc()
		return nil
	}
	f := faultOf(ctx, err)
	c.meter.failed(f)
	c.note(ctx, f, err)
	c.trace(ctx, "reason", f.Reason.Name)
	e := connectError(f, c.requestID)
	c.mark(e.Meta())
	return e
}

// note logs what the server is to blame for, refusals and duplicates. The engine logs what is done with keys.
func (c *call) note(ctx context.Context, f *fault.Fault, err error) {
	log := c.gate.Log
	switch {
	case f.Reason == fault.InternalError:
		log.ErrorContext(ctx, "call failed", "procedure", c.procedure, "request_id", c.requestID, "error", err)
	case f.Reason.Class == fault.System:
		log.WarnContext(ctx, "call failed", "procedure", c.procedure, "request_id", c.requestID, "error", err)
	case f.Reason.Class == fault.Duplicate:
		log.InfoContext(ctx, "call was a duplicate", "procedure", c.procedure, "reason", f.Reason.Name, "key", c.key,
			"first_request_id", f.State["first_request_id"], "request_id", c.requestID)
	case f.Reason.Class == fault.Refusal && (f.RequestID == "" || f.RequestID == c.requestID):
		log.InfoContext(ctx, "call refused", "procedure", c.procedure, "reason", f.Reason.Name, "key", c.key,
			"request_id", c.requestID)
	}
}

// trace puts onto the call's span, if it has one, what log lines call so.
func (c *call) trace(ctx context.Context, name, value string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String(name, value))
	}
}

// mark tells that an answer is a repeat, and what else stands in its header.
func (c *call) mark(h http.Header) {
	if c.replayed {
		h.Set(ReplayedHeader, "true")
	}
	if c.next != "" {
		h.Set(NextTokenHeader, c.next)
	}
	if c.secret {
		h.Set("Cache-Control", "no-store")
	}
}

func panicked(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
	return fmt.Errorf("panic: %v\n%s", p, debug.Stack())
}

// Guard lets callers with an API key through to a plain HTTP handler.
func (g *Gate) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Authenticate != nil {
			if _, err := g.identify(r.Context(), r.Header); err != nil {
				status := http.StatusServiceUnavailable
				if fault.Is(err, access.Unauthenticated) {
					status = http.StatusUnauthorized
				}
				http.Error(w, fault.Of(err).Message, status)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
