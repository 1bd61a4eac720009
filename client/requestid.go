package client

import (
	"context"
	"crypto/rand"
	"errors"

	"connectrpc.com/connect"
)

// RequestIDHeader identifies a request in every log line, row and answer: 1 to 128 printable ASCII characters
// without spaces.
const RequestIDHeader = "X-Request-Id"

type requestIDContext struct{}

// RequestID is the id of the call that a handler is answering, or "". RequestIDInterceptor sets it; without the
// interceptor it is the caller's header.
func RequestID(ctx context.Context) string {
	if id, ok := ctx.Value(requestIDContext{}).(string); ok {
		return id
	}
	if in, ok := connect.CallInfoForHandlerContext(ctx); ok {
		if id := in.RequestHeader().Get(RequestIDHeader); goodRequestID(id) {
			return id
		}
	}
	return ""
}

// RequestIDInterceptor propagates X-Request-ID through a service. For handlers it takes the caller's id, or
// generates one, and adds it to the context and the answer. For clients it sends the id of the call being
// answered, or generates one. It works with any Connect service.
func RequestIDInterceptor() connect.Interceptor { return requestIDs{RequestID} }

// requestIDs uses own for the ids of outgoing calls.
type requestIDs struct{ own func(context.Context) string }

func (r requestIDs) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		h := req.Header()
		if req.Spec().IsClient {
			if len(h[RequestIDHeader]) == 0 {
				h[RequestIDHeader] = []string{r.id(ctx)}
			}
			return next(ctx, req)
		}
		ctx, id := incoming(ctx, h.Get(RequestIDHeader))
		res, err := next(ctx, req)
		if err == nil {
			res.Header().Set(RequestIDHeader, id)
			return res, nil
		}
		if e := (*connect.Error)(nil); errors.As(err, &e) {
			e.Meta().Set(RequestIDHeader, id)
		}
		return nil, err
	}
}

func (r requestIDs) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if len(conn.RequestHeader()[RequestIDHeader]) == 0 {
			conn.RequestHeader()[RequestIDHeader] = []string{r.id(ctx)}
		}
		return conn
	}
}

func (r requestIDs) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, id := incoming(ctx, conn.RequestHeader().Get(RequestIDHeader))
		conn.ResponseHeader().Set(RequestIDHeader, id)
		return next(ctx, conn)
	}
}

func (r requestIDs) id(ctx context.Context) string {
	if id := r.own(ctx); goodRequestID(id) {
		return id
	}
	return newRequestID()
}

func incoming(ctx context.Context, id string) (context.Context, string) {
	if !goodRequestID(id) {
		id = newRequestID()
	}
	return context.WithValue(ctx, requestIDContext{}, id), id
}

// goodRequestID is the server's rule. An invalid id would be replaced there, or could not be sent at all.
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

func newRequestID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return keyText.EncodeToString(b[:])
}
