package rpc

import (
	"cmp"
	"context"
	"fmt"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// couponRows is the number of rows that a coupon writes: its own, the instance, and the history.
const couponRows = 3

func (s *Sales) IssueCoupons(ctx context.Context, r *pb.IssueCouponsRequest) (*pb.IssueCouponsResponse, error) {
	return run(ctx, s.Mutations, issueCouponsOperation, r)
}

var issueCouponsOperation = register("sale.issue_coupons",
	func(c *call, d *decoder, r *pb.IssueCouponsRequest) mutation[*pb.IssueCouponsResponse] {
		cmd := &flow.IssueCoupons{Caller: c.caller(), Campaign: r.GetCampaign(), Codes: r.GetCodes(),
			ExpiresAt: d.time("expire_time", r.GetExpireTime()), Metadata: d.metadata("metadata", r.GetMetadata())}
		for i, code := range r.GetCodes() {
			d.bizNo(fmt.Sprintf("codes[%d]", i), code)
		}
		if (r.GetCount() > 0) == (len(r.GetCodes()) > 0) {
			d.bad("count", "must be set, or codes, and not both")
		}
		for range r.GetCount() {
			cmd.Codes = append(cmd.Codes, c.couponCode())
		}
		return newMutation(cmd, couponRows*len(cmd.Codes), func(codes []string, existed bool) *pb.IssueCouponsResponse {
			return &pb.IssueCouponsResponse{Codes: codes, Existed: existed}
		})
	})

// couponCode makes a code for a coupon.
func (c *call) couponCode() string {
	n := cmp.Or(c.numbers, new(numbers))
	code, _ := n.next(func() (string, error) { return coupon.NewCode(), nil })
	return code
}

func (s *Sales) ClaimCoupon(ctx context.Context, r *pb.ClaimCouponRequest) (*pb.ClaimCouponResponse, error) {
	return run(ctx, s.Mutations, claimCouponOperation, r)
}

var claimCouponOperation = register("sale.claim_coupon",
	func(c *call, d *decoder, r *pb.ClaimCouponRequest) mutation[*pb.ClaimCouponResponse] {
		cmd := &flow.ClaimCoupon{Caller: c.caller(), Code: d.bizNo("code", r.GetCode()),
			Owner: d.name("owner", r.GetOwner())}
		return newMutation(cmd, couponRows, func(v coupon.View, existed bool) *pb.ClaimCouponResponse {
			return &pb.ClaimCouponResponse{Coupon: renderCoupon(&v), Existed: existed}
		})
	})

func (s *Sales) RedeemCoupon(ctx context.Context, r *pb.RedeemCouponRequest) (*pb.RedeemCouponResponse, error) {
	return run(ctx, s.Mutations, redeemCouponOperation, r)
}

var redeemCouponOperation = register("sale.redeem_coupon",
	func(c *call, d *decoder, r *pb.RedeemCouponRequest) mutation[*pb.RedeemCouponResponse] {
		cmd := &flow.RedeemCoupon{Caller: c.caller(), Code: d.bizNo("code", r.GetCode()),
			Owner: d.name("owner", r.GetOwner()), Cause: d.name("cause", r.GetCause())}
		return newMutation(cmd, couponRows, func(v coupon.View, existed bool) *pb.RedeemCouponResponse {
			return &pb.RedeemCouponResponse{Coupon: renderCoupon(&v), Existed: existed}
		})
	})

func (s *Sales) GetCoupon(ctx context.Context, r *pb.GetCouponRequest) (*pb.GetCouponResponse, error) {
	v, err := s.Coupons.Coupon(ctx, coupon.Key{Tenant: callOf(ctx).identity.Tenant, Code: r.GetCode()})
	if err != nil {
		return nil, err
	}
	return &pb.GetCouponResponse{Coupon: renderCoupon(&v)}, nil
}

func (s *Sales) ListCoupons(ctx context.Context, r *pb.ListCouponsRequest) (*pb.ListCouponsResponse, error) {
	if r.GetCampaign() == "" && r.GetOwner() == "" {
		var d decoder
		d.bad("campaign", "must be set, or owner")
		return nil, d.err()
	}
	list, next, err := s.Coupons.Coupons(ctx, callOf(ctx).identity.Tenant, coupon.Filter{Campaign: r.GetCampaign(),
		Owner: r.GetOwner(), State: couponStateNames[r.GetState()]}, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListCouponsResponse{Coupons: eachOf(list, renderCoupon), NextPageToken: next}, err
}

var couponStates = map[string]pb.CouponState{
	machine.CouponUnclaimed: pb.CouponState_COUPON_STATE_UNCLAIMED,
	machine.CouponClaimed:   pb.CouponState_COUPON_STATE_CLAIMED,
	machine.CouponLocked:    pb.CouponState_COUPON_STATE_LOCKED,
	machine.CouponUsed:      pb.CouponState_COUPON_STATE_USED,
	machine.CouponExpired:   pb.CouponState_COUPON_STATE_EXPIRED,
}

var couponStateNames = inverse(couponStates)

func renderCoupon(v *coupon.View) *pb.Coupon {
	return &pb.Coupon{Id: v.ID, Code: v.Code, Campaign: v.Campaign, State: couponStates[v.State.State], Owner: v.Owner,
		Cause: v.Cause, ExpireTime: timestamp(v.ExpiresAt), Metadata: v.Metadata, CreateTime: timestamp(v.CreatedAt),
		UpdateTime: timestamp(v.ChangedAt), Principal: v.Principal, RequestId: v.RequestID}
}
