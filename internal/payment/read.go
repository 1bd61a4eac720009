package payment

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// State is the state of the instance of a payment or refund.
type State struct {
	State     string
	Revision  int64
	ChangedAt time.Time
}

// View is a payment with its state and its refunds.
type View struct {
	Payment
	State
	Refunding, Refunded amount.Int
	// Lease is the lease of the first call at the gateway, if the creator of the payment makes the call itself.
	Lease *Leased
}

// RefundView is a refund with its state.
type RefundView struct {
	Refund
	State
	Lease *Leased // as in View
}

// NamedGateway is a gateway with its name.
type NamedGateway struct {
	Name string
	Gateway
}

// NoticeView is a stored notice.
type NoticeView struct {
	ID      int64
	Gateway string
	Received
	Amount     string // as stored; it hides Received.Amount
	Effect     Effect
	Detail     string
	RequestID  string
	RecordedAt time.Time
}

// FlagView is a flag with its id.
type FlagView struct {
	ID int64
	Flag
}

// Reader reads committed payments, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Payment returns a payment. Returns fault PAYMENT_NOT_FOUND.
func (r *Reader) Payment(ctx context.Context, k Key) (View, error) {
	row, err := q.PaymentGet(ctx, pg.Planned{DB: r.pool},
		db.PaymentGetParams{TenantID: k.Tenant, OutTradeNo: k.OutTradeNo})
	if errors.Is(err, pgx.ErrNoRows) {
		return View{}, notFound(k)
	}
	if err != nil {
		return View{}, err
	}
	return viewOf(k.Tenant, db.PaymentPageRow(row))
}

func viewOf(tenant int32, f db.PaymentPageRow) (View, error) {
	v := View{Payment: Payment{Key: Key{tenant, f.OutTradeNo}, ID: f.PaymentID, OrderNo: f.OrderNo, Gateway: f.Gateway,
		PayType: f.PayType, Attempt: f.Attempt, Asset: f.Asset, Scale: uint8(f.Scale), Amount: f.Amount,
		Payee: f.Payee, Details: Details{pg.OrZero(f.Description), pg.OrZero(f.Payer), pg.OrZero(f.PayerIp),
			pg.OrZero(f.ReturnUrl)},
		ExpiresAt: pg.OrZero(f.ExpiresAt), Principal: f.Principal, RequestID: f.RequestID,
		CreatedAt: f.CreatedAt,
		Progress: Progress{TransactionID: pg.OrZero(f.TransactionID), PaidAt: pg.OrZero(f.PaidAt),
			FailureCode: pg.OrZero(f.FailureCode), FailureText: pg.OrZero(f.FailureText)}},
		State:     State{f.State, f.Revision, f.ChangedAt},
		Refunding: f.Refunding, Refunded: f.Refunded}
	return v, pg.FromJSON(f.Credential, &v.Credential)
}

// Payments lists payments of an order, or all, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Payments(ctx context.Context, tenant int32, orderNo string, size int, token string) ([]View, string,
	error) {
	return paging.ReadNumbered(paging.Of("payments", tenant, orderNo), size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.PaymentPageRow, error) {
			return q.PaymentPage(ctx, pg.Planned{DB: r.pool}, db.PaymentPageParams{TenantID: tenant, OrderNo: orderNo,
				BeforeID: before, Count: n})
		}, func(x *db.PaymentPageRow) int64 { return x.PaymentID },
		func(x *db.PaymentPageRow) (View, error) { return viewOf(tenant, *x) })
}

// Refund returns a refund. Returns fault REFUND_NOT_FOUND.
func (r *Reader) Refund(ctx context.Context, k RefundKey) (RefundView, error) {
	row, err := q.RefundGet(ctx, pg.Planned{DB: r.pool}, db.RefundGetParams{TenantID: k.Tenant, RefundNo: k.RefundNo})
	if errors.Is(err, pgx.ErrNoRows) {
		return RefundView{}, RefundNotFound.New("there is no refund %s", k.RefundNo).With("refund_no", k.RefundNo).
			WithField("refund_no", "must be the number of a refund that exists")
	}
	return refundOf(k.Tenant, db.RefundPageRow(row)), err
}

func refundOf(tenant int32, f db.RefundPageRow) RefundView {
	return RefundView{Refund: Refund{RefundKey: RefundKey{tenant, f.RefundNo}, ID: f.RefundID, OutTradeNo: f.OutTradeNo,
		Gateway: f.Gateway, TransactionID: f.TransactionID, Currency: f.Currency, Asset: pg.OrZero(f.Asset),
		Scale: uint8(f.Scale), Amount: f.Amount, Account: pg.OrZero(f.Account), MovesOrder: f.MovesOrder,
		Reason: pg.OrZero(f.Reason), Principal: f.Principal, RequestID: f.RequestID, CreatedAt: f.CreatedAt,
		GatewayRefundID: pg.OrZero(f.GatewayRefundID), FailureCode: pg.OrZero(f.FailureCode),
		FailureText: pg.OrZero(f.FailureText)}, State: State{f.State, f.Revision, f.ChangedAt}}
}

// Refunds lists refunds of a payment, or all, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Refunds(ctx context.Context, tenant int32, outTradeNo string, size int, token string) ([]RefundView,
	string, error) {
	return paging.ReadNumbered(paging.Of("refunds", tenant, outTradeNo), size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.RefundPageRow, error) {
			return q.RefundPage(ctx, pg.Planned{DB: r.pool}, db.RefundPageParams{TenantID: tenant,
				OutTradeNo: outTradeNo, BeforeID: before, Count: n})
		}, func(x *db.RefundPageRow) int64 { return x.RefundID },
		func(x *db.RefundPageRow) (RefundView, error) { return refundOf(tenant, *x), nil })
}

// Notices lists the notices about a payment, or all, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Notices(ctx context.Context, tenant int32, outTradeNo string, size int, token string) ([]NoticeView,
	string, error) {
	return paging.ReadNumbered(paging.Of("notices", tenant, outTradeNo), size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.NoticePageRow, error) {
			return q.NoticePage(ctx, pg.Planned{DB: r.pool}, db.NoticePageParams{TenantID: tenant,
				OutTradeNo: outTradeNo, BeforeID: before, Count: n})
		}, func(x *db.NoticePageRow) int64 { return x.NoticeID },
		func(f *db.NoticePageRow) (NoticeView, error) {
			v := NoticeView{ID: f.NoticeID, Gateway: f.Gateway, Amount: pg.OrZero(f.Amount),
				Effect: Effect(f.Effect), Detail: pg.OrZero(f.Detail), RequestID: f.RequestID,
				RecordedAt: f.RecordedAt,
				Received: Received{Callback: f.Callback, Body: f.Body, Notice: gateway.Notice{ID: f.NotifyID,
					Kind: gateway.Kind(f.Kind), OutTradeNo: f.OutTradeNo, TransactionID: pg.OrZero(f.TransactionID),
					RefundNo: pg.OrZero(f.RefundNo), Currency: pg.OrZero(f.Currency),
					At: pg.OrZero(f.OccurredAt)}}}
			return v, pg.FromJSON(f.Headers, &v.Header)
		})
}

// Waiting returns the notices of a payment that came before it, the oldest first, with the request id of each.
func (r *Reader) Waiting(ctx context.Context, k Key) (list []Stored, requests []string, err error) {
	rows, err := q.NoticeWaiting(ctx, pg.Planned{DB: r.pool}, db.NoticeWaitingParams{TenantID: k.Tenant,
		OutTradeNo: k.OutTradeNo, Most: MaxUnknown})
	for _, f := range rows {
		s := Stored{Gateway: f.Gateway,
			Received: Received{Asset: pg.OrZero(f.Asset), Callback: f.Callback, Body: f.Body}}
		if err := errors.Join(pg.FromJSON(f.Fields, &s.Notice), pg.FromJSON(f.Headers, &s.Header)); err != nil {
			return nil, nil, err
		}
		list, requests = append(list, s), append(requests, f.RequestID)
	}
	return list, requests, err
}

// Flags lists flags in a state, or all if it is empty, the oldest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Flags(ctx context.Context, tenant int32, state string, size int, token string) ([]FlagView, string,
	error) {
	return paging.ReadNumbered(paging.Of("flags", tenant, state), size, token, 0,
		func(after int64, n int32) ([]db.FlagPageRow, error) {
			return q.FlagPage(ctx, pg.Planned{DB: r.pool}, db.FlagPageParams{TenantID: tenant, State: state,
				AfterID: after, Count: n})
		}, func(f *db.FlagPageRow) int64 { return f.FlagID },
		func(f *db.FlagPageRow) (FlagView, error) {
			return FlagView{f.FlagID, flagOf(&db.FlagLookupRow{Kind: f.Kind, Detail: f.Detail,
				Gateway: f.Gateway, TransactionID: f.TransactionID, OutTradeNo: f.OutTradeNo, OrderNo: f.OrderNo,
				Currency: f.Currency, Asset: f.Asset, Scale: f.Scale, Amount: f.Amount, Account: f.Account,
				AboutRefund: f.AboutRefund, RequestID: f.RequestID, CreatedAt: f.CreatedAt, State: f.State,
				Resolution: f.Resolution, Target: f.Target, RefundNo: f.RefundNo, Note: f.Note,
				ResolvedBy: f.ResolvedBy, ResolvedRequestID: f.ResolvedRequestID, ResolvedAt: f.ResolvedAt})}, nil
		})
}

// Gateways lists gateways by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Gateways(ctx context.Context, tenant int32, size int, token string) ([]NamedGateway, string, error) {
	return paging.ReadNamed(paging.Of("gateways", tenant), size, token,
		func(after string, n int32) ([]db.GatewayPageRow, error) {
			return q.GatewayPage(ctx, pg.Planned{DB: r.pool},
				db.GatewayPageParams{TenantID: tenant, After: after, Count: n})
		}, func(f *db.GatewayPageRow) string { return f.Gateway },
		func(f *db.GatewayPageRow) (NamedGateway, error) {
			return NamedGateway{f.Gateway, gatewayOf(f.Clearing, f.Suspense, f.Payee)}, nil
		})
}

// NumberOf returns the number of the payment of a refund or transaction, or "" if it is unknown: some notices name only
// the refund or the transaction. gatewayRefundID is the gateway's id of the refund.
func (r *Reader) NumberOf(ctx context.Context, k GatewayKey, refundNo, gatewayRefundID, transactionID string) (string,
	error) {
	if refundNo != "" {
		row, err := q.RefundGet(ctx, pg.Planned{DB: r.pool}, db.RefundGetParams{TenantID: k.Tenant, RefundNo: refundNo})
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return row.OutTradeNo, err
		}
	}
	if gatewayRefundID != "" {
		number, err := q.PaymentOfName(ctx, pg.Planned{DB: r.pool}, db.PaymentOfNameParams{TenantID: k.Tenant,
			Gateway: k.Gateway, NotifyID: RefundName(k, gatewayRefundID).ID})
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return number, err
		}
	}
	if transactionID == "" {
		return "", nil
	}
	row, err := q.TransactionGet(ctx, pg.Planned{DB: r.pool},
		db.TransactionGetParams{TenantID: k.Tenant, Gateway: k.Gateway, TransactionID: transactionID})
	if !errors.Is(err, pgx.ErrNoRows) {
		return row.OutTradeNo, err
	}
	number, err := q.PaymentOfTransaction(ctx, pg.Planned{DB: r.pool}, // the transaction is not recorded yet
		db.PaymentOfTransactionParams{TenantID: k.Tenant, Gateway: k.Gateway, TransactionID: transactionID})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return number, err
}

// Paid is the amount of a transaction, in major units, or zero.
func (r *Reader) Paid(ctx context.Context, k TransactionKey) (amount.Decimal, error) {
	row, err := q.TransactionGet(ctx, pg.Planned{DB: r.pool},
		db.TransactionGetParams{TenantID: k.Tenant, Gateway: k.Gateway, TransactionID: k.ID})
	if errors.Is(err, pgx.ErrNoRows) {
		return amount.Decimal{}, nil
	}
	return amount.NewDecimal(row.Amount, uint8(row.Scale)), err
}
