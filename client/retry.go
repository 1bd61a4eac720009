package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"connectrpc.com/connect"
)

// RetryPolicy configures retries. Zero fields take the defaults.
type RetryPolicy struct {
	Attempts int           // total, including the first; default 3, 1: no retries
	Base     time.Duration // maximum wait before the second attempt, doubling from there; default 100 ms
	Max      time.Duration // maximum wait before any attempt; default 1 s
	// AttemptTimeout bounds each attempt, so that a dead connection does not consume the caller's whole
	// deadline; default: only the caller's deadline.
	AttemptTimeout time.Duration
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.Attempts <= 0 {
		p.Attempts = 3
	}
	if p.Base <= 0 {
		p.Base = 100 * time.Millisecond
	}
	if p.Max <= 0 {
		p.Max = time.Second
	}
	return p
}

// RetryInterceptor retries calls after transient errors:
//
//   - errors of class system, and conflicts whose next step is StepRetrySameKey;
//   - errors without a class that occurred in transit: code unavailable, a refused or broken connection, an
//     attempt timeout before the caller's deadline.
//
// All other errors are final, as are all errors of streams and of changing calls without an Idempotency-Key.
// Waits are random between zero and the bound (full jitter), in addition to the server's RetryInfo. If a wait
// would outlast the caller's deadline, the last error is returned immediately. It works for clients of any
// Connect service, after KeyInterceptor.
func RetryInterceptor(p RetryPolicy) connect.Interceptor {
	p = p.withDefaults()
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if !req.Spec().IsClient || !repeatable(req) {
				return next(ctx, req)
			}
			return p.run(ctx, req, next)
		}
	})
}

func (p RetryPolicy) run(ctx context.Context, req connect.AnyRequest,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	info := infoOf(ctx)
	for n := 1; ; n++ {
		if info != nil {
			info.Attempts = n
		}
		res, err := p.attempt(ctx, req, next)
		if err == nil || n >= p.Attempts || ctx.Err() != nil {
			return res, err
		}
		after, again := retryable(err)
		if !again {
			return nil, err
		}
		if wait := after + p.jitter(n); !fits(ctx, wait) {
			return nil, err
		} else if !pause(ctx, wait) {
			return nil, ended(ctx, fmt.Errorf("%w while waiting to send again after: %v", ctx.Err(), err))
		}
	}
}

// attempt copies the headers for the transport: an HTTP/2 transport may still read those of a timed-out attempt
// while the next attempt writes its own.
func (p RetryPolicy) attempt(ctx context.Context, req connect.AnyRequest,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	if p.AttemptTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.AttemptTimeout)
		defer cancel() // the unary answer has been read completely
	}
	return next(ctx, &attempt{AnyRequest: req})
}

type attempt struct {
	connect.AnyRequest
	header http.Header
}

func (a *attempt) Header() http.Header {
	if a.header == nil {
		a.header = a.AnyRequest.Header().Clone()
	}
	return a.header
}

// headerOf returns a request's headers, avoiding a copy where an attempt needs none.
func headerOf(req connect.AnyRequest) http.Header {
	if a, ok := req.(*attempt); ok {
		return a.AnyRequest.Header()
	}
	return req.Header()
}

// jitter is the random wait after attempt n.
func (p RetryPolicy) jitter(n int) time.Duration {
	bound := p.Max
	if n-1 < 32 && p.Base < p.Max>>(n-1) {
		bound = p.Base << (n - 1)
	}
	return rand.N(bound + 1)
}

// retryable reports whether an error allows another attempt with the same key, and the server's requested
// delay.
func retryable(err error) (after time.Duration, again bool) {
	e, ok := AsError(err)
	if !ok {
		return 0, false
	}
	switch e.Class {
	case ClassSystem:
		return e.RetryAfter, true
	case ClassConflict:
		return e.RetryAfter, e.NextStep == StepRetrySameKey
	case "":
		return e.RetryAfter, lost(e)
	}
	return 0, false
}

// lost reports whether an error without a class means that the request or its answer was lost in transit.
func lost(e *Error) bool {
	switch e.Code {
	case connect.CodeUnavailable:
		return true
	case connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true // the attempt timed out, but the caller still waits
	}
	var network net.Error
	return errors.As(e.cause, &network) || errors.Is(e.cause, io.ErrUnexpectedEOF) ||
		errors.Is(e.cause, syscall.ECONNRESET) || errors.Is(e.cause, net.ErrClosed)
}

func fits(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > wait
}

// pause waits, and returns false if ctx ended first.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ended is the error of a call whose context has ended, with Connect's code.
func ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeCanceled, err)
}
