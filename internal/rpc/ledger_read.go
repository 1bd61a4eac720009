package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func page(r interface {
	GetPageSize() int32
	GetPageToken() string
}) ledger.Page {
	return ledger.Page{Size: int(r.GetPageSize()), Token: r.GetPageToken()}
}

// ListAssets lists the tenant's assets.
func (s *Ledger) ListAssets(ctx context.Context, _ *ledgerv1.ListAssetsRequest) (*ledgerv1.ListAssetsResponse, error) {
	assets, err := s.Reader.Assets(ctx, callOf(ctx).identity.Tenant)
	res := &ledgerv1.ListAssetsResponse{}
	for _, a := range assets {
		res.Assets = append(res.Assets, &ledgerv1.Asset{Code: a.Code, Scale: int32(a.Scale)})
	}
	return res, err
}

// GetAccount shows an account.
func (s *Ledger) GetAccount(ctx context.Context, r *ledgerv1.GetAccountRequest) (*ledgerv1.GetAccountResponse, error) {
	a, err := s.Reader.Account(ctx, callOf(ctx).identity.Tenant, r.GetAccount().GetCode(), r.GetAccount().GetAsset())
	if err != nil {
		return nil, err
	}
	return &ledgerv1.GetAccountResponse{Account: renderAccount(a)}, nil
}

// ListAccounts lists accounts by code and asset.
func (s *Ledger) ListAccounts(ctx context.Context,
	r *ledgerv1.ListAccountsRequest) (*ledgerv1.ListAccountsResponse, error) {
	accounts, next, err := s.Reader.Accounts(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset(), page(r))
	res := &ledgerv1.ListAccountsResponse{NextPageToken: next}
	for i := range accounts {
		res.Accounts = append(res.Accounts, renderAccount(&accounts[i]))
	}
	return res, err
}

// GetTransfer shows a transfer.
func (s *Ledger) GetTransfer(ctx context.Context,
	r *ledgerv1.GetTransferRequest) (*ledgerv1.GetTransferResponse, error) {
	t, err := s.Reader.Transfer(ctx, callOf(ctx).identity.Tenant, r.GetTransferId(), r.GetBizNo())
	if err != nil {
		return nil, err
	}
	return &ledgerv1.GetTransferResponse{Transfer: renderTransfer(t, false)}, nil
}

// ListTransfers lists transfers, nearly newest first.
func (s *Ledger) ListTransfers(ctx context.Context,
	r *ledgerv1.ListTransfersRequest) (*ledgerv1.ListTransfersResponse, error) {
	var d decoder
	f := ledger.TransferFilter{Type: r.GetType(), Metadata: r.GetMetadata(),
		From:   d.time("start_time", r.GetStartTime()),
		Before: d.time("end_time", r.GetEndTime())}
	if err := d.err(); err != nil {
		return nil, err
	}
	transfers, next, err := s.Reader.Transfers(ctx, callOf(ctx).identity.Tenant, f, page(r))
	res := &ledgerv1.ListTransfersResponse{NextPageToken: next}
	for _, t := range transfers {
		res.Transfers = append(res.Transfers, renderTransfer(t, false))
	}
	return res, err
}

// ListEntries is the statement of an account.
func (s *Ledger) ListEntries(ctx context.Context,
	r *ledgerv1.ListEntriesRequest) (*ledgerv1.ListEntriesResponse, error) {
	var d decoder
	f := ledger.StatementFilter{Type: r.GetType(), From: d.time("start_time", r.GetStartTime()),
		Before: d.time("end_time", r.GetEndTime()), Ascending: r.GetAscending()}
	if err := d.err(); err != nil {
		return nil, err
	}
	lines, next, err := s.Reader.Statement(ctx, callOf(ctx).identity.Tenant, r.GetAccount().GetCode(),
		r.GetAccount().GetAsset(), f, page(r))
	res := &ledgerv1.ListEntriesResponse{NextPageToken: next}
	for i := range lines {
		l := &lines[i]
		res.Lines = append(res.Lines, &ledgerv1.StatementLine{Entry: renderEntry(&l.Entry), BizNo: l.BizNo,
			Type: l.Type, Metadata: l.Metadata})
	}
	return res, err
}

// GetBalance tells a balance, now or at a time.
func (s *Ledger) GetBalance(ctx context.Context, r *ledgerv1.GetBalanceRequest) (*ledgerv1.GetBalanceResponse, error) {
	var d decoder
	var b ledger.Balance
	var err error
	tenant, code, asset := callOf(ctx).identity.Tenant, r.GetAccount().GetCode(), r.GetAccount().GetAsset()
	var at *timestamppb.Timestamp
	switch x := r.GetAt().(type) {
	case *ledgerv1.GetBalanceRequest_RecordTime:
		at = x.RecordTime
		if t := d.time("record_time", at); d.err() == nil {
			b, err = s.Reader.BalanceAtRecord(ctx, tenant, code, asset, t)
		}
	case *ledgerv1.GetBalanceRequest_EffectiveTime:
		at = x.EffectiveTime
		if t := d.time("effective_time", at); d.err() == nil {
			b, err = s.Reader.BalanceAtEffective(ctx, tenant, code, asset, t)
		}
	default:
		b, err = s.Reader.Balance(ctx, tenant, code, asset)
	}
	if d.err() != nil {
		err = d.err()
	}
	if err != nil {
		return nil, err
	}
	res := &ledgerv1.GetBalanceResponse{Balance: b.Balance.Format(b.Scale), Version: b.Version}
	if at == nil {
		res.Held = amount.Format(b.Held, b.Scale)
	}
	if b.Available != nil {
		res.Available = amount.Format(*b.Available, b.Scale)
	}
	return res, nil
}

// ListBalances adds up accounts by pattern.
func (s *Ledger) ListBalances(ctx context.Context,
	r *ledgerv1.ListBalancesRequest) (*ledgerv1.ListBalancesResponse, error) {
	sums, err := s.Reader.BalanceSums(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset())
	res := &ledgerv1.ListBalancesResponse{}
	for _, b := range sums {
		res.Sums = append(res.Sums, &ledgerv1.BalanceSum{Asset: b.Asset, Accounts: b.Accounts,
			Balance: b.Balance.Format(b.Scale), Held: b.Held.Format(b.Scale)})
	}
	return res, err
}

// TrialBalance lists debit and credit balances with their totals.
func (s *Ledger) TrialBalance(ctx context.Context,
	r *ledgerv1.TrialBalanceRequest) (*ledgerv1.TrialBalanceResponse, error) {
	b, err := s.Reader.TrialBalance(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset(), page(r))
	if err != nil {
		return nil, err
	}
	res := &ledgerv1.TrialBalanceResponse{NextPageToken: b.Next}
	for _, l := range b.Lines {
		line := &ledgerv1.TrialBalanceLine{Code: l.Code, Asset: l.Asset, Kind: kinds[l.Kind]}
		switch l.Balance.Sign() {
		case -1:
			line.Debit = amount.Format(l.Balance.Neg(), l.Scale)
		case 1:
			line.Credit = amount.Format(l.Balance, l.Scale)
		}
		res.Lines = append(res.Lines, line)
	}
	for _, t := range b.Totals {
		res.Totals = append(res.Totals, &ledgerv1.TrialBalanceTotal{Asset: t.Asset,
			Debit: t.Debit.Format(t.Scale), Credit: t.Credit.Format(t.Scale)})
	}
	return res, nil
}

// GetHold shows a hold.
func (s *Ledger) GetHold(ctx context.Context, r *ledgerv1.GetHoldRequest) (*ledgerv1.GetHoldResponse, error) {
	h, err := s.Reader.Hold(ctx, callOf(ctx).identity.Tenant, r.GetHoldId(), r.GetHoldBizNo())
	if err != nil {
		return nil, err
	}
	return &ledgerv1.GetHoldResponse{Hold: renderHold(h)}, nil
}

// ListHolds lists holds, newest first.
func (s *Ledger) ListHolds(ctx context.Context, r *ledgerv1.ListHoldsRequest) (*ledgerv1.ListHoldsResponse, error) {
	f := ledger.HoldFilter{From: r.GetFrom()}
	for name, state := range holdStates {
		if state == r.GetState() {
			f.State = name
		}
	}
	holds, next, err := s.Reader.Holds(ctx, callOf(ctx).identity.Tenant, f, page(r))
	res := &ledgerv1.ListHoldsResponse{NextPageToken: next}
	for _, h := range holds {
		res.Holds = append(res.Holds, renderHold(h))
	}
	return res, err
}
