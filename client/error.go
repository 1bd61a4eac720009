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

// Class sorts errors by what the server keeps of them. It alone decides whether the same key may run
// again.
type Class string

// The classes. An error that did not come from the service itself, such as a refused connection, has
// none.
const (
	ClassBadRequest Class = "bad_request"      // not recorded; the same key may run, corrected
	ClassDuplicate  Class = "duplicate"        // it happened before; the error names the first result
	ClassRefusal    Class = "business_refusal" // recorded: the same key gets the same refusal
	ClassConflict   Class = "conflict"         // not recorded; the same key may run, see NextStep
	ClassSystem     Class = "system"           // nothing was kept; the same key may run
)

// NextStep is what the caller should do after an error.
type NextStep string

// The next steps.
const (
	StepFix          NextStep = "fix"            // correct the request
	StepIgnore       NextStep = "ignore"         // nothing: it is done already
	StepNewKey       NextStep = "new_key"        // decide anew, under a new key
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

// Field is one bad field of a request.
type Field struct {
	Path        string // such as "postings[0].amount"
	Description string // what it should be
}

// Error is how a call failed, the same over every protocol. It wraps the *connect.Error that it was
// read from, so connect.CodeOf works on it too.
type Error struct {
	Code       connect.Code
	Reason     Reason // empty when the error is not the service's own: a lost connection, a proxy
	Class      Class
	NextStep   NextStep
	ShowToUser bool              // Message is fit for the end user
	Message    string            // for people
	State      map[string]string // what the reason speaks of, as it was then: "available", "version", …
	Fields     []Field           // what is wrong with the request
	RetryAfter time.Duration     // how long the server wants a retry to wait; 0: it does not say
	// RequestID names the call in the server's log. When the refusal was recorded under the key before,
	// it names the call that was refused then.
	RequestID string
	cause     error
}

// Error is the reason, or else the code, and the message.
func (e *Error) Error() string {
	if e.Reason != "" {
		return string(e.Reason) + ": " + e.Message
	}
	return e.Code.String() + ": " + e.Message
}

// Unwrap is the *connect.Error underneath.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, ReasonInsufficientFunds) work.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && r != "" && r == e.Reason
}

// AsError reads the Error in err; ok is false when err is neither one nor a *connect.Error. Calls of a
// Client return it already decoded; AsError also decodes the errors of other Connect clients.
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

// ReasonOf is the reason in err, or empty.
func ReasonOf(err error) Reason {
	if e, ok := AsError(err); ok {
		return e.Reason
	}
	return ""
}

// ItemError reads the error of an item of TransferBatch: it is what a lone Transfer would have returned,
// or nil for nil.
func ItemError(e *ledgerv1.ItemError) *Error {
	if e == nil {
		return nil
	}
	return decode(wireError(e))
}

// wireError is the error of an item as it stands in the answer to a lone call.
func wireError(e *ledgerv1.ItemError) *connect.Error {
	code := connect.CodeUnknown
	_ = code.UnmarshalText([]byte(e.GetCode())) // a code of a newer server stays unknown
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
			continue // of a type that this program does not know
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.State = Reason(m.GetReason()), m.GetMetadata()
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

// ErrorInterceptor turns the errors of calls and of streams into *Error. Put it first, so that nothing
// outside of it sees anything else. For clients of any Connect service.
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

// decodingConn decodes what a stream ends with. io.EOF, by which it says that it is over, is left alone.
type decodingConn struct{ connect.StreamingClientConn }

func (c decodingConn) Send(m any) error    { return decoded(c.StreamingClientConn.Send(m)) }
func (c decodingConn) Receive(m any) error { return decoded(c.StreamingClientConn.Receive(m)) }

func decoded(err error) error {
	if e, ok := AsError(err); ok {
		return e
	}
	return err
}
