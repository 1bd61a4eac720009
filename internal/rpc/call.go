package rpc

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/token"
)

// call holds the identity and the header of a call. It is immutable: a handler that needs another one, such as for a
// retry without the key, makes a copy.
type call struct {
	gate      *Gate
	procedure string
	start     time.Time
	request   *request // nil: unbounded, in tests
	intake    *intake  // of the request; nil: it is small, or a stream
	identity  access.Identity
	header    http.Header // of the request, with its API key
	requestID string
	json      bool          // the request's encoding
	key       string        // Idempotency-Key, or empty
	keyLife   time.Duration // from the header; 0: not set
	token     *token.Spend  // Submit-Token, or nil
	spent     string        // token of the first SpendToken in an Execute, or empty
	claim     *claim.Params // Claim-Key, or nil
	approver  string        // principal that approved the call, which runs in the name of identity; empty: no approval
	submits   bool          // the call itself submits the payment or refund that it creates to the gateway
	sample    bool          // the request is one of an Execute whose references are not filled in yet
	numbers   *numbers      // of an operation of an Execute; nil: each decoding makes numbers of its own
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// within returns the context of the call, whose reads see the rows of its tenant only.
func (c *call) within(ctx context.Context) context.Context {
	return context.WithValue(pg.ForTenants(ctx, c.identity.Tenant), callKey{}, c)
}

func (c *call) caller() commit.Caller {
	return commit.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, KeyID: c.identity.KeyID,
		RequestID: c.requestID, ApprovedBy: c.approver}
}

// guarded reports whether the header has a submit token or a claim.
func (c *call) guarded() bool { return c.token != nil || c.claim != nil }

// tokenHash identifies the submit token that the call spends, by its header or by an operation. Nil: none.
func (c *call) tokenHash() []byte {
	spent := c.spent
	if c.token != nil {
		spent = c.token.Token
	}
	if spent == "" {
		return nil
	}
	return token.Hash(spent)
}

// withoutGuards returns a copy for a further submission of this call: its token and claim have been accepted, and
// its policies are met or its request was approved.
func (c *call) withoutGuards() *call {
	later := *c
	later.token, later.claim, later.identity.Policies = nil, nil, nil
	return &later
}

// withoutKey returns a copy without request key, token and claim.
func (c *call) withoutKey() *call {
	later := c.withoutGuards()
	later.key = ""
	return later
}

// requireApproval returns fault APPROVAL_REQUIRED if a policy of the tenant requires another principal's approval for
// the request, or for a request inside it. An Execute checks each of its operations when that runs.
func (c *call) requireApproval(m proto.Message) error {
	if !c.identity.Policies.RequireApprovals() {
		return nil
	}
	return approvalOf(c.identity.Policies, m.ProtoReflect())
}

// withoutPolicies returns a copy to which no policy of the tenant applies, so it requires no approval.
func (c *call) withoutPolicies() *call {
	free := *c
	free.identity.Policies = nil
	return &free
}

// rejectKeyAndGuards is for calls whose response is never recorded. It refuses a key, because a repeat would not
// get the same response, and guards, because there is no commit that could include them.
func (c *call) rejectKeyAndGuards() error {
	switch {
	case c.key != "":
		return keyUnsupported.New("%s records no answer, so it accepts no %s: send it without one",
			c.procedure, KeyHeader)
	case c.guarded():
		return fault.FieldInvalid.New("%s commits nothing that a submit token or a claim could guard: "+
			"send it without Submit-Token and Claim-Key",
			c.procedure)
	}
	return nil
}

// noStore forbids caches to store the response, because it holds a secret.
func noStore(ctx context.Context) {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		info.ResponseHeader().Set("Cache-Control", "no-store")
	}
}

// KeyHeader carries the request key. ReplayedHeader marks the response to a repeat.
const (
	KeyHeader      = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed"
)

var keyUnsupported = fault.Register(fault.Reason{Name: "IDEMPOTENCY_KEY_UNSUPPORTED", Class: fault.BadRequest,
	Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "The call records no answer, so it accepts no Idempotency-Key: send it without one."})

// header returns the value of a header that may be sent once.
func header(h http.Header, name string) (value string, sent bool, err error) {
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, fault.FieldInvalid.New("header %s was sent %d times: send it once", name, len(values)).
			WithField(name, "must be sent once")
	}
}

// readKey reads the header Idempotency-Key.
func readKey(h http.Header) (key string, life time.Duration, err error) {
	value, sent, err := header(h, KeyHeader)
	if err != nil {
		return "", 0, commit.KeyInvalid.New("%s", fault.Of(err).Message).WithField(KeyHeader, "must be sent once")
	}
	if !sent {
		return "", 0, nil
	}
	if key, life, err = parseKeyHeader(value); err != nil {
		f := fault.Of(err)
		return "", 0, f.WithField(KeyHeader, f.Message)
	}
	return key, life, nil
}

// ParseKey parses an Idempotency-Key: 1 to 255 printable ASCII characters, bare, or quoted as a structured field
// string of RFC 9651 (with \" and \\ inside). The quotes are not part of the key.
func ParseKey(s string) (string, error) {
	key, life, err := parseKeyHeader(s)
	if err == nil && life != 0 {
		err = commit.KeyInvalid.New("idempotency_key takes no life parameter: only the header Idempotency-Key does")
	}
	if err != nil {
		f := fault.Of(err)
		return "", f.WithField("idempotency_key", f.Message)
	}
	return key, nil
}

// parseKeyHeader parses the header: a key as in ParseKey. A quoted key may have its life in seconds as a parameter of
// the structured field: "abc";life=172800.
func parseKeyHeader(s string) (key string, life time.Duration, err error) {
	switch key = s; {
	case strings.HasPrefix(s, `"`):
		if key, life, err = parseQuotedKey(s); err != nil {
			return "", 0, err
		}
	case strings.Contains(strings.ReplaceAll(s, " ", ""), ";life="):
		return "", 0, commit.KeyInvalid.New(`an Idempotency-Key with a life must be quoted: "KEY";life=172800`)
	case strings.TrimSpace(s) != s: // of an item: HTTP trims headers
		return "", 0, commit.KeyInvalid.New("the Idempotency-Key must not begin or end with a space, " +
			"unless it is quoted")
	}
	if len(key) < 1 || len(key) > 255 || !printableASCII(key) {
		return "", 0, commit.KeyInvalid.New("the Idempotency-Key must be 1 to 255 printable ASCII characters")
	}
	return key, life, nil
}

func parseQuotedKey(s string) (key string, life time.Duration, err error) {
	f, err := parseField(s)
	if err != nil {
		return "", 0, commit.KeyInvalid.New(`a quoted Idempotency-Key must be "KEY" or "KEY";life=SECONDS: ` +
			`is the second quote missing?`)
	}
	for name, value := range f.parameters() {
		seconds, whole := value.(int64)
		if life, _ = secondsOf(value); name != "life" || !whole || life < access.MinKeyLife ||
			life > access.MaxKeyLife || seconds == 0 {
			return "", 0, commit.KeyInvalid.New("a quoted Idempotency-Key may only be followed by ;life=N, "+
				"where N is %.0f to %.0f seconds",
				access.MinKeyLife.Seconds(), access.MaxKeyLife.Seconds())
		}
	}
	key, _ = f.text()
	return key, life, nil
}

// TokenHeader carries the submit token that a mutation spends. NextTokenHeader is set on the response: the next token.
const (
	TokenHeader     = "Submit-Token"
	NextTokenHeader = "Submit-Token-Next"
)

// readToken reads a header such as
//
//	Submit-Token: st_0123456789abcdefghjkmnpqrstvwxyz; subject="user:1001"; purpose="order"; next
func readToken(spec connect.Spec, h http.Header) (*token.Spend, error) {
	value, sent, err := header(h, TokenHeader)
	if err != nil || !sent {
		return nil, err
	}
	problem := "is for unary mutations only"
	s := &token.Spend{}
	if spec.IdempotencyLevel != connect.IdempotencyNoSideEffects && spec.StreamType == connect.StreamTypeUnary {
		problem = parseToken(s, value)
	}
	if problem != "" {
		return nil, fault.InvalidField(TokenHeader, "%s", problem)
	}
	return s, nil
}

func parseToken(s *token.Spend, value string) (problem string) {
	text := strings.Trim(value, " \t")
	if text == "" || text[0] == ';' {
		text = `""` + text // its guard refuses a missing token, after the lookup of the request key
	}
	f, err := parseField(text)
	if err != nil {
		return err.Error()
	}
	ok := false
	if s.Token, ok = f.text(); !ok {
		return "must begin with a token"
	}
	texts := map[string]*string{"subject": &s.Subject, "purpose": &s.Purpose}
	for name, value := range f.parameters() {
		problem := ""
		switch name {
		case "subject", "purpose":
			if *texts[name], ok = textOf(value); ok {
				problem = badLabel(*texts[name])
			}
		case "next":
			s.Next, ok = value.(bool)
		default:
			ok = false
		}
		if !ok {
			problem = "is unknown or has a wrong value: use subject and purpose with text, and next without a value"
		}
		if problem != "" {
			return "the parameter " + name + " " + problem
		}
	}
	return ""
}

// ClaimHeader claims a key for a mutation. ClaimCountHeader is set on the response: the number of the use, from 1.
const (
	ClaimHeader      = "Claim-Key"
	ClaimCountHeader = "Claim-Count"
)

// readClaim reads a header such as
//
//	Claim-Key: "k-1"; scope=page; owner="user:1"; life=600; first-only
func readClaim(spec connect.Spec, h http.Header) (*claim.Params, error) {
	value, sent, err := header(h, ClaimHeader)
	if err != nil || !sent {
		return nil, err
	}
	if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects {
		return nil, fault.FieldInvalid.New("header %s is for mutations only", ClaimHeader)
	}
	p, err := parseClaim(value)
	return &p, err
}

func parseClaim(header string) (claim.Params, error) {
	var d decoder
	f, err := parseField(header)
	if err != nil {
		d.bad(ClaimHeader, err.Error())
		return claim.Params{}, d.err()
	}
	r := &idempotencyv1.ClaimKeyRequest{}
	if r.Key, _ = f.text(); r.Key == "" {
		d.bad(ClaimHeader, `must begin with the key in double quotes, such as "order-1001"`)
	}
	texts := map[string]*string{"scope": &r.Scope, "owner": &r.Owner, "result": &r.Result}
	for name, value := range f.parameters() {
		ok := true
		switch name {
		case "scope", "owner", "result":
			*texts[name], _ = textOf(value)
			ok = *texts[name] != ""
		case "life":
			var life time.Duration
			life, ok = secondsOf(value)
			r.Life = durationpb.New(life)
		case "first-only":
			r.FirstOnly, ok = value.(bool)
		default:
			d.bad(ClaimHeader, fmt.Sprintf("has an unknown parameter, %q: use scope, owner, result, life or first-only",
				name))
		}
		if !ok {
			d.bad(ClaimHeader, fmt.Sprintf("parameter %s has a wrong value: scope, owner and result take text, "+
				"life takes seconds, first-only takes nothing", name))
		}
	}
	if d.err() == nil {
		if err := check(r); err != nil {
			d.addProblems(ClaimHeader+".", err)
		}
	}
	return d.claim(ClaimHeader+".", r), d.err()
}
