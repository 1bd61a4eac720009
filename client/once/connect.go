package once

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ledgerd/ledgerd/client"
	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

// Interceptor makes the unary calls of a Connect service idempotent, except those marked NO_SIDE_EFFECTS. Put
// it innermost: it does not record what other interceptors add to answers. It does not record trailers.
func (g *Middleware) Interceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if req.Spec().IsClient || readsOnly(req.Spec()) {
				return next(ctx, req)
			}
			key, ok := keyOf(req.Header())
			switch {
			case !ok:
				return nil, refusal(connect.CodeInvalidArgument, client.ReasonKeyInvalid, badRequest,
					"Idempotency-Key must be sent once, with 1 to 255 printable ASCII characters", 0)
			case key == "" && g.settings.required:
				return nil, refusal(connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_MISSING", badRequest,
					"send an Idempotency-Key", 0)
			case key == "":
				return next(ctx, req)
			}
			return g.unary(ctx, req, key, next)
		}
	})
}

func readsOnly(s connect.Spec) bool {
	_, ok := s.Schema.(protoreflect.MethodDescriptor)
	return s.IdempotencyLevel == connect.IdempotencyNoSideEffects || !ok
}

func (g *Middleware) unary(ctx context.Context, req connect.AnyRequest, key string,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	m, ok := req.Any().(proto.Message)
	if !ok {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("once: %T is not a protobuf message", req.Any()))
	}
	b := appendText([]byte{fingerprintVersion}, req.Spec().Procedure)
	sum := sha256.Sum256(appendMessage(b, m.ProtoReflect()))
	attempt, other, err := g.begin(ctx, g.name(ctx, req.Header(), key), append([]byte{fingerprintVersion}, sum[:]...))
	switch {
	case attempt != nil:
		return attempt.unary(req, next)
	case err != nil && g.settings.open && unreachable(err):
		g.settings.log.Error("a call runs unguarded", "scope", g.scope, "error", err)
		return next(ctx, req)
	case errors.Is(err, client.ReasonWorkKeyReused):
		return nil, refusal(connect.CodeAlreadyExists, client.ReasonKeyReused, badRequest,
			"the Idempotency-Key was used before with another request", 0)
	case err != nil:
		g.settings.log.Error("refused a call: ledgerd did not answer", "scope", g.scope, "error", err)
		return nil, refusal(connect.CodeUnavailable, client.ReasonNotRun, system,
			"try again with the same Idempotency-Key", time.Second)
	case other.GetReplay() != nil:
		return again(req.Spec(), other.GetReplay().GetAnswer())
	case other.GetParked() != nil:
		return nil, refusal(connect.CodeFailedPrecondition, "OUTCOME_PARKED", parked,
			"the outcome of the call is unknown until an operator resolves it", 0)
	}
	return nil, refusal(connect.CodeAborted, client.ReasonWorkRunning, conflict, "the call is still running",
		other.GetWait().GetRetryDelay().AsDuration())
}

// unary runs the handler, records its answer, and then returns it.
func (r *run) unary(req connect.AnyRequest, next connect.UnaryFunc) (res connect.AnyResponse, err error) {
	before := responseHeader(r.ctx).Clone()
	r.call(func() { res, err = next(r.ctx, req) })
	added := responseHeader(r.ctx).Clone() // set by the handler, not by outer interceptors
	maps.DeleteFunc(added, func(name string, values []string) bool { return slices.Equal(before[name], values) })
	o, answer := Done, (*idempotencyv1.RecordedAnswer)(nil)
	if err != nil {
		o = r.settings.connect(err)
		answer = r.settings.recordedError(err, added)
	} else {
		body, failed := proto.MarshalOptions{Deterministic: true}.Marshal(res.Any().(proto.Message))
		if failed != nil {
			body = make([]byte, maxRecorded+1) // such an answer cannot be sent either
		}
		answer = r.settings.recorded(0, merged(added, res.Header()), body)
	}
	if lost := r.end(o, answer); lost != nil {
		r.settings.log.Error("an answer was lost: another attempt may have begun", "scope", r.scope, "key", r.key,
			"error", lost)
		return nil, refusal(connect.CodeAborted, client.ReasonFenceLost, conflict,
			"another attempt may have begun: send the call again to learn how it ended", time.Second)
	}
	return res, err
}

// recordedError converts an error to its recorded form, which is Connect's wire form.
func (s *settings) recordedError(err error, added http.Header) *idempotencyv1.RecordedAnswer {
	e := new(connect.Error)
	if !errors.As(err, &e) {
		e = connect.NewError(connect.CodeOf(err), err)
	}
	st := &status.Status{Code: int32(e.Code()), Message: e.Message()}
	for _, d := range e.Details() {
		st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
	}
	body, failed := proto.MarshalOptions{Deterministic: true}.Marshal(st)
	if failed != nil || len(body) > maxRecorded {
		body, _ = proto.Marshal(&status.Status{Code: int32(e.Code())})
	}
	return s.recorded(int(e.Code()), merged(added, e.Meta()), body)
}

// responseHeader returns the response headers that handlers of the simple API set.
func responseHeader(ctx context.Context) http.Header {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		return info.ResponseHeader()
	}
	return http.Header{}
}

func merged(a, b http.Header) http.Header {
	all := http.Header{}
	for _, h := range []http.Header{a, b} {
		for name, values := range h {
			all[name] = append(all[name], values...)
		}
	}
	return all
}

// response is an answer of any type: Connect sends the result of Any.
type response struct {
	connect.AnyResponse
	message proto.Message
}

func (r response) Any() any { return r.message }

// again replays a recorded answer.
func again(spec connect.Spec, a *idempotencyv1.RecordedAnswer) (connect.AnyResponse, error) {
	var h http.Header
	res := response{AnyResponse: connect.NewResponse(&emptypb.Empty{})}
	var failed *connect.Error
	omitted := false
	if a.GetStatus() != 0 {
		st := new(status.Status)
		if err := proto.Unmarshal(a.GetBody(), st); err != nil {
			return nil, fmt.Errorf("once: read a recorded error: %w", err)
		}
		// handlers send no headers of a wire error
		failed = connect.NewError(connect.Code(a.GetStatus()), errors.New(st.GetMessage()))
		for _, d := range st.GetDetails() {
			if detail, err := connect.NewErrorDetail(d); err == nil {
				failed.AddDetail(detail)
			}
		}
		h = failed.Meta()
	} else {
		output := spec.Schema.(protoreflect.MethodDescriptor).Output().FullName()
		typ, err := protoregistry.GlobalTypes.FindMessageByName(output)
		if err != nil {
			return nil, fmt.Errorf("once: the type of a recorded answer: %w", err)
		}
		res.message = typ.New().Interface()
		if err := proto.Unmarshal(a.GetBody(), res.message); err != nil {
			return nil, fmt.Errorf("once: read a recorded answer: %w", err)
		}
		h = res.Header()
	}
	for _, x := range a.GetHeaders() {
		omitted = omitted || x.GetName() == bodyHeader
		h.Add(x.GetName(), x.GetValue())
	}
	h.Set(client.ReplayedHeader, "true")
	switch {
	case failed != nil:
		return nil, failed
	case omitted:
		return nil, refusal(connect.CodeAlreadyExists, "ANSWER_OMITTED", duplicate,
			"the call was done, but its answer was too large to be recorded", 0)
	}
	return res, nil
}

// kind is the class and next step of the middleware's own errors, in ledgerd's terms.
type kind struct {
	class errorsv1.ErrorClass
	step  errorsv1.NextStep
}

var (
	badRequest = kind{errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST, errorsv1.NextStep_NEXT_STEP_FIX}
	conflict   = kind{errorsv1.ErrorClass_ERROR_CLASS_CONFLICT, errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY}
	parked     = kind{errorsv1.ErrorClass_ERROR_CLASS_CONFLICT, errorsv1.NextStep_NEXT_STEP_READ_AGAIN}
	duplicate  = kind{errorsv1.ErrorClass_ERROR_CLASS_DUPLICATE, errorsv1.NextStep_NEXT_STEP_IGNORE}
	system     = kind{errorsv1.ErrorClass_ERROR_CLASS_SYSTEM, errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY}
)

// refusal is an error of the middleware itself, with details for RetryInterceptor.
func refusal(code connect.Code, reason client.Reason, k kind, message string, after time.Duration) error {
	e := connect.NewError(code, errors.New(message))
	details := []proto.Message{&errdetails.ErrorInfo{Reason: string(reason), Domain: "ledgerd"},
		&errorsv1.ErrorDetail{Class: k.class, NextStep: k.step}}
	if after > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	for _, m := range details {
		if d, err := connect.NewErrorDetail(m); err == nil {
			e.AddDetail(d)
		}
	}
	return e
}
