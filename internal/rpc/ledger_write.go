package rpc

import (
	"context"
	"fmt"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// CreateAssets makes assets.
func (s *Ledger) CreateAssets(ctx context.Context,
	r *ledgerv1.CreateAssetsRequest) (*ledgerv1.CreateAssetsResponse, error) {
	return run(ctx, s.Mutations, createAssetsCall, r)
}

var createAssetsCall = register("ledger.create_assets",
	func(c *call, d *decoder, r *ledgerv1.CreateAssetsRequest) mutation[*ledgerv1.CreateAssetsResponse] {
		cmd := &ledger.CreateAssetsCommand{Caller: c.caller()}
		for _, a := range r.GetAssets() {
			cmd.Assets = append(cmd.Assets, ledger.NewAsset{Code: a.GetCode(), Scale: uint8(a.GetScale())})
		}
		return mutation[*ledgerv1.CreateAssetsResponse]{command: flow.Ledger(cmd),
			rows: len(cmd.Assets), render: func(answer any, _ bool) (*ledgerv1.CreateAssetsResponse, error) {
				res := &ledgerv1.CreateAssetsResponse{}
				for _, a := range answer.([]ledger.Asset) {
					res.Assets = append(res.Assets, &ledgerv1.Asset{Code: a.Code, Scale: int32(a.Scale)})
				}
				return res, nil
			}}
	})

// CreateAccounts makes accounts.
func (s *Ledger) CreateAccounts(ctx context.Context,
	r *ledgerv1.CreateAccountsRequest) (*ledgerv1.CreateAccountsResponse, error) {
	return run(ctx, s.Mutations, createAccountsCall, r)
}

var createAccountsCall = register("ledger.create_accounts",
	func(c *call, d *decoder, r *ledgerv1.CreateAccountsRequest) mutation[*ledgerv1.CreateAccountsResponse] {
		cmd := &ledger.CreateAccountsCommand{Caller: c.caller()}
		for i, a := range r.GetAccounts() {
			at := fmt.Sprintf("accounts[%d].", i)
			n := ledger.NewAccount{Code: d.code(at+"code", a.GetCode()), Asset: a.GetAsset(),
				Kind:     kindName(a.GetKind()),
				Min:      d.optionalDecimal(at+"min_balance", a.MinBalance),
				Max:      d.optionalDecimal(at+"max_balance", a.MaxBalance),
				Metadata: d.metadata(at+"metadata", a.GetMetadata())}
			switch {
			case a.GetUnbounded() && n.Min != nil:
				d.bad(at+"unbounded", "must not be set together with min_balance")
			case !a.GetUnbounded() && n.Min == nil:
				n.Min = new(amount.Decimal)
			}
			cmd.Accounts = append(cmd.Accounts, n)
		}
		return mutation[*ledgerv1.CreateAccountsResponse]{command: flow.Ledger(cmd),
			rows: len(cmd.Accounts), render: func(answer any, _ bool) (*ledgerv1.CreateAccountsResponse, error) {
				made := answer.(ledger.CreatedAccounts)
				res := &ledgerv1.CreateAccountsResponse{Existed: int32(made.Existed)}
				for i := range made.Accounts {
					res.Accounts = append(res.Accounts, renderAccount(&made.Accounts[i]))
				}
				return res, nil
			}}
	})

// UpdateAccount changes limits and metadata.
func (s *Ledger) UpdateAccount(ctx context.Context,
	r *ledgerv1.UpdateAccountRequest) (*ledgerv1.UpdateAccountResponse, error) {
	return run(ctx, s.Mutations, updateAccountCall, r)
}

var updateAccountCall = register("ledger.update_account",
	func(c *call, d *decoder, r *ledgerv1.UpdateAccountRequest) mutation[*ledgerv1.UpdateAccountResponse] {
		code, asset := d.ref("account", r.GetAccount())
		d.metadata("metadata", r.GetMetadata())
		change := ledger.AccountChange{Min: d.optionalDecimal("min_balance", r.MinBalance), Unbounded: r.GetUnbounded(),
			Max: d.optionalDecimal("max_balance", r.MaxBalance), ClearMax: r.GetClearMaxBalance(),
			Metadata: r.GetMetadata()}
		if change.Min != nil && change.Unbounded {
			d.bad("unbounded", "must not be set together with min_balance")
		}
		if change.Max != nil && change.ClearMax {
			d.bad("clear_max_balance", "must not be set together with max_balance")
		}
		return updateAccount(c, code, asset, change, func(a *ledgerv1.Account) *ledgerv1.UpdateAccountResponse {
			return &ledgerv1.UpdateAccountResponse{Account: a}
		})
	})

// FreezeAccount stops money from going out.
func (s *Ledger) FreezeAccount(ctx context.Context,
	r *ledgerv1.FreezeAccountRequest) (*ledgerv1.FreezeAccountResponse, error) {
	return run(ctx, s.Mutations, freezeAccountCall, r)
}

var freezeAccountCall = register("ledger.freeze_account",
	func(c *call, d *decoder, r *ledgerv1.FreezeAccountRequest) mutation[*ledgerv1.FreezeAccountResponse] {
		return updateAccount(c, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
			ledger.AccountChange{State: ledger.Frozen}, func(a *ledgerv1.Account) *ledgerv1.FreezeAccountResponse {
				return &ledgerv1.FreezeAccountResponse{Account: a}
			})
	})

// UnfreezeAccount lets money go out again.
func (s *Ledger) UnfreezeAccount(ctx context.Context,
	r *ledgerv1.UnfreezeAccountRequest) (*ledgerv1.UnfreezeAccountResponse, error) {
	return run(ctx, s.Mutations, unfreezeAccountCall, r)
}

var unfreezeAccountCall = register("ledger.unfreeze_account",
	func(c *call, d *decoder, r *ledgerv1.UnfreezeAccountRequest) mutation[*ledgerv1.UnfreezeAccountResponse] {
		return updateAccount(c, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
			ledger.AccountChange{State: ledger.Open}, func(a *ledgerv1.Account) *ledgerv1.UnfreezeAccountResponse {
				return &ledgerv1.UnfreezeAccountResponse{Account: a}
			})
	})

// CloseAccount closes an empty account for ever.
func (s *Ledger) CloseAccount(ctx context.Context,
	r *ledgerv1.CloseAccountRequest) (*ledgerv1.CloseAccountResponse, error) {
	return run(ctx, s.Mutations, closeAccountCall, r)
}

var closeAccountCall = register("ledger.close_account",
	func(c *call, d *decoder, r *ledgerv1.CloseAccountRequest) mutation[*ledgerv1.CloseAccountResponse] {
		return updateAccount(c, r.GetAccount().GetCode(), r.GetAccount().GetAsset(),
			ledger.AccountChange{State: ledger.Closed}, func(a *ledgerv1.Account) *ledgerv1.CloseAccountResponse {
				return &ledgerv1.CloseAccountResponse{Account: a}
			})
	})

// Transfer moves money.
func (s *Ledger) Transfer(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	return run(ctx, s.Mutations, transferCall, r)
}

var transferCall = register(transferOperation,
	func(c *call, d *decoder, r *ledgerv1.TransferRequest) mutation[*ledgerv1.TransferResponse] {
		return transfer(c.caller(), r, d.transfer(r, ""))
	})

// transferOperation scopes the keys of single transfers and of items of independent batches alike.
const transferOperation = "ledger.transfer"

func transfer(c ledger.Caller, r *ledgerv1.TransferRequest,
	p ledger.TransferParams) mutation[*ledgerv1.TransferResponse] {
	return mutation[*ledgerv1.TransferResponse]{request: r, rows: len(p.Postings), dry: r.GetDryRun(),
		command: flow.Ledger(&ledger.TransferCommand{Caller: c, TransferParams: p}),
		render: func(answer any, existed bool) (*ledgerv1.TransferResponse, error) {
			return &ledgerv1.TransferResponse{Transfer: renderTransfer(answer.(*ledger.Transfer), !existed),
				Existed: existed}, nil
		}}
}

// Reverse posts the opposite of a transfer.
func (s *Ledger) Reverse(ctx context.Context, r *ledgerv1.ReverseRequest) (*ledgerv1.ReverseResponse, error) {
	return run(ctx, s.Mutations, reverseCall, r)
}

var reverseCall = register("ledger.reverse",
	func(c *call, d *decoder, r *ledgerv1.ReverseRequest) mutation[*ledgerv1.ReverseResponse] {
		p := ledger.ReverseParams{TransferID: r.GetTransferId(), TransferBizNo: r.GetTransferBizNo(),
			BizNo: d.bizNo("biz_no", r.GetBizNo()), Metadata: d.metadata("metadata", r.GetMetadata()),
			EffectiveAt: d.effective("effective_time", r.GetEffectiveTime())}
		if p.TransferID == 0 && p.TransferBizNo == "" {
			d.bad("transfer_id", "must be set, or transfer_biz_no")
		}
		return mutation[*ledgerv1.ReverseResponse]{rows: reverseRows, dry: r.GetDryRun(),
			command: flow.Ledger(&ledger.ReverseCommand{Caller: c.caller(), ReverseParams: p}),
			render: func(answer any, existed bool) (*ledgerv1.ReverseResponse, error) {
				return &ledgerv1.ReverseResponse{Transfer: renderTransfer(answer.(*ledger.Transfer), !existed),
					Existed: existed}, nil
			}}
	})

// reverseRows is what a reversal counts for: how many postings it has, up to 1,000, is known only when it
// runs, and a batch of very large ones must not be too large for memory.
const reverseRows = 50

const defaultHoldLife = 7 * 24 * time.Hour

// Hold keeps an amount from being spent otherwise.
func (s *Ledger) Hold(ctx context.Context, r *ledgerv1.HoldRequest) (*ledgerv1.HoldResponse, error) {
	return run(ctx, s.Mutations, holdCall, r)
}

var holdCall = register("ledger.hold", func(c *call, d *decoder,
	r *ledgerv1.HoldRequest) mutation[*ledgerv1.HoldResponse] {
	form := forms[r.GetForm()]
	p := ledger.HoldParams{BizNo: d.bizNo("biz_no", r.GetBizNo()), From: r.GetFrom(), To: r.GetTo(),
		Asset:  r.GetAsset(),
		Amount: d.positive("amount", r.GetAmount(), form), Form: form, Life: defaultHoldLife,
		Metadata: d.metadata("metadata", r.GetMetadata())}
	if r.GetLife() != nil {
		p.Life = r.GetLife().AsDuration().Truncate(time.Millisecond)
	}
	if p.From == p.To {
		d.bad("to", "must not be the same account as from")
	}
	return mutation[*ledgerv1.HoldResponse]{dry: r.GetDryRun(),
		command: flow.Ledger(&ledger.HoldCommand{Caller: c.caller(), HoldParams: p}),
		render: func(answer any, existed bool) (*ledgerv1.HoldResponse, error) {
			return &ledgerv1.HoldResponse{Hold: renderHold(answer.(*ledger.Hold)), Existed: existed}, nil
		}}
})

// Capture pays out of a hold.
func (s *Ledger) Capture(ctx context.Context, r *ledgerv1.CaptureRequest) (*ledgerv1.CaptureResponse, error) {
	return run(ctx, s.Mutations, captureCall, r)
}

var captureCall = register("ledger.capture",
	func(c *call, d *decoder, r *ledgerv1.CaptureRequest) mutation[*ledgerv1.CaptureResponse] {
		p := ledger.CaptureOf(r.GetHoldId(), r.GetHoldBizNo())
		d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
		p.BizNo, p.To, p.ReleaseRest = d.bizNo("biz_no", r.GetBizNo()), r.GetTo(), r.GetReleaseRest()
		p.Type, p.Metadata = d.kind("type", r.GetType(), "capture"), d.metadata("metadata", r.GetMetadata())
		if r.GetAmount() != "" {
			n := d.positive("amount", r.GetAmount(), ledger.Exact)
			p.Amount = &n
		}
		return mutation[*ledgerv1.CaptureResponse]{dry: r.GetDryRun(),
			command: flow.Ledger(&ledger.CaptureCommand{Caller: c.caller(), CaptureParams: p}),
			render: func(answer any, existed bool) (*ledgerv1.CaptureResponse, error) {
				c := answer.(ledger.Capture)
				return &ledgerv1.CaptureResponse{Transfer: renderTransfer(c.Transfer, !existed),
					Hold:    renderHold(c.Hold),
					Existed: existed}, nil
			}}
	})

// holdTarget checks that a hold is named.
func (d *decoder) holdTarget(id int64, bizNo string) {
	if id == 0 && bizNo == "" {
		d.bad("hold_id", "must be set, or hold_biz_no")
	}
}

// Release gives back what a hold still keeps.
func (s *Ledger) Release(ctx context.Context, r *ledgerv1.ReleaseRequest) (*ledgerv1.ReleaseResponse, error) {
	return run(ctx, s.Mutations, releaseCall, r)
}

var releaseCall = register("ledger.release",
	func(c *call, d *decoder, r *ledgerv1.ReleaseRequest) mutation[*ledgerv1.ReleaseResponse] {
		d.holdTarget(r.GetHoldId(), r.GetHoldBizNo())
		return mutation[*ledgerv1.ReleaseResponse]{dry: r.GetDryRun(),
			command: flow.Ledger(ledger.ReleaseOf(c.caller(), r.GetHoldId(), r.GetHoldBizNo())),
			render: func(answer any, existed bool) (*ledgerv1.ReleaseResponse, error) {
				return &ledgerv1.ReleaseResponse{Hold: renderHold(answer.(*ledger.Hold)), Existed: existed}, nil
			}}
	})
