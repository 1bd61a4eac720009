package once

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
)

// Outcome is what becomes of an answer.
type Outcome int

// The outcomes.
const (
	// Done: recorded; repeats get it.
	Done Outcome = iota + 1
	// Refused: a business "no", recorded likewise, so that a repeat does not turn it into "yes".
	Refused
	// Free: not recorded; the same request may run again at once.
	Free
	// Forget: not recorded, and the key may come with other content: the request was bad.
	Forget
	// Park: recorded as unknown; nobody runs the work until a person or a program settles it.
	Park
)

// DefaultRule is what becomes of HTTP answers: see the package's text.
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

// DefaultConnectRule is what becomes of Connect errors: see the package's text.
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

// Headers that are never recorded: they belong to one answer, or to one connection.
var neverKept = []string{"Set-Cookie", "Set-Cookie2", "Date", "Connection", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "X-Request-Id",
	"Idempotency-Replayed", "Idempotency-Body"}

// kept tells whether a header is recorded.
func (s *settings) kept(name string) bool {
	name = http.CanonicalHeaderKey(name)
	return !slices.Contains(neverKept, name) && !strings.HasPrefix(name, http.TrailerPrefix) && s.keep(name)
}
