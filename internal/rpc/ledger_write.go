package rpc

import (
	"context"
	"fmt"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// CreateAssets makes assets.
func (s *Ledger) CreateAssets(ctx context.Context, r *ledgerv1.CreateAssetsRequest) (*ledgerv1.CreateAssetsResponse, error) {
	cmd := &ledger.CreateAssetsCommand{Caller: callOf(ctx).caller()}
	for _, a := range r.GetAssets() {
		cmd.Assets = append(cmd.Assets, ledger.NewAsset{Code: a.GetCode(), Scale: uint8(a.GetScale())})
	}
	return run(ctx, s, change[*ledgerv1.CreateAssetsResponse]{operation: "ledger.create_assets", command: cmd, request: r,
		rows: len(cmd.Assets), render: func(answer any, _ bool) (*ledgerv1.CreateAssetsResponse, error) {
			res := &ledgerv1.CreateAssetsResponse{}
			for _, a := range answer.([]ledger.Asset) {
				res.Assets = append(res.Assets, &ledgerv1.Asset{Code: a.Code, Scale: int32(a.Scale)})
			}
			return res, nil
		}})
}

// CreateAccounts makes accounts.
func (s *Ledger) CreateAccounts(ctx context.Context, r *ledgerv1.CreateAccountsRequest) (*ledgerv1.CreateAccountsResponse, error) {
	cmd := &ledger.CreateAccountsCommand{Caller: callOf(ctx).caller()}
	var d decoder
	for i, a := range r.GetAccounts() {
		at := fmt.Sprintf("accounts[%d].", i)
		n := ledger.NewAccount{Code: d.code(at+"code", a.GetCode()), Asset: a.GetAsset(), Kind: kindName(a.GetKind()),
			Min: d.optionalDecimal(at+"min_balance", a.MinBalance), Max: d.optionalDecimal(at+"max_balance", a.MaxBalance),
			Metadata: d.metadata(at+"metadata", a.GetMetadata())}
		switch {
		case a.GetUnbounded() && n.Min != nil:
			d.bad(at+"unbounded", "excludes min_balance")
		case !a.GetUnbounded() && n.Min == nil:
			n.Min = new(amount.Decimal)
		}
		cmd.Accounts = append(cmd.Accounts, n)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, change[*ledgerv1.CreateAccountsResponse]{operation: "ledger.create_accounts", command: cmd, request: r,
		rows: len(cmd.Accounts), render: func(answer any, _ bool) (*ledgerv1.CreateAccountsResponse, error) {
			made := answer.(ledger.CreatedAccounts)
			res := &ledgerv1.CreateAccountsResponse{Existed: int32(made.Existed)}
			for i := range made.Accounts {
				res.Accounts = append(res.Accounts, renderAccount(&made.Accounts[i]))
			}
			return res, nil
		}})
}

// UpdateAccount changes limits and metadata.
func (s *Ledger) UpdateAccount(ctx context.Context, r *ledgerv1.UpdateAccountRequest) (*ledgerv1.UpdateAccountResponse, error) {
	var d decoder
	code, asset := d.ref("account", r.GetAccount())
	d.metadata("metadata", r.GetMetadata())
	change := ledger.AccountChange{Min: d.optionalDecimal("min_balance", r.MinBalance), Unbounded: r.GetUnbounded(),
		Max: d.optionalDecimal("max_balance", r.MaxBalance), ClearMax: r.GetClearMaxBalance(), Metadata: r.GetMetadata()}
	if change.Min != nil && change.Unbounded {
		d.bad("unbounded", "excludes min_balance")
	}
	if change.Max != nil && change.ClearMax {
		d.bad("clear_max_balance", "excludes max_balance")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, updateAccount(ctx, "ledger.update_account", r, code, asset, change, func(a *ledgerv1.Account) *ledgerv1.UpdateAccountResponse {
		return &ledgerv1.UpdateAccountResponse{Account: a}
	}))
}

// FreezeAccount stops money from going out.
func (s *Ledger) FreezeAccount(ctx context.Context, r *ledgerv1.FreezeAccountRequest) (*ledgerv1.FreezeAccountResponse, error) {
	return run(ctx, s, updateAccount(ctx, "ledger.freeze_account", r, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
		ledger.AccountChange{State: ledger.Frozen}, func(a *ledgerv1.Account) *ledgerv1.FreezeAccountResponse {
			return &ledgerv1.FreezeAccountResponse{Account: a}
		}))
}

// UnfreezeAccount lets money go out again.
func (s *Ledger) UnfreezeAccount(ctx context.Context, r *ledgerv1.UnfreezeAccountRequest) (*ledgerv1.UnfreezeAccountResponse, error) {
	return run(ctx, s, updateAccount(ctx, "ledger.unfreeze_account", r, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
		ledger.AccountChange{State: ledger.Open}, func(a *ledgerv1.Account) *ledgerv1.UnfreezeAccountResponse {
			return &ledgerv1.UnfreezeAccountResponse{Account: a}
		}))
}

// CloseAccount closes an empty account for ever.
func (s *Ledger) CloseAccount(ctx context.Context, r *ledgerv1.CloseAccountRequest) (*ledgerv1.CloseAccountResponse, error) {
	return run(ctx, s, updateAccount(ctx, "ledger.close_account", r, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
		ledger.AccountChange{State: ledger.Closed}, func(a *ledgerv1.Account) *ledgerv1.CloseAccountResponse {
			return &ledgerv1.CloseAccountResponse{Account: a}
		}))
}

// Transfer moves money.
func (s *Ledger) Transfer(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	var d decoder
	p := d.transfer(r, "")
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, transfer(callOf(ctx).caller(), r, p))
}

// transferOperation scopes the keys of single transfers and of items of independent batches alike.
const transferOperation = "ledger.transfer"

func transfer(c ledger.Caller, r *ledgerv1.TransferRequest, p ledger.TransferParams) change[*ledgerv1.TransferResponse] {
	return change[*ledgerv1.TransferResponse]{operation: transferOperation, request: r, rows: len(p.Postings), dry: r.GetDryRun(),
		command: &ledger.TransferCommand{Caller: c, TransferParams: p},
		render: func(answer any, existed bool) (*ledgerv1.TransferResponse, error) {
			return &ledgerv1.TransferResponse{Transfer: renderTransfer(answer.(*ledger.Transfer), !existed), Existed: existed}, nil
		}}
}

// Reverse posts the opposite of a transfer.
func (s *Ledger) Reverse(ctx context.Context, r *ledgerv1.ReverseRequest) (*ledgerv1.ReverseResponse, error) {
	var d decoder
	p := ledger.ReverseParams{TransferID: r.GetTransferId(), TransferBizNo: r.GetTransferBizNo(),
		BizNo: d.bizNo("biz_no", r.GetBizNo()), Metadata: d.metadata("metadata", r.GetMetadata()), EffectiveAt: d.effective("effective_time", r.GetEffectiveTime())}
	if p.TransferID == 0 && p.TransferBizNo == "" {
		d.bad("transfer_id", "must name a transfer")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, change[*ledgerv1.ReverseResponse]{operation: "ledger.reverse", request: r, rows: reverseRows, dry: r.GetDryRun(),
		command: &ledger.ReverseCommand{Caller: callOf(ctx).caller(), ReverseParams: p},
		render: func(answer any, existed bool) (*ledgerv1.ReverseResponse, error) {
			return &ledgerv1.ReverseResponse{Transfer: renderTransfer(answer.(*ledger.Transfer), !existed), Existed: existed}, nil
		}})
}

// reverseRows is what a reversal counts for: how many postings it has, up to 1,000, is known only when it
// runs, and a batch of very large ones must not be too large for memory.
const reverseRows = 50

const defaultHoldLife = 7 * 24 * time.Hour

// Hold keeps an amount from being spent otherwise.
func (s *Ledger) Hold(ctx context.Context, r *ledgerv1.HoldRequest) (*ledgerv1.HoldResponse, error) {
	var d decoder
	form := forms[r.GetForm()]
	p := ledger.HoldParams{BizNo: d.bizNo("biz_no", r.GetBizNo()), From: r.GetFrom(), To: r.GetTo(), Asset: r.GetAsset(),
		Amount: d.positive("amount", r.GetAmount(), form), Form: form, Life: defaultHoldLife, Metadata: d.metadata("metadata", r.GetMetadata())}
	if r.GetLife() != nil {
		p.Life = r.GetLife().AsDuration().Truncate(time.Millisecond)
	}
	if p.From == p.To {
		d.bad("to", "must be another account than from")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, change[*ledgerv1.HoldResponse]{operation: "ledger.hold", request: r, dry: r.GetDryRun(),
		command: &ledger.HoldCommand{Caller: callOf(ctx).caller(), HoldParams: p},
		render: func(answer any, existed bool) (*ledgerv1.HoldResponse, error) {
			return &ledgerv1.HoldResponse{Hold: renderHold(answer.(*ledger.Hold)), Existed: existed}, nil
		}})
}

// Capture pays out of a hold.
func (s *Ledger) Capture(ctx context.Context, r *ledgerv1.CaptureRequest) (*ledgerv1.CaptureResponse, error) {
	var d decoder
	p := ledger.CaptureOf(r.GetHoldId(), r.GetHoldBizNo())
	d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
	p.BizNo, p.To, p.ReleaseRest = d.bizNo("biz_no", r.GetBizNo()), r.GetTo(), r.GetReleaseRest()
	p.Type, p.Metadata = d.kind("type", r.GetType(), "capture"), d.metadata("metadata", r.GetMetadata())
	if r.GetAmount() != "" {
		n := d.positive("amount", r.GetAmount(), ledger.Exact)
		p.Amount = &n
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, change[*ledgerv1.CaptureResponse]{operation: "ledger.capture", request: r, dry: r.GetDryRun(),
		command: &ledger.CaptureCommand{Caller: callOf(ctx).caller(), CaptureParams: p},
		render: func(answer any, existed bool) (*ledgerv1.CaptureResponse, error) {
			c := answer.(ledger.Capture)
			return &ledgerv1.CaptureResponse{Transfer: renderTransfer(c.Transfer, !existed), Hold: renderHold(c.Hold), Existed: existed}, nil
		}})
}

// holdTarget checks that a hold is named.
func (d *decoder) holdTarget(id int64, bizNo string) {
	if id == 0 && bizNo == "" {
		d.bad("hold_id", "must name a hold")
	}
}

// Release gives back what a hold still keeps.
func (s *Ledger) Release(ctx context.Context, r *ledgerv1.ReleaseRequest) (*ledgerv1.ReleaseResponse, error) {
	var d decoder
	d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
	if err := d.err(); err != nil {
		return nil, err
	}
	return run(ctx, s, change[*ledgerv1.ReleaseResponse]{operation: "ledger.release", request: r, dry: r.GetDryRun(),
		command: ledger.ReleaseOf(callOf(ctx).caller(), r.GetHoldId(), r.GetHoldBizNo()),
		render: func(answer any, _ bool) (*ledgerv1.ReleaseResponse, error) {
			return &ledgerv1.ReleaseResponse{Hold: renderHold(answer.(*ledger.Hold))}, nil
		}})
}
