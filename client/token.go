package client

import (
	"context"
	"strings"

	"connectrpc.com/connect"
)

// The headers of submit tokens.
const (
	TokenHeader     = "Submit-Token"
	NextTokenHeader = "Submit-Token-Next"
)

// SubmitToken lets one form be submitted once. Client.Idempotency.IssueTokens issues it for the page.
type SubmitToken struct {
	// Token as the form brought it, whatever that is. Empty: the call is refused with ReasonTokenMissing.
	Token string
	// Subject and Purpose that the token must have been issued for, as the server of the page knows them,
	// not as the form says.
	Subject, Purpose string
	// Next asks for the token with which the page can submit again, when this submit goes well:
	// Info.NextToken. It is issued in the same transaction, and a retry is given the same one.
	Next bool
}

type tokenContext struct{}

// WithSubmitToken makes the changing calls made with the context spend a submit token, in the transaction of
// what they do. Use one context for one call and its repeats. The second submit of a form fails with
// ReasonTokenSpent, whose State names what the first one made.
//
// Such calls are not gathered (WithGather): each is an RPC of its own.
func WithSubmitToken(ctx context.Context, t SubmitToken) context.Context {
	return context.WithValue(ctx, tokenContext{}, t)
}

// SubmitTokenInterceptor sends the token of WithSubmitToken along with changing calls, unless they bring the
// header. For clients of any Connect service that reads Submit-Token.
func SubmitTokenInterceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			t, ok := ctx.Value(tokenContext{}).(SubmitToken)
			if h := req.Header(); ok && req.Spec().IsClient && changing(req.Spec()) && len(h[TokenHeader]) == 0 {
				h[TokenHeader] = []string{t.header()}
			}
			return next(ctx, req)
		}
	})
}

// maxTokenBytes is more than any token has: what is longer is none, and stays none when it is cut.
const maxTokenBytes = 255

// header writes the token as a structured field (RFC 9651). It comes from a form, so it may be anything.
func (t SubmitToken) header() string {
	var b strings.Builder
	b.WriteString(structuredText(strings.ToValidUTF8(t.Token[:min(len(t.Token), maxTokenBytes)], "\uFFFD")))
	if t.Subject != "" {
		b.WriteString("; subject=" + structuredText(t.Subject))
	}
	if t.Purpose != "" {
		b.WriteString("; purpose=" + structuredText(t.Purpose))
	}
	if t.Next {
		b.WriteString("; next")
	}
	return b.String()
}
