package client

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Headers of claims: ClaimHeader sends a claim with a call, ClaimCountHeader returns which use of the key it
// was.
const (
	ClaimHeader      = "Claim-Key"
	ClaimCountHeader = "Claim-Count"
)

// Claim is a key of which the first use wins, such as the id of a page that contains a form.
type Claim struct {
	// Key is 1 to 1,024 bytes without control characters.
	Key string
	// Scope is the kind of key. Empty: "page".
	Scope string
	// Owner is the claim's owner; may be empty.
	Owner string
	// Life counts from the first use. 0: 10 minutes in scope "page", 5 in "purchase", otherwise forever.
	Life time.Duration
	// FirstOnly refuses all uses but the first with ReasonKeyClaimed. A key without a life always does.
	FirstOnly bool
	// Result names what the call creates. Empty: the server uses the biz_no of the created object.
	Result string
}

type claimContext struct{}

// WithClaim adds a claim to the changing calls made with the context. The key is used in the call's
// transaction. The use is kept if a business rule refuses the call, and undone if the call fails otherwise. A
// retry under the same Idempotency-Key does not count again. Info has the count.
func WithClaim(ctx context.Context, c Claim) context.Context {
	return context.WithValue(ctx, claimContext{}, c)
}

// ClaimInterceptor sends the claim of WithClaim with every changing call. It is for generated clients.
func ClaimInterceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			c, ok := ctx.Value(claimContext{}).(Claim)
			if h := req.Header(); ok && req.Spec().IsClient && changing(req.Spec()) && len(h[ClaimHeader]) == 0 {
				h[ClaimHeader] = []string{c.header()}
			}
			return next(ctx, req)
		}
	})
}

// header is the claim as a structured field.
func (c *Claim) header() string {
	var b strings.Builder
	b.WriteString(structuredText(c.Key))
	for _, p := range [...][2]string{{"scope", c.Scope}, {"owner", c.Owner}, {"result", c.Result}} {
		if p[1] != "" {
			b.WriteString("; " + p[0] + "=" + structuredText(p[1]))
		}
	}
	if c.Life > 0 {
		ms := max(c.Life.Milliseconds(), 1)
		b.WriteString(fmt.Sprintf("; life=%d.%03d", ms/1000, ms%1000))
	}
	if c.FirstOnly {
		b.WriteString("; first-only")
	}
	return b.String()
}

// structuredText encodes a text as a structured-field string or, if not all of it is printable ASCII, as a
// display string (RFC 9651).
func structuredText(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return displayText(s)
		}
	}
	return `"` + keyEscapes.Replace(s) + `"`
}

func displayText(s string) string {
	var b strings.Builder
	b.WriteString(`%"`)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' || c == '"' {
			fmt.Fprintf(&b, "%%%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func claimCount(header string) int64 {
	n, _ := strconv.ParseInt(header, 10, 64) // 0 if the header is absent or malformed
	return n
}
