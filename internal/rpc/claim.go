package rpc

import (
	"context"
	"fmt"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// ClaimKey uses a key of which the first use wins.
func (s *Idempotency) ClaimKey(ctx context.Context,
	r *idempotencyv1.ClaimKeyRequest) (*idempotencyv1.ClaimKeyResponse, error) {
	return run(ctx, s.Mutations, claimKeyCall, r)
}

var claimKeyCall = register("idempotency.claim_key",
	func(c *call, d *decoder, r *idempotencyv1.ClaimKeyRequest) mutation[*idempotencyv1.ClaimKeyResponse] {
		p := d.claim("", r)
		return mutation[*idempotencyv1.ClaimKeyResponse]{dry: r.GetDryRun(),
			command: flow.Claim(&claim.Command{Caller: c.caller(), Params: p}),
			render: func(answer any, _ bool) (*idempotencyv1.ClaimKeyResponse, error) {
				u := answer.(claim.Use)
				return &idempotencyv1.ClaimKeyResponse{Count: u.Count, Existed: u.Existed,
					Claim: renderClaim(p.Scope, p.Key, &u.First)}, nil
			}}
	})

// ClaimKeys uses many keys, each for itself.
func (s *Idempotency) ClaimKeys(ctx context.Context,
	r *idempotencyv1.ClaimKeysRequest) (*idempotencyv1.ClaimKeysResponse, error) {
	return run(ctx, s.Mutations, claimKeysCall, r)
}

var claimKeysCall = register("idempotency.claim_keys",
	func(c *call, d *decoder, r *idempotencyv1.ClaimKeysRequest) mutation[*idempotencyv1.ClaimKeysResponse] {
		cmd := &claim.EachCommand{Caller: c.caller(), Params: make([]claim.Params, len(r.GetClaims()))}
		for i, x := range r.GetClaims() {
			at := fmt.Sprintf("claims[%d].", i)
			if cmd.Params[i] = d.claim(at, x); x.GetDryRun() {
				d.bad(at+"dry_run", "must not be set on a claim of a list: set dry_run of the call")
			}
		}
		return mutation[*idempotencyv1.ClaimKeysResponse]{dry: r.GetDryRun(), rows: len(cmd.Params),
			command: flow.Claim(cmd),
			render: func(answer any, _ bool) (*idempotencyv1.ClaimKeysResponse, error) {
				return &idempotencyv1.ClaimKeysResponse{Results: renderClaims(cmd.Params, answer.([]claim.Result))}, nil
			}}
	})

// GetClaim shows a claim.
func (s *Idempotency) GetClaim(ctx context.Context,
	r *idempotencyv1.GetClaimRequest) (*idempotencyv1.GetClaimResponse, error) {
	var d decoder
	scope, key := d.claimed("", r)
	if err := d.err(); err != nil {
		return nil, err
	}
	x, err := s.Claims.Claim(ctx, claim.Key{Tenant: callOf(ctx).identity.Tenant, Scope: scope, Key: key})
	if err != nil {
		return nil, err
	}
	return &idempotencyv1.GetClaimResponse{Claim: renderClaim(scope, key, &x)}, nil
}

// DropClaim frees a key.
func (s *Idempotency) DropClaim(ctx context.Context,
	r *idempotencyv1.DropClaimRequest) (*idempotencyv1.DropClaimResponse, error) {
	return run(ctx, s.Mutations, dropClaimCall, r)
}

var dropClaimCall = register("idempotency.drop_claim",
	func(c *call, d *decoder, r *idempotencyv1.DropClaimRequest) mutation[*idempotencyv1.DropClaimResponse] {
		p := claim.DropParams{Fence: r.GetFence(), Owner: r.GetOwner()}
		if p.Scope, p.Key = d.claimed("", r); p.Fence == 0 && p.Owner == "" {
			d.bad("fence", "must be set, or owner")
		}
		return mutation[*idempotencyv1.DropClaimResponse]{dry: r.GetDryRun(),
			command: flow.Claim(&claim.DropCommand{Caller: c.caller(), Params: p}),
			render: func(answer any, _ bool) (*idempotencyv1.DropClaimResponse, error) {
				return &idempotencyv1.DropClaimResponse{Dropped: answer.(bool)}, nil
			}}
	})

// claim reads one use of a key.
func (d *decoder) claim(path string, r *idempotencyv1.ClaimKeyRequest) claim.Params {
	p := claim.Params{Parts: r.GetParts(), Owner: d.printable(path+"owner", r.GetOwner()), FirstOnly: r.GetFirstOnly(),
		Result: d.printable(path+"result", r.GetResult())}
	p.Scope, p.Key = d.claimed(path, r)
	p.Life = claim.DefaultLife(p.Scope)
	if r.GetLife() != nil {
		p.Life = r.GetLife().AsDuration().Truncate(time.Millisecond)
	}
	return p
}

// claimed reads which key is meant.
func (d *decoder) claimed(path string, r interface {
	GetScope() string
	GetKey() string
	GetParts() []string
}) (scope, key string) {
	if scope = r.GetScope(); scope == "" {
		scope = claim.PageScope
	}
	if parts := r.GetParts(); len(parts) > 0 {
		for i, part := range parts {
			d.printable(fmt.Sprintf("%sparts[%d]", path, i), part)
		}
		if r.GetKey() != "" {
			d.bad(path+"parts", "must not be set together with key")
		}
		return scope, claim.Compose(parts)
	}
	if key = d.printable(path+"key", r.GetKey()); key == "" {
		d.bad(path+"key", "must be set, or parts")
	}
	return scope, key
}

// printable checks that a text has no control characters, nor ends of lines.
func (d *decoder) printable(path, s string) string {
	for _, r := range s {
		if unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar {
			d.bad(path, "must not contain control characters, line separators, or U+FFFD")
			break
		}
	}
	return s
}

func renderClaim(scope, key string, c *claim.Claim) *idempotencyv1.Claim {
	return &idempotencyv1.Claim{Scope: scope, Key: key, Parts: c.Parts, Owner: c.Owner, Result: c.Result, Uses: c.Uses,
		Fence:     c.ID,
		Principal: c.Principal, RequestId: c.RequestID, CreateTime: timestamp(c.ClaimedAt),
		ExpireTime: timestamp(c.ExpiresAt)}
}

func renderClaims(params []claim.Params, results []claim.Result) []*idempotencyv1.ClaimKeysResult {
	rendered := make([]*idempotencyv1.ClaimKeysResult, len(results))
	for i := range results {
		x := &results[i]
		r := &idempotencyv1.ClaimKeysResult{Count: x.Count, Existed: x.Existed}
		switch {
		case x.Fault != nil:
			r.Reason = x.Fault.Reason.Name
			fallthrough
		case x.Existed:
			if x.First.ID != 0 {
				r.Claim = renderClaim(params[i].Scope, params[i].Key, &x.First)
			}
		default:
			r.Claim = &idempotencyv1.Claim{Fence: x.First.ID, RequestId: x.First.RequestID,
				CreateTime: timestamp(x.First.ClaimedAt),
				ExpireTime: timestamp(x.First.ExpiresAt)}
		}
		rendered[i] = r
	}
	return rendered
}

// The header that puts a claim before a changing call, and the one that tells which use of the key it was.
const (
	ClaimHeader      = "Claim-Key"
	ClaimCountHeader = "Claim-Count"
)

// readClaim reads the header, such as: Claim-Key: "k-1"; scope=page; owner="user:1"; life=600; first-only
func readClaim(header string) (claim.Params, error) {
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
	for name, value := range f.parameters() {
		ok := true
		switch name {
		case "scope":
			r.Scope, _ = textOf(value)
			ok = r.Scope != ""
		case "owner":
			r.Owner, _ = textOf(value)
			ok = r.Owner != ""
		case "result":
			r.Result, _ = textOf(value)
			ok = r.Result != ""
		case "life":
			var life time.Duration
			life, ok = secondsOf(value)
			r.Life = durationpb.New(life)
		case "first-only":
			r.FirstOnly, ok = value.(bool)
		default:
			d.bad(ClaimHeader, fmt.Sprintf("has an unknown parameter, %s: use scope, owner, result, life or first-only",
				name))
		}
		if !ok {
			d.bad(ClaimHeader, fmt.Sprintf("parameter %s has a wrong value: scope, owner and result take text, life takes seconds, first-only takes nothing", name))
		}
	}
	if d.err() == nil {
		if err := check(r); err != nil {
			d.take(ClaimHeader+".", err)
		}
	}
	return d.claim(ClaimHeader+".", r), d.err()
}
