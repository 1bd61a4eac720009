package settlement

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// pageSize is the size of all pages and batches of numbers.
const pageSize = 1000

const day = 24 * time.Hour

// books are the server's transactions and refunds of a gateway.
type books struct {
	client       *importer.Client
	gateway      *paymentv1.Gateway
	transactions map[string]*paymentv1.Transaction // by the gateway's number
	refunds      map[string]*paymentv1.Refund      // by our number
	byID         map[string]*paymentv1.Refund      // by the gateway's number
}

// pages reads all pages of a list.
func pages(page func(token string) (next string, err error)) error {
	for token := ""; ; {
		next, err := page(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// openBooks finds the gateway.
func openBooks(ctx context.Context, c *importer.Client, gateway string) (*books, error) {
	b := &books{client: c, transactions: map[string]*paymentv1.Transaction{}, refunds: map[string]*paymentv1.Refund{},
		byID: map[string]*paymentv1.Refund{}}
	err := pages(func(token string) (string, error) {
		r, err := importer.Call(ctx, c, "", c.Payments.ListGateways,
			&paymentv1.ListGatewaysRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return "", fmt.Errorf("list the gateways: %w", err)
		}
		for _, g := range r.GetGateways() {
			if g.GetGateway() == gateway {
				b.gateway = g
			}
		}
		return r.GetNextPageToken(), nil
	})
	if err == nil && b.gateway == nil {
		err = fmt.Errorf("the server has no gateway %q: create it with PutGateway, or name another with --gateway",
			gateway)
	}
	return b, err
}

// load reads the transactions and refunds of a period. A transaction may be recorded long after it was paid, so load
// lists those recorded from a day before the period until now, and keeps those that were paid in the period.
func (b *books) load(ctx context.Context, start, end time.Time, refundsFrom time.Time) error {
	r := &paymentv1.ListTransactionsRequest{Gateway: b.gateway.GetGateway(), PageSize: pageSize,
		StartTime: timestamppb.New(start.Add(-day))}
	if err := b.list(ctx, r, func(t *paymentv1.Transaction) bool {
		at := paidAt(t)
		return !at.Before(start) && at.Before(end)
	}); err != nil {
		return err
	}
	return b.listRefunds(ctx, &paymentv1.ListRefundsRequest{Gateway: b.gateway.GetGateway(),
		StartTime: timestamppb.New(refundsFrom), EndTime: timestamppb.New(end.Add(day)), PageSize: pageSize})
}

// paidAt is when a transaction was paid, by the gateway's clock, or else when it was recorded.
func paidAt(t *paymentv1.Transaction) time.Time {
	if t.GetPayTime() != nil {
		return t.GetPayTime().AsTime()
	}
	return t.GetRecordTime().AsTime()
}

func (b *books) list(ctx context.Context, r *paymentv1.ListTransactionsRequest,
	wanted func(*paymentv1.Transaction) bool) error {
	return pages(func(token string) (string, error) {
		r.PageToken = token
		page, err := importer.Call(ctx, b.client, "", b.client.Payments.ListTransactions, r)
		if err != nil {
			return "", fmt.Errorf("list the transactions: %w", err)
		}
		for _, t := range page.GetTransactions() {
			if wanted(t) {
				b.transactions[t.GetTransactionId()] = t
			}
		}
		return page.GetNextPageToken(), nil
	})
}

func (b *books) listRefunds(ctx context.Context, r *paymentv1.ListRefundsRequest) error {
	return pages(func(token string) (string, error) {
		r.PageToken = token
		page, err := importer.Call(ctx, b.client, "", b.client.Payments.ListRefunds, r)
		if err != nil {
			return "", fmt.Errorf("list the refunds: %w", err)
		}
		for _, x := range page.GetRefunds() {
			b.keep(x)
		}
		return page.GetNextPageToken(), nil
	})
}

func (b *books) keep(x *paymentv1.Refund) {
	if x.GetGateway() != b.gateway.GetGateway() {
		return
	}
	b.refunds[x.GetRefundNo()] = x
	if x.GetGatewayRefundId() != "" {
		b.byID[x.GetGatewayRefundId()] = x
	}
}

// complete looks up the transactions and refunds of lines that load did not find.
func (b *books) complete(ctx context.Context, lines []*line) error {
	var ids []string
	for _, l := range lines {
		if l.transactionID != "" && b.transactions[l.transactionID] == nil {
			ids = append(ids, l.transactionID)
		}
	}
	for len(ids) > 0 {
		n := min(len(ids), pageSize)
		r := &paymentv1.ListTransactionsRequest{Gateway: b.gateway.GetGateway(), TransactionIds: ids[:n],
			PageSize: pageSize}
		if err := b.list(ctx, r, func(*paymentv1.Transaction) bool { return true }); err != nil {
			return err
		}
		ids = ids[n:]
	}
	for _, l := range lines {
		if err := b.completeRefund(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// completeRefund looks up a refund by our number, or else among the refunds of its payment.
func (b *books) completeRefund(ctx context.Context, l *line) error {
	if l.kind != refund && l.kind != refundFailure || b.refund(l) != nil {
		return nil
	}
	if l.refundNo != "" {
		r, err := importer.Call(ctx, b.client, "", b.client.Payments.GetRefund,
			&paymentv1.GetRefundRequest{RefundNo: l.refundNo})
		if err == nil {
			b.keep(r.GetRefund())
		} else if connect.CodeOf(err) != connect.CodeNotFound {
			return fmt.Errorf("read the refund %s: %w", l.refundNo, err)
		}
		return nil
	}
	t := b.transactions[l.transactionID]
	if t == nil || t.GetOutTradeNo() == "" {
		return nil
	}
	return b.listRefunds(ctx, &paymentv1.ListRefundsRequest{OutTradeNo: t.GetOutTradeNo(), PageSize: pageSize})
}

// refund returns the refund of a line, or nil.
func (b *books) refund(l *line) *paymentv1.Refund {
	if l.refundNo != "" {
		return b.refunds[l.refundNo]
	}
	return b.byID[l.refundID]
}

// posting is the amount that a transfer of an earlier run has moved.
type posting struct{ asset, amount string }

// posted reads the transfers of a type on an account, by their biz_no.
func (b *books) posted(ctx context.Context, account, asset, kind string, from time.Time,
	into map[string]posting) error {
	return pages(func(token string) (string, error) {
		r, err := importer.Call(ctx, b.client, "", b.client.Ledger.ListEntries, &ledgerv1.ListEntriesRequest{
			Account: &ledgerv1.AccountRef{Code: account, Asset: asset}, Type: kind, StartTime: timestamppb.New(from),
			PageSize: pageSize, PageToken: token})
		if connect.CodeOf(err) == connect.CodeNotFound {
			return "", nil // the account will be created
		}
		if err != nil {
			return "", fmt.Errorf("list the entries of %s: %w", account, err)
		}
		for _, l := range r.GetLines() {
			into[l.GetBizNo()] = posting{asset, l.GetEntry().GetAmount()}
		}
		return r.GetNextPageToken(), nil
	})
}
