package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

func wireError(code connect.Code, details ...proto.Message) error {
	e := connect.NewWireError(code, errors.New("told by the server"))
	for _, m := range details {
		d, err := connect.NewErrorDetail(m)
		if err != nil {
			panic(err)
		}
		e.AddDetail(d)
	}
	return e
}

func classed(c errorsv1.ErrorClass, s errorsv1.NextStep) *errorsv1.ErrorDetail {
	return &errorsv1.ErrorDetail{Class: c, NextStep: s}
}

// failing is a client's transport that returns its errors one after the other, then succeeds.
type failing struct {
	errs  []error
	calls atomic.Int32
	at    []time.Time
}

func (f *failing) interceptor() client.Option {
	return client.WithInterceptors(connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			n := int(f.calls.Add(1)) - 1
			f.at = append(f.at, time.Now())
			if n < len(f.errs) {
				return nil, f.errs[n]
			}
			if _, ok := req.Any().(*ledgerv1.ListAssetsRequest); ok {
				return connect.NewResponse(&ledgerv1.ListAssetsResponse{}), nil
			}
			return connect.NewResponse(&ledgerv1.TransferResponse{}), nil
		}
	}))
}

func TestOnlyTheClassAllowsARetry(t *testing.T) {
	t.Parallel()
	const (
		bad, duplicate, refusal = errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST,
			errorsv1.ErrorClass_ERROR_CLASS_DUPLICATE, errorsv1.ErrorClass_ERROR_CLASS_BUSINESS_REFUSAL
		conflict, system    = errorsv1.ErrorClass_ERROR_CLASS_CONFLICT, errorsv1.ErrorClass_ERROR_CLASS_SYSTEM
		fix, ignore, newKey = errorsv1.NextStep_NEXT_STEP_FIX, errorsv1.NextStep_NEXT_STEP_IGNORE,
			errorsv1.NextStep_NEXT_STEP_NEW_KEY
		readAgain, retrySameKey = errorsv1.NextStep_NEXT_STEP_READ_AGAIN, errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY
	)
	for _, row := range []struct {
		name string
		err  error
		want int // number of calls
	}{
		{"system", wireError(connect.CodeInternal, classed(system, retrySameKey)), 3},
		{"system past the attempt's deadline", wireError(connect.CodeDeadlineExceeded, classed(system, retrySameKey)),
			3},
		{"busy", wireError(connect.CodeResourceExhausted, classed(conflict, retrySameKey)), 3},
		{"stale", wireError(connect.CodeAborted, classed(conflict, readAgain)), 1},
		{"refusal", wireError(connect.CodeFailedPrecondition, classed(refusal, newKey)), 1},
		{"refusal, unavailable", wireError(connect.CodeUnavailable, classed(refusal, newKey)), 1},
		{"bad request", wireError(connect.CodeInvalidArgument, classed(bad, fix)), 1},
		{"duplicate", wireError(connect.CodeAlreadyExists, classed(duplicate, ignore)), 1},
		{"a proxy's unavailable", wireError(connect.CodeUnavailable), 3},
		{"no class", wireError(connect.CodeAborted), 1},
		{"unimplemented", wireError(connect.CodeUnimplemented), 1},
		{"refused connection", connect.NewError(connect.CodeUnavailable,
			&net.OpError{Op: "dial", Err: errors.New("refused")}), 3},
		{"broken while reading", connect.NewError(connect.CodeUnknown,
			fmt.Errorf("read: %w", &net.OpError{Op: "read", Err: errors.New("reset")})), 3},
		{"the attempt's deadline", connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), 3},
		{"cannot be marshalled", connect.NewError(connect.CodeInternal, errors.New("invalid UTF-8")), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			wire := &failing{errs: []error{row.err, row.err, row.err, row.err}}
			c := client.New("http://unused", wire.interceptor())
			ctx, info := client.WithInfo(t.Context())
			_, err := c.Ledger.Transfer(ctx, transfer("a", "b", "c", "1"))
			if n := int(wire.calls.Load()); n != row.want || info.Attempts != row.want || !errors.Is(err, row.err) {
				t.Errorf("%s: %d calls, want %d (info %+v, %v)", row.name, n, row.want, info, err)
			}
		})
	}
}

func TestWaitsAreBoundedJitteredAndOnTopOfRetryInfo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := wireError(connect.CodeResourceExhausted,
			classed(errorsv1.ErrorClass_ERROR_CLASS_CONFLICT, errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY),
			&errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Second)})
		gone := wireError(connect.CodeUnavailable)
		seen := map[time.Duration]bool{}
		for range 200 {
			wire := &failing{errs: []error{gone, gone, gone, gone, gone, gone, busy}}
			c := client.New("http://unused", wire.interceptor(), client.WithRetry(8, 100*time.Millisecond, time.Second))
			if _, err := c.Ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{}); err != nil {
				t.Fatal(err)
			}
			for i, bound := range []time.Duration{100, 200, 400, 800, 1000, 1000, 1000} {
				least := time.Duration(0)
				if i == 6 {
					least = 10 * time.Second
				}
				wait := wire.at[i+1].Sub(wire.at[i])
				if wait < least || wait > least+bound*time.Millisecond {
					t.Fatalf("wait %d was %s, want %s to %s more", i, wait, least, bound*time.Millisecond)
				}
				seen[wait] = true
			}
		}
		if len(seen) < 1000 {
			t.Errorf("%d different waits out of 1400: not jittered", len(seen))
		}
	})
}

func TestAChangingCallWithoutKeyIsNeverRetried(t *testing.T) {
	t.Parallel()
	url := serve(t, stub{})
	h := newLosing(1)
	wire := connect.WithInterceptors(client.RetryInterceptor(client.RetryPolicy{Base: 1, Max: 1}))
	c := newLedgerClient(h, url, wire)
	if _, err := c.Transfer(t.Context(), transfer("a", "b", "c", "1")); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v, want unavailable: it was retried", err)
	}
	h.lose.Store(1)
	if _, err := c.ListAssets(t.Context(),
		&ledgerv1.ListAssetsRequest{}); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("%v, want the stub's answer to the second attempt", err)
	}
	h.lose.Store(1)
	c = newLedgerClient(h, url, connect.WithInterceptors(client.KeyInterceptor()), wire)
	if _, err := c.Transfer(t.Context(), transfer("a", "b", "c", "1")); err != nil {
		t.Error(err)
	}
}

func TestRetriesRespectTheCallersDeadline(t *testing.T) {
	t.Parallel()
	gone := wireError(connect.CodeUnavailable)
	forever := wireError(connect.CodeUnavailable,
		classed(errorsv1.ErrorClass_ERROR_CLASS_SYSTEM, errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY),
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)})
	synctest.Test(t, func(t *testing.T) { // a wait beyond the deadline is not begun
		wire := &failing{errs: []error{forever, forever}}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		start := time.Now()
		_, err := client.New("http://unused", wire.interceptor()).Ledger.Transfer(ctx, transfer("a", "b", "c", "1"))
		if !errors.Is(err, forever) || wire.calls.Load() != 1 || time.Since(start) != 0 {
			t.Errorf("%v after %s and %d calls", err, time.Since(start), wire.calls.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) { // cancellation ends the wait
		wire := &failing{errs: []error{forever, gone}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := client.New("http://unused", wire.interceptor()).Ledger.Transfer(ctx, transfer("a", "b", "c", "1"))
		if connect.CodeOf(err) != connect.CodeCanceled || !errors.Is(err, context.Canceled) ||
			time.Since(start) != time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestTheAttemptTimeoutEndsBeforeTheCallersDeadline(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		slow := &slowOnce{}
		// On a busy machine other attempts may time out too, before or after that one.
		c := newClient(t, serve(t, slow),
			append(opts, client.WithAttemptTimeout(100*time.Millisecond), client.WithRetry(100, 1, 1))...)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ctx, info := client.WithInfo(ctx)
		if _, err := c.Ledger.Transfer(ctx, transfer("a", "b", "c", "1")); err != nil || info.Attempts < 2 ||
			slow.calls.Load() < 2 {
			t.Errorf("%v, %+v, %d calls", err, info, slow.calls.Load())
		}
	})
}

// slowOnce does not answer the first call until its caller gives up.
type slowOnce struct {
	stub
	calls atomic.Int32
}

func (s *slowOnce) Transfer(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	if s.calls.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.stub.Transfer(ctx, r)
}
