package client

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// The header that puts a claim before a call, and the one that tells which use of the key it was.
const (
	ClaimHeader      = "Claim-Key"
	ClaimCountHeader = "Claim-Count"
)

// Claim is a key of which the first use wins, such as the id of a page from which a form is submitted.
type Claim struct {
	// Key is 1 to 1,024 bytes without control characters.
	Key string
	// Scope is the kind of key. Empty: "page".
	Scope string
	// Owner is whose the key is to be; may be empty.
	Owner string
	// Life is measured from the first use. 0: 10 minutes in the scope "page", 5 in "purchase", else for ever.
	Life time.Duration
	// FirstOnly refuses every use but the first with ReasonKeyClaimed. So does every key without a life.
	FirstOnly bool
	// Result names what the call makes. Empty: the server takes the biz_no of what it made.
	Result string
}

type claimContext struct{}

// WithClaim puts a claim before the changing calls made with the context: it is used in the transaction of
// the call. It stays used when the call is refused by a business rule, and is given back when the call fails
// otherwise. A retry under the same Idempotency-Key does not count again. Info tells the count.
func WithClaim(ctx context.Context, c Claim) context.Context {
	return context.WithValue(ctx, claimContext{}, c)
}

// ClaimInterceptor sends the claim of WithClaim with every changing call. For generated clients of one's own.
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

// structuredText is a text as a string of a structured field, or, when not all of it is printable ASCII, as a
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
	n, _ := strconv.ParseInt(header, 10, 64) // what is none is 0
	return n
}
