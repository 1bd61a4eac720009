package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Domain is the domain of google.rpc.ErrorInfo in our errors.
const Domain = "ledgerd"

var codes = map[fault.Code]connect.Code{
	fault.Canceled: connect.CodeCanceled, fault.InvalidArgument: connect.CodeInvalidArgument,
	fault.DeadlineExceeded: connect.CodeDeadlineExceeded, fault.NotFound: connect.CodeNotFound,
	fault.AlreadyExists: connect.CodeAlreadyExists, fault.PermissionDenied: connect.CodePermissionDenied,
	fault.ResourceExhausted: connect.CodeResourceExhausted, fault.FailedPrecondition: connect.CodeFailedPrecondition,
	fault.Aborted: connect.CodeAborted, fault.Internal: connect.CodeInternal,
	fault.Unavailable:     connect.CodeUnavailable,
	fault.Unauthenticated: connect.CodeUnauthenticated, fault.Unimplemented: connect.CodeUnimplemented,
}

var classes = map[fault.Class]errorsv1.ErrorClass{
	fault.BadRequest: errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST,
	fault.Duplicate:  errorsv1.ErrorClass_ERROR_CLASS_DUPLICATE,
	fault.Refusal:    errorsv1.ErrorClass_ERROR_CLASS_BUSINESS_REFUSAL,
	fault.Conflict:   errorsv1.ErrorClass_ERROR_CLASS_CONFLICT,
	fault.System:     errorsv1.ErrorClass_ERROR_CLASS_SYSTEM,
}

var steps = map[fault.Step]errorsv1.NextStep{
	fault.Fix: errorsv1.NextStep_NEXT_STEP_FIX, fault.Ignore: errorsv1.NextStep_NEXT_STEP_IGNORE,
	fault.NewKey: errorsv1.NextStep_NEXT_STEP_NEW_KEY, fault.ReadAgain: errorsv1.NextStep_NEXT_STEP_READ_AGAIN,
	fault.RetrySameKey: errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY,
	fault.NewToken:     errorsv1.NextStep_NEXT_STEP_NEW_TOKEN,
}

// faultOf converts any error to a fault. Errors that are not faults are internal: the caller does not see their text.
func faultOf(ctx context.Context, err error) *fault.Fault {
	byCaller := ctx.Err() != nil && errors.Is(err, ctx.Err()) // not a failure of the database
	if f := fault.Of(err); f != nil && !(byCaller && f.Reason == fault.DatabaseUnavailable) {
		return f
	}
	var transport *connect.Error
	if errors.As(err, &transport) {
		switch transport.Code() {
		case connect.CodeInvalidArgument, connect.CodeResourceExhausted, connect.CodeUnimplemented:
			return fault.FieldInvalid.New("%s", transport.Message())
		case connect.CodeCanceled, connect.CodeDeadlineExceeded:
			return ended(err)
		}
	}
	switch {
	case byCaller, ctx.Err() != nil && transport != nil:
		return ended(err)
	case transport == nil && databaseGone(err):
		return fault.DatabaseUnavailable.New("the database cannot be read now").After(time.Second).Because(err)
	}
	return fault.InternalError.New("internal error").Because(err)
}

func ended(err error) *fault.Fault {
	return fault.NotRun.New("the call timed out or was cancelled before its response").Because(err)
}

// databaseGone reports whether an error means that the connection was lost, not that a statement failed.
func databaseGone(err error) bool {
	var refused *pgconn.ConnectError
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &refused):
		return true
	case errors.As(err, &answer):
		return strings.HasPrefix(answer.Code, "57P") || strings.HasPrefix(answer.Code, "08")
	}
	var network net.Error
	return pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// connectError encodes a fault for the wire.
func connectError(f *fault.Fault, requestID string) *connect.Error {
	e := connect.NewError(codes[f.Reason.Code], errors.New(f.Message))
	add := func(m proto.Message) {
		detail := new(anypb.Any) // deterministic bytes
		if err := anypb.MarshalFrom(detail, m, marshal); err == nil {
			d, _ := connect.NewErrorDetail(detail)
			e.AddDetail(d)
		}
	}
	add(&errdetails.ErrorInfo{Reason: f.Reason.Name, Domain: Domain, Metadata: f.Metadata})
	add(detailOf(f, requestID))
	if len(f.Fields) > 0 {
		add(&errdetails.BadRequest{FieldViolations: each(f.Fields,
			func(v fault.Field) *errdetails.BadRequest_FieldViolation {
				return &errdetails.BadRequest_FieldViolation{Field: v.Path, Description: v.Description}
			})})
	}
	if f.RetryAfter > 0 {
		add(&errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
		e.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds())))) // for plain HTTP clients
	}
	return e
}

// itemError encodes a fault as the error of an item, with the same content as connectError.
func itemError(f *fault.Fault, requestID string) *ledgerv1.ItemError {
	e := &ledgerv1.ItemError{Code: string(f.Reason.Code), Reason: f.Reason.Name, Message: f.Message,
		Metadata: f.Metadata, Detail: detailOf(f, requestID),
		FieldViolations: each(f.Fields, func(v fault.Field) *ledgerv1.FieldViolation {
			return &ledgerv1.FieldViolation{Field: v.Path, Description: v.Description}
		})}
	if f.RetryAfter > 0 {
		e.RetryDelay = durationpb.New(f.RetryAfter)
	}
	return e
}

func detailOf(f *fault.Fault, requestID string) *errorsv1.ErrorDetail {
	return &errorsv1.ErrorDetail{Class: classes[f.Reason.Class], NextStep: steps[f.NextStep()],
		ShowToUser: f.Reason.Show, RequestId: cmp.Or(f.RequestID, requestID)}
}
