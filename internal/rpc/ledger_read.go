package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func page(r interface {
	GetPageSize() int32
	GetPageToken() string
}) ledger.Page {
	return ledger.Page{Size: int(r.GetPageSize()), Token: r.GetPageToken()}
}

func (s *Ledger) ListAssets(ctx context.Context, _ *pb.ListAssetsRequest) (*pb.ListAssetsResponse, error) {
	assets, err := s.Reader.Assets(ctx, callOf(ctx).identity.Tenant)
	return &pb.ListAssetsResponse{Assets: each(assets, renderAsset)}, err
}

func (s *Ledger) GetAccount(ctx context.Context, r *pb.GetAccountRequest) (*pb.GetAccountResponse, error) {
	a, err := s.Reader.Account(ctx, callOf(ctx).identity.Tenant, r.GetAccount().GetCode(), r.GetAccount().GetAsset())
	if err != nil {
		return nil, err
	}
	return &pb.GetAccountResponse{Account: renderAccount(a)}, nil
}

func (s *Ledger) ListAccounts(ctx context.Context, r *pb.ListAccountsRequest) (*pb.ListAccountsResponse, error) {
	accounts, next, err := s.Reader.Accounts(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset(), page(r))
	return &pb.ListAccountsResponse{Accounts: eachOf(accounts, renderAccount), NextPageToken: next}, err
}

func (s *Ledger) GetTransfer(ctx context.Context, r *pb.GetTransferRequest) (*pb.GetTransferResponse, error) {
	t, err := s.Reader.Transfer(ctx, callOf(ctx).identity.Tenant, r.GetTransferId(), r.GetTransferBizNo())
	if err != nil {
		return nil, err
	}
	return &pb.GetTransferResponse{Transfer: renderNow(t)}, nil
}

func (s *Ledger) ListTransfers(ctx context.Context, r *pb.ListTransfersRequest) (*pb.ListTransfersResponse, error) {
	var d decoder
	f := ledger.TransferFilter{Type: r.GetType(), Metadata: r.GetMetadata()}
	f.From, f.Before = d.period(r.GetStartTime(), r.GetEndTime())
	if err := d.err(); err != nil {
		return nil, err
	}
	transfers, next, err := s.Reader.Transfers(ctx, callOf(ctx).identity.Tenant, f, page(r))
	return &pb.ListTransfersResponse{Transfers: each(transfers, renderNow), NextPageToken: next}, err
}

func (s *Ledger) ListEntries(ctx context.Context, r *pb.ListEntriesRequest) (*pb.ListEntriesResponse, error) {
	var d decoder
	f := ledger.StatementFilter{Type: r.GetType(), Ascending: r.GetAscending()}
	f.From, f.Before = d.period(r.GetStartTime(), r.GetEndTime())
	if err := d.err(); err != nil {
		return nil, err
	}
	lines, next, err := s.Reader.Statement(ctx, callOf(ctx).identity.Tenant, r.GetAccount().GetCode(),
		r.GetAccount().GetAsset(), f, page(r))
	return &pb.ListEntriesResponse{NextPageToken: next,
		Lines: eachOf(lines, func(l *ledger.StatementLine) *pb.StatementLine {
			return &pb.StatementLine{Entry: renderEntry(&l.Entry), BizNo: l.BizNo, Type: l.Type, Metadata: l.Metadata}
		})}, err
}

func (s *Ledger) GetBalance(ctx context.Context, r *pb.GetBalanceRequest) (*pb.GetBalanceResponse, error) {
	var d decoder
	var b ledger.Balance
	var err error
	tenant, code, asset := callOf(ctx).identity.Tenant, r.GetAccount().GetCode(), r.GetAccount().GetAsset()
	var at *timestamppb.Timestamp
	switch x := r.GetAt().(type) {
	case *pb.GetBalanceRequest_RecordTime:
		at = x.RecordTime
		if t := d.time("record_time", at); d.err() == nil {
			b, err = s.Reader.BalanceAtRecord(ctx, tenant, code, asset, t)
		}
	case *pb.GetBalanceRequest_EffectiveTime:
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
	res := &pb.GetBalanceResponse{Balance: b.Balance.Format(b.Scale), Version: b.Version}
	if at == nil {
		res.Held = amount.Format(b.Held, b.Scale)
	}
	if b.Available != nil {
		res.Available = amount.Format(*b.Available, b.Scale)
	}
	return res, nil
}

func (s *Ledger) ListBalances(ctx context.Context, r *pb.ListBalancesRequest) (*pb.ListBalancesResponse, error) {
	sums, err := s.Reader.BalanceSums(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset())
	return &pb.ListBalancesResponse{Sums: each(sums, func(b ledger.BalanceSum) *pb.BalanceSum {
		return &pb.BalanceSum{Asset: b.Asset, Accounts: b.Accounts, Balance: b.Balance.Format(b.Scale),
			Held: b.Held.Format(b.Scale)}
	})}, err
}

func (s *Ledger) TrialBalance(ctx context.Context, r *pb.TrialBalanceRequest) (*pb.TrialBalanceResponse, error) {
	b, err := s.Reader.TrialBalance(ctx, callOf(ctx).identity.Tenant, r.GetPattern(), r.GetAsset(), page(r))
	if err != nil {
		return nil, err
	}
	res := &pb.TrialBalanceResponse{NextPageToken: b.Next}
	for _, l := range b.Lines {
		line := &pb.TrialBalanceLine{Code: l.Code, Asset: l.Asset, Kind: kinds[l.Kind]}
		switch l.Balance.Sign() {
		case -1:
			line.Debit = amount.Format(l.Balance.Neg(), l.Scale)
		case 1:
			line.Credit = amount.Format(l.Balance, l.Scale)
		}
		res.Lines = append(res.Lines, line)
	}
	for _, t := range b.Totals {
		res.Totals = append(res.Totals, &pb.TrialBalanceTotal{Asset: t.Asset, Debit: t.Debit.Format(t.Scale),
			Credit: t.Credit.Format(t.Scale)})
	}
	return res, nil
}

func (s *Ledger) GetHold(ctx context.Context, r *pb.GetHoldRequest) (*pb.GetHoldResponse, error) {
	h, err := s.Reader.Hold(ctx, callOf(ctx).identity.Tenant, r.GetHoldId(), r.GetHoldBizNo())
	if err != nil {
		return nil, err
	}
	return &pb.GetHoldResponse{Hold: renderHold(h)}, nil
}

func (s *Ledger) ListHolds(ctx context.Context, r *pb.ListHoldsRequest) (*pb.ListHoldsResponse, error) {
	f := ledger.HoldFilter{From: r.GetFrom(), State: holdStateNames[r.GetState()]}
	holds, next, err := s.Reader.Holds(ctx, callOf(ctx).identity.Tenant, f, page(r))
	return &pb.ListHoldsResponse{Holds: each(holds, renderHold), NextPageToken: next}, err
}
