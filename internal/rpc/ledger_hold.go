package rpc

import (
	"context"
	"time"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

const defaultHoldLife = 7 * 24 * time.Hour

func (s *Ledger) Hold(ctx context.Context, r *pb.HoldRequest) (*pb.HoldResponse, error) {
	return run(ctx, s.Mutations, holdOperation, r)
}

const holdName = "ledger.hold"

var holdOperation = register(holdName, func(c *call, d *decoder, r *pb.HoldRequest) mutation[*pb.HoldResponse] {
	form := forms[r.GetForm()]
	p := ledger.HoldParams{BizNo: d.bizNo("biz_no", r.GetBizNo()), From: r.GetFrom(), To: r.GetTo(),
		Asset: r.GetAsset(), Amount: d.positive("amount", r.GetAmount(), form), Form: form,
		Life: durationOr(r.GetLife(), defaultHoldLife), Metadata: d.metadata("metadata", r.GetMetadata())}
	if p.From == p.To {
		d.bad("to", "must not be the same account as from")
	}
	return newMutation(flow.Ledger(&ledger.HoldCommand{Caller: c.caller(), HoldParams: p}), 1,
		func(h *ledger.Hold, existed bool) *pb.HoldResponse {
			return &pb.HoldResponse{Hold: renderHold(h), Existed: existed}
		})
})

func (s *Ledger) Capture(ctx context.Context, r *pb.CaptureRequest) (*pb.CaptureResponse, error) {
	return run(ctx, s.Mutations, captureOperation, r)
}

var captureOperation = register("ledger.capture",
	func(c *call, d *decoder, r *pb.CaptureRequest) mutation[*pb.CaptureResponse] {
		p := ledger.CaptureOf(r.GetHoldId(), r.GetHoldBizNo())
		d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
		p.BizNo, p.To, p.ReleaseRest = d.bizNo("biz_no", r.GetBizNo()), r.GetTo(), r.GetReleaseRest()
		p.Type, p.Metadata = d.transferType("type", r.GetType(), "capture"), d.metadata("metadata", r.GetMetadata())
		if r.GetAmount() != "" {
			n := d.positive("amount", r.GetAmount(), ledger.Exact)
			p.Amount = &n
		}
		return newMutation(flow.Ledger(&ledger.CaptureCommand{Caller: c.caller(), CaptureParams: p}), 1,
			func(c ledger.Capture, existed bool) *pb.CaptureResponse {
				return &pb.CaptureResponse{Transfer: renderTransfer(c.Transfer, !existed), Hold: renderHold(c.Hold),
					Existed: existed}
			})
	})

// holdTarget requires that a hold is named.
func (d *decoder) holdTarget(id int64, bizNo string) {
	if id == 0 && bizNo == "" {
		d.bad("hold_id", "must be set, or hold_biz_no")
	}
}

func (s *Ledger) Release(ctx context.Context, r *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	return run(ctx, s.Mutations, releaseOperation, r)
}

var releaseOperation = register("ledger.release",
	func(c *call, d *decoder, r *pb.ReleaseRequest) mutation[*pb.ReleaseResponse] {
		d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
		return newMutation(flow.Ledger(ledger.ReleaseOf(c.caller(), r.GetHoldId(), r.GetHoldBizNo())), 1,
			func(h *ledger.Hold, existed bool) *pb.ReleaseResponse {
				return &pb.ReleaseResponse{Hold: renderHold(h), Existed: existed}
			})
	})

var holdStates = map[string]pb.HoldState{
	ledger.Held: pb.HoldState_HOLD_STATE_HELD, ledger.Captured: pb.HoldState_HOLD_STATE_CAPTURED,
	ledger.Released: pb.HoldState_HOLD_STATE_RELEASED, ledger.Expired: pb.HoldState_HOLD_STATE_EXPIRED,
}

var holdStateNames = inverse(holdStates)

func renderHold(h *ledger.Hold) *pb.Hold {
	format := func(n amount.Int) string { return amount.Format(n, h.Scale) }
	return &pb.Hold{Id: h.ID, BizNo: h.BizNo, From: h.From, To: h.To, Asset: h.Asset, Amount: format(h.Amount),
		Captured: format(h.Captured), Remaining: format(h.Remaining()), State: holdStates[h.State],
		ExpireTime: timestamp(h.ExpiresAt), CreateTime: timestamp(h.CreatedAt), CloseTime: timestamp(h.ClosedAt),
		Metadata: h.Metadata, RequestId: h.RequestID}
}
