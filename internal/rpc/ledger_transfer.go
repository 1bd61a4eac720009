package rpc

import (
	"context"
	"fmt"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (s *Ledger) Transfer(ctx context.Context, r *pb.TransferRequest) (*pb.TransferResponse, error) {
	return run(ctx, s.Mutations, transferOperation, r)
}

var transferOperation = register(transferName,
	func(c *call, d *decoder, r *pb.TransferRequest) mutation[*pb.TransferResponse] {
		return transfer(c.caller(), r, d.transfer(r, ""))
	})

// transferName scopes the keys of single transfers and those of items of independent batches.
const transferName = "ledger.transfer"

func transfer(c commit.Caller, r *pb.TransferRequest, p ledger.TransferParams) mutation[*pb.TransferResponse] {
	return newMutation(flow.Ledger(&ledger.TransferCommand{Caller: c, TransferParams: p}), len(p.Postings),
		func(t *ledger.Transfer, existed bool) *pb.TransferResponse {
			return &pb.TransferResponse{Transfer: renderTransfer(t, !existed), Existed: existed}
		})
}

func (s *Ledger) Reverse(ctx context.Context, r *pb.ReverseRequest) (*pb.ReverseResponse, error) {
	return run(ctx, s.Mutations, reverseOperation, r)
}

const reverseName = "ledger.reverse"

var reverseOperation = register(reverseName,
	func(c *call, d *decoder, r *pb.ReverseRequest) mutation[*pb.ReverseResponse] {
		p := ledger.ReverseParams{TransferID: r.GetTransferId(), TransferBizNo: r.GetTransferBizNo(),
			BizNo: d.bizNo("biz_no", r.GetBizNo()), Metadata: d.metadata("metadata", r.GetMetadata()),
			EffectiveAt: d.effective("effective_time", r.GetEffectiveTime())}
		if p.TransferID == 0 && p.TransferBizNo == "" {
			d.bad("transfer_id", "must be set, or transfer_biz_no")
		}
		cmd := &ledger.ReverseCommand{Caller: c.caller(), ReverseParams: p}
		if !r.GetDryRun() {
			cmd.Allow = c.allowReversal()
		}
		return newMutation(flow.Ledger(cmd), reverseRows,
			func(t *ledger.Transfer, existed bool) *pb.ReverseResponse {
				return &pb.ReverseResponse{Transfer: renderTransfer(t, !existed), Existed: existed}
			})
	})

// reverseRows is the estimated number of rows of a reversal. The actual number of postings, up to 1,000, is known only
// when it runs. The estimate is above one, because a batch of large reversals must fit into memory.
const reverseRows = 50

const defaultType = "transfer"

func (d *decoder) transfer(r *pb.TransferRequest, path string) ledger.TransferParams {
	p := ledger.TransferParams{BizNo: d.bizNo(path+"biz_no", r.GetBizNo()),
		Type:        d.transferType(path+"type", r.GetType(), defaultType),
		Metadata:    d.metadata(path+"metadata", r.GetMetadata()),
		EffectiveAt: d.effective(path+"effective_time", r.GetEffectiveTime()),
		Postings:    make([]ledger.Posting, len(r.GetPostings()))}
	for i, x := range r.GetPostings() {
		at := func(field string) string { return fmt.Sprintf("%spostings[%d].%s", path, i, field) }
		if x.GetFrom() == x.GetTo() {
			d.bad(at("to"), "must not be the same account as from")
		}
		form := forms[x.GetForm()]
		p.Postings[i] = ledger.Posting{From: x.GetFrom(), To: x.GetTo(), Asset: x.GetAsset(), Form: form}
		if n, err := amount.ParseDecimal(x.GetAmount()); err == nil && n.Coef.Sign() > 0 &&
			form != ledger.AllAvailable {
			p.Postings[i].Amount = n // the usual case, without formatting paths
		} else {
			p.Postings[i].Amount = d.positive(at("amount"), x.GetAmount(), form)
		}
	}
	for i, x := range r.GetConditions() {
		at := fmt.Sprintf("%sconditions[%d]", path, i)
		if x.Version == nil && x.BalanceAtLeast == nil {
			d.bad(at, "must set version or balance_at_least")
		}
		code, asset := d.ref(at+".account", x.GetAccount())
		p.Conditions = append(p.Conditions, ledger.Condition{Code: code, Asset: asset, Version: x.Version,
			BalanceAtLeast: d.optionalDecimal(at+".balance_at_least", x.BalanceAtLeast)})
	}
	return p
}

// transferType decodes the type of a transfer. Only Reverse makes type "reversal".
func (d *decoder) transferType(path, s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	if s == ledger.Reversal {
		d.bad(path, `must not be "reversal": only Reverse makes reversals`)
	}
	return d.bizNo(path, s)
}

// renderEntry renders an entry outside its transfer. Inside a transfer sideOf is enough.
func renderEntry(e *ledger.Entry) *pb.Entry {
	r := sideOf(e)
	r.TransferId, r.RecordTime = e.TransferID, timestamp(e.RecordedAt)
	if r.EffectiveTime = r.RecordTime; !e.EffectiveAt.IsZero() {
		r.EffectiveTime = timestamp(e.EffectiveAt)
	}
	return r
}

func sideOf(e *ledger.Entry) *pb.Entry {
	return &pb.Entry{Account: e.Account, Asset: e.Asset, Version: e.Version, Amount: amount.Format(e.Amount, e.Scale),
		BalanceBefore: amount.Format(e.Before, e.Scale), BalanceAfter: amount.Format(e.After, e.Scale),
		Posting: int32(e.Posting)}
}

// renderNow renders the present state of a transfer.
func renderNow(t *ledger.Transfer) *pb.Transfer { return renderTransfer(t, false) }

// renderTransfer renders a transfer. With first it renders the state at creation: not reversed.
func renderTransfer(t *ledger.Transfer, first bool) *pb.Transfer {
	r := &pb.Transfer{Id: t.ID, BizNo: t.BizNo, Type: t.Type, Metadata: t.Metadata,
		Postings: make([]*pb.Posting, len(t.Entries)/2), Entries: make([]*pb.Entry, len(t.Entries)),
		RecordTime: timestamp(t.RecordedAt), ReversesId: t.ReversesID, HoldId: t.HoldID, RequestId: t.RequestID}
	if r.EffectiveTime = r.RecordTime; !t.EffectiveAt.IsZero() {
		r.EffectiveTime = timestamp(t.EffectiveAt)
	}
	if !first {
		r.ReversedById = t.ReversedByID
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		x := sideOf(e)
		r.Entries[i] = x
		if i%2 == 1 {
			r.Postings[i/2] = &pb.Posting{From: t.Entries[i-1].Account, To: e.Account, Asset: e.Asset, Amount: x.Amount}
		}
	}
	return r
}
