package client

import (
	"context"
	"strings"

	"connectrpc.com/connect"
)

// Headers of submit tokens.
const (
	TokenHeader     = "Submit-Token"
	NextTokenHeader = "Submit-Token-Next"
)

// SubmitToken lets one form be submitted once. Client.Idempotency.IssueTokens issues tokens for pages.
type SubmitToken struct {
	// Token is the form's value, unvalidated. Empty: the call is refused with ReasonTokenMissing.
	Token string
	// Subject and Purpose are what the token must have been issued for. Take them from the server's own state,
	// not from the form.
	Subject, Purpose string
	// Next requests the token for the page's next submission, returned in Info.NextToken on success. It is
	// issued in the same transaction, and a retry gets the same token.
	Next bool
}

type tokenContext struct{}

// WithSubmitToken makes the changing calls made with the context spend a submit token in their transaction. Use
// a context for one call and its retries. The second submit of a form fails with ReasonTokenSpent, whose Metadata
// names the first one's result.
//
// Such calls are not gathered (WithGather): each is an RPC of its own.
func WithSubmitToken(ctx context.Context, t SubmitToken) context.Context {
	return context.WithValue(ctx, tokenContext{}, t)
}

// SubmitTokenInterceptor sends the token of WithSubmitToken with changing calls, unless they have the header.
// It works for clients of any Connect service that reads Submit-Token.
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

// maxTokenBytes exceeds the length of every token: a longer text is invalid, and stays invalid when truncated.
const maxTokenBytes = 255

// header encodes the token as a structured field (RFC 9651). It comes from a form, so it may contain anything.
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
