package once

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
)

// Outcome is how an answer is recorded.
type Outcome int

const (
	// Done: recorded and replayed.
	Done Outcome = iota + 1
	// Refused: a business refusal, recorded and replayed, so that a repeat cannot succeed later.
	Refused
	// Free: not recorded; the same request may run again immediately.
	Free
	// Forget: not recorded, and the key may be used with other content: the request was invalid.
	Forget
	// Park: recorded as unknown; no attempt runs until a person or program resolves it.
	Park
)

// DefaultRule is the default outcome of HTTP answers; see the package documentation.
func DefaultRule(status int, _ http.Header) Outcome {
	switch {
	case status < 400:
		return Done
	case status >= 500:
		return Free
	}
	switch status {
	case http.StatusPaymentRequired, http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity:
		return Refused
	case http.StatusRequestTimeout, http.StatusPreconditionFailed, http.StatusLocked, http.StatusFailedDependency,
		http.StatusTooEarly,
		http.StatusTooManyRequests:
		return Free
	}
	return Forget
}

// DefaultConnectRule is the default outcome of Connect errors; see the package documentation.
func DefaultConnectRule(err error) Outcome {
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists, connect.CodeOutOfRange:
		return Refused
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeUnauthenticated,
		connect.CodeUnimplemented:
		return Forget
	}
	return Free
}

// neverKept are headers that are never recorded: they belong to one answer or one connection.
var neverKept = []string{"Set-Cookie", "Set-Cookie2", "Date", "Connection", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "X-Request-Id",
	"Idempotency-Replayed", "Idempotency-Body"}

// kept reports whether a header is recorded.
func (s *settings) kept(name string) bool {
	name = http.CanonicalHeaderKey(name)
	return !slices.Contains(neverKept, name) && !strings.HasPrefix(name, http.TrailerPrefix) && s.keep(name)
}
