package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/payment"
)

func (s *Payments) ListTransactions(ctx context.Context, r *pb.ListTransactionsRequest) (*pb.ListTransactionsResponse,
	error) {
	p, err := periodOf(r.GetGateway(), r.GetStartTime(), r.GetEndTime(), "")
	if err != nil {
		return nil, err
	}
	list, next, err := s.Reader.Transactions(ctx, callOf(ctx).identity.Tenant, p, r.GetTransactionIds(),
		int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListTransactionsResponse{Transactions: eachOf(list, renderTransaction), NextPageToken: next}, err
}

// periodOf reads a period. Lists of one payment have none.
func periodOf(gateway string, start, end *timestamppb.Timestamp, outTradeNo string) (payment.Period, error) {
	var d decoder
	p := payment.Period{Gateway: gateway}
	p.From, p.Before = d.period(start, end)
	if outTradeNo != "" {
		d.bad("out_trade_no", "must not be set together with gateway, start_time or end_time")
	}
	return p, d.err()
}

func (s *Payments) refundsOf(ctx context.Context, r *pb.ListRefundsRequest) (*pb.ListRefundsResponse, error) {
	p, err := periodOf(r.GetGateway(), r.GetStartTime(), r.GetEndTime(), r.GetOutTradeNo())
	if err != nil {
		return nil, err
	}
	list, next, err := s.Reader.RefundsOf(ctx, callOf(ctx).identity.Tenant, p, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListRefundsResponse{Refunds: eachOf(list, renderRefund), NextPageToken: next}, err
}

func renderTransaction(t *payment.TransactionView) *pb.Transaction {
	return &pb.Transaction{Gateway: t.Gateway, TransactionId: t.ID, OutTradeNo: t.OutTradeNo, Currency: t.Currency,
		Asset: t.Asset, Amount: amount.Format(t.Amount, t.Scale), Account: t.Account,
		RefundingAmount: amount.Format(t.Refunding, t.Scale), RefundedAmount: amount.Format(t.GivenBack(), t.Scale),
		PayTime: timestamp(t.PaidAt), RecordTime: timestamp(t.RecordedAt)}
}
