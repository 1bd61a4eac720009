package rpc

import (
	"cmp"
	"context"
	"fmt"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/flow"
)

func (s *Idempotency) ClaimKey(ctx context.Context, r *pb.ClaimKeyRequest) (*pb.ClaimKeyResponse, error) {
	return run(ctx, s.Mutations, claimKeyOperation, r)
}

var claimKeyOperation = register("idempotency.claim_key",
	func(c *call, d *decoder, r *pb.ClaimKeyRequest) mutation[*pb.ClaimKeyResponse] {
		p := d.claim("", r)
		return newMutation(flow.Claim(&claim.Command{Caller: c.caller(), Params: p}), 1,
			func(u claim.Use, _ bool) *pb.ClaimKeyResponse {
				return &pb.ClaimKeyResponse{Count: u.Count, Existed: u.Existed,
					Claim: renderClaim(p.Scope, p.Key, &u.First)}
			})
	})

func (s *Idempotency) ClaimKeys(ctx context.Context, r *pb.ClaimKeysRequest) (*pb.ClaimKeysResponse, error) {
	return run(ctx, s.Mutations, claimKeysOperation, r)
}

var claimKeysOperation = register("idempotency.claim_keys",
	func(c *call, d *decoder, r *pb.ClaimKeysRequest) mutation[*pb.ClaimKeysResponse] {
		cmd := &claim.EachCommand{Caller: c.caller(), Params: make([]claim.Params, len(r.GetClaims()))}
		for i, x := range r.GetClaims() {
			at := fmt.Sprintf("claims[%d].", i)
			if cmd.Params[i] = d.claim(at, x); x.GetDryRun() {
				d.bad(at+"dry_run", "must not be set on a claim of a list: set dry_run of the call")
			}
		}
		return newMutation(flow.Claim(cmd), len(cmd.Params),
			func(results []claim.Result, _ bool) *pb.ClaimKeysResponse {
				return &pb.ClaimKeysResponse{Results: renderClaims(cmd.Params, results)}
			})
	})

func (s *Idempotency) GetClaim(ctx context.Context, r *pb.GetClaimRequest) (*pb.GetClaimResponse, error) {
	var d decoder
	scope, key := d.claimed("", r)
	if err := d.err(); err != nil {
		return nil, err
	}
	x, err := s.Claims.Claim(ctx, claim.Key{Tenant: callOf(ctx).identity.Tenant, Scope: scope, Key: key})
	return &pb.GetClaimResponse{Claim: renderClaim(scope, key, &x)}, err
}

func (s *Idempotency) DropClaim(ctx context.Context, r *pb.DropClaimRequest) (*pb.DropClaimResponse, error) {
	return run(ctx, s.Mutations, dropClaimOperation, r)
}

var dropClaimOperation = register("idempotency.drop_claim",
	func(c *call, d *decoder, r *pb.DropClaimRequest) mutation[*pb.DropClaimResponse] {
		p := claim.DropParams{Fence: r.GetFence(), Owner: r.GetOwner()}
		if p.Scope, p.Key = d.claimed("", r); p.Fence == 0 && p.Owner == "" {
			d.bad("fence", "must be set, or owner")
		}
		d.callersScope("", p.Scope)
		return newMutation(flow.Claim(&claim.DropCommand{Caller: c.caller(), Params: p}), 1,
			func(dropped, _ bool) *pb.DropClaimResponse { return &pb.DropClaimResponse{Dropped: dropped} })
	})

// claim decodes one use of a key.
func (d *decoder) claim(path string, r *pb.ClaimKeyRequest) claim.Params {
	p := claim.Params{Parts: r.GetParts(), Owner: d.name(path+"owner", r.GetOwner()), FirstOnly: r.GetFirstOnly(),
		Result: d.printable(path+"result", r.GetResult())}
	p.Scope, p.Key = d.claimed(path, r)
	d.callersScope(path, p.Scope)
	p.Life = durationOr(r.GetLife(), claim.DefaultLife(p.Scope))
	return p
}

// claimed decodes the scope and the key, which may be composed of parts.
func (d *decoder) claimed(path string, r interface {
	GetScope() string
	GetKey() string
	GetParts() []string
}) (scope, key string) {
	scope = cmp.Or(r.GetScope(), claim.PageScope)
	if parts := r.GetParts(); len(parts) > 0 {
		for i, part := range parts {
			d.name(fmt.Sprintf("%sparts[%d]", path, i), part)
		}
		if r.GetKey() != "" {
			d.bad(path+"parts", "must not be set together with key")
		}
		return scope, claim.Compose(parts)
	}
	if key = d.name(path+"key", r.GetKey()); key == "" {
		d.bad(path+"key", "must be set, or parts")
	}
	return scope, key
}

// callersScope rejects scopes whose claims only orders, sales and campaigns change.
func (d *decoder) callersScope(path, scope string) {
	if scope == claim.OrderScope || scope == claim.SaleScope || scope == claim.CampaignScope {
		d.bad(path+"scope", "must not be a scope of orders, sales or campaigns")
	}
}

func renderClaim(scope, key string, c *claim.Claim) *pb.Claim {
	return &pb.Claim{Scope: scope, Key: key, Parts: c.Parts, Owner: c.Owner, Result: c.Result, Uses: c.Uses,
		Fence: c.ID, Principal: c.Principal, RequestId: c.RequestID, CreateTime: timestamp(c.ClaimedAt),
		ExpireTime: timestamp(c.ExpiresAt)}
}

func renderClaims(params []claim.Params, results []claim.Result) []*pb.ClaimKeysResult {
	rendered := make([]*pb.ClaimKeysResult, len(results))
	for i := range results {
		x := &results[i]
		r := &pb.ClaimKeysResult{Count: x.Count, Existed: x.Existed}
		switch {
		case x.Fault != nil:
			r.Reason = x.Fault.Reason.Name
			fallthrough
		case x.Existed:
			if x.First.ID != 0 {
				r.Claim = renderClaim(params[i].Scope, params[i].Key, &x.First)
			}
		default:
			r.Claim = &pb.Claim{Fence: x.First.ID, RequestId: x.First.RequestID,
				CreateTime: timestamp(x.First.ClaimedAt), ExpireTime: timestamp(x.First.ExpiresAt)}
		}
		rendered[i] = r
	}
	return rendered
}
