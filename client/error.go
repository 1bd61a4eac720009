package client

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// Class classifies errors by what the server records of them. It alone decides whether the same key may run
// again.
type Class string

// The error classes. An error that is not from the server, such as a refused connection, has none.
const (
	ClassBadRequest Class = "bad_request"      // not recorded; the same key may run with a corrected request
	ClassDuplicate  Class = "duplicate"        // done before; the error names the first result
	ClassRefusal    Class = "business_refusal" // recorded; the same key gets the same refusal
	ClassConflict   Class = "conflict"         // not recorded; the same key may run, see NextStep
	ClassSystem     Class = "system"           // nothing recorded; the same key may run
)

// NextStep is the recommended next step after an error.
type NextStep string

const (
	StepFix          NextStep = "fix"            // correct the request
	StepIgnore       NextStep = "ignore"         // nothing: it was already done
	StepNewKey       NextStep = "new_key"        // decide again, under a new key
	StepReadAgain    NextStep = "read_again"     // read the state, then decide
	StepRetrySameKey NextStep = "retry_same_key" // send the same again, after RetryAfter
	StepNewToken     NextStep = "new_token"      // fetch a new submit token
)

var classes = map[errorsv1.ErrorClass]Class{
	errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST:      ClassBadRequest,
	errorsv1.ErrorClass_ERROR_CLASS_DUPLICATE:        ClassDuplicate,
	errorsv1.ErrorClass_ERROR_CLASS_BUSINESS_REFUSAL: ClassRefusal,
	errorsv1.ErrorClass_ERROR_CLASS_CONFLICT:         ClassConflict,
	errorsv1.ErrorClass_ERROR_CLASS_SYSTEM:           ClassSystem,
}

var steps = map[errorsv1.NextStep]NextStep{
	errorsv1.NextStep_NEXT_STEP_FIX: StepFix, errorsv1.NextStep_NEXT_STEP_IGNORE: StepIgnore,
	errorsv1.NextStep_NEXT_STEP_NEW_KEY: StepNewKey, errorsv1.NextStep_NEXT_STEP_READ_AGAIN: StepReadAgain,
	errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY: StepRetrySameKey, errorsv1.NextStep_NEXT_STEP_NEW_TOKEN: StepNewToken,
}

// Field is one invalid field of a request.
type Field struct {
	Path        string // such as "postings[0].amount"
	Description string // the rule that it violates
}

// Error is the error of a call, the same over every protocol. It wraps the *connect.Error that it was decoded
// from, so connect.CodeOf works too.
type Error struct {
	Code       connect.Code
	Reason     Reason // empty if the error is not from the server: a lost connection, a proxy
	Class      Class
	NextStep   NextStep
	ShowToUser bool              // Message may be shown to the end user
	Message    string            // for people
	Metadata   map[string]string // values that the reason refers to, at that time: "available", "version", …
	Fields     []Field           // invalid fields of the request
	RetryAfter time.Duration     // delay requested by the server; 0: none
	// RequestID identifies the call in the server's log. For a refusal that was recorded under the key earlier,
	// it identifies the first call.
	RequestID string
	cause     error
}

// Error returns the reason, or else the code, and the message.
func (e *Error) Error() string {
	if e.Reason != "" {
		return string(e.Reason) + ": " + e.Message
	}
	return e.Code.String() + ": " + e.Message
}

// Unwrap returns the underlying *connect.Error.
func (e *Error) Unwrap() error { return e.cause }

// Is supports errors.Is(err, ReasonInsufficientFunds).
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && r != "" && r == e.Reason
}

// AsError returns the Error in err; ok is false if err contains neither an Error nor a *connect.Error. Calls of
// a Client return decoded errors; AsError also decodes those of other Connect clients.
func AsError(err error) (e *Error, ok bool) {
	if errors.As(err, &e) {
		return e, true
	}
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return nil, false
	}
	return decode(wire), true
}

// ReasonOf returns the reason in err, or "".
func ReasonOf(err error) Reason {
	if e, ok := AsError(err); ok {
		return e.Reason
	}
	return ""
}

// ItemError decodes the error of an item of TransferBatch to the error that a single Transfer would have
// returned; nil for nil.
func ItemError(e *ledgerv1.ItemError) *Error {
	if e == nil {
		return nil
	}
	return decode(wireError(e))
}

// wireError converts an item's error to the error of a single call.
func wireError(e *ledgerv1.ItemError) *connect.Error {
	code := connect.CodeUnknown
	_ = code.UnmarshalText([]byte(e.GetCode())) // codes of a newer server remain unknown
	made := connect.NewWireError(code, errors.New(e.GetMessage()))
	addDetail(made, &errdetails.ErrorInfo{Reason: e.GetReason(), Domain: domain, Metadata: e.GetMetadata()})
	addDetail(made, e.GetDetail())
	if len(e.GetFieldViolations()) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.GetFieldViolations() {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v.GetField(), Description: v.GetDescription()})
		}
		addDetail(made, bad)
	}
	if e.GetRetryDelay() != nil {
		addDetail(made, &errdetails.RetryInfo{RetryDelay: e.GetRetryDelay()})
	}
	return made
}

func decode(wire *connect.Error) *Error {
	e := &Error{Code: wire.Code(), Message: wire.Message(), cause: wire}
	for _, d := range wire.Details() {
		m, err := d.Value()
		if err != nil {
			continue // a type unknown to this program
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.Metadata = Reason(m.GetReason()), m.GetMetadata()
		case *errorsv1.ErrorDetail:
			e.Class, e.NextStep = classes[m.GetClass()], steps[m.GetNextStep()]
			e.ShowToUser, e.RequestID = m.GetShowToUser(), m.GetRequestId()
		case *errdetails.BadRequest:
			for _, v := range m.GetFieldViolations() {
				e.Fields = append(e.Fields, Field{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(m.GetRetryDelay().AsDuration(), 0)
		}
	}
	if e.RequestID == "" {
		e.RequestID = wire.Meta().Get(RequestIDHeader)
	}
	return e
}

// ErrorInterceptor converts the errors of calls and streams to *Error. Put it first, so that other interceptors
// do not hide the conversion. It works for clients of any Connect service.
func ErrorInterceptor() connect.Interceptor { return errorInterceptor{} }

type errorInterceptor struct{}

func (errorInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err != nil && req.Spec().IsClient {
			return nil, decoded(err)
		}
		return res, err
	}
}

func (errorInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return decodingConn{next(ctx, spec)}
	}
}

func (errorInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// decodingConn decodes the error that ends a stream, except for io.EOF, which marks its regular end.
type decodingConn struct{ connect.StreamingClientConn }

func (c decodingConn) Send(m any) error    { return decoded(c.StreamingClientConn.Send(m)) }
func (c decodingConn) Receive(m any) error { return decoded(c.StreamingClientConn.Receive(m)) }

func decoded(err error) error {
	if e, ok := AsError(err); ok {
		return e
	}
	return err
}
