package payment

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// TransactionView is a stored transaction.
type TransactionView struct {
	TransactionKey
	Transaction
	PaidAt     time.Time // by the gateway's clock; zero: not stated
	RecordedAt time.Time
}

// Period selects rows that were recorded between two times, of a gateway or, if it is empty, of all. A zero time is
// open.
type Period struct {
	Gateway      string
	From, Before time.Time
}

// noEnd is later than every recorded time.
var noEnd = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (p *Period) list(name string, tenant int32, more ...string) paging.List {
	return paging.Of(name, tenant, append([]string{p.Gateway, p.From.UTC().Format(time.RFC3339Nano),
		p.Before.UTC().Format(time.RFC3339Nano)}, more...)...)
}

func (p *Period) before() time.Time {
	if p.Before.IsZero() {
		return noEnd
	}
	return p.Before
}

// moment is a position in a list that is sorted by time and id.
type moment struct {
	at time.Time
	id int64
}

func (m moment) token(l paging.List) string {
	return l.Token(m.at.UTC().Format(time.RFC3339Nano), strconv.FormatInt(m.id, 10))
}

// momentOf reads a token. An empty one is after everything.
func momentOf(l paging.List, token string) (m moment, err error) {
	at, err := l.After(token, 2)
	if err != nil || at == nil {
		return moment{at: noEnd}, err
	}
	if m.at, err = time.Parse(time.RFC3339Nano, at[0]); err == nil {
		m.id, err = strconv.ParseInt(at[1], 10, 64)
	}
	return m, err // the token is bound to its text, which is ours
}

// Transactions lists the transactions of a period, the newest first; if there are ids, only those with these ids.
// Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Transactions(ctx context.Context, tenant int32, p Period, ids []string, size int,
	token string) ([]TransactionView, string, error) {
	if ids != nil && p.Gateway == "" {
		return nil, "", fault.InvalidField("transaction_ids", "needs gateway: numbers are unique within one")
	}
	pages := p.list("transactions", tenant, strings.Join(ids, "\x00"))
	after, err := momentOf(pages, token)
	if err != nil {
		return nil, "", err
	}
	return paging.Read(size, func(n int32) ([]db.TransactionPageRow, error) {
		return q.TransactionPage(ctx, pg.Planned{DB: r.pool}, db.TransactionPageParams{TenantID: tenant,
			Gateway: p.Gateway, TransactionIds: append([]string{}, ids...), StartAt: p.From, EndAt: p.before(),
			BeforeAt: after.at, BeforeID: after.id, Count: n})
	}, func(f *db.TransactionPageRow) string { return moment{f.RecordedAt, f.NoticeID}.token(pages) },
		func(f *db.TransactionPageRow) (TransactionView, error) {
			return TransactionView{TransactionKey: TransactionKey{tenant, f.Gateway, f.TransactionID},
				Transaction: Transaction{f.OutTradeNo, f.NoticeID, f.Currency, pg.OrZero(f.Asset), uint8(f.Scale),
					f.Amount, pg.OrZero(f.Account), f.Refunding, f.Refunded, f.ExtraRefunded},
				PaidAt: pg.OrZero(f.OccurredAt), RecordedAt: f.RecordedAt}, nil
		})
}

// RefundsOf lists the refunds that were created in a period, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) RefundsOf(ctx context.Context, tenant int32, p Period, size int, token string) ([]RefundView,
	string, error) {
	pages := p.list("refunds of", tenant)
	after, err := momentOf(pages, token)
	if err != nil {
		return nil, "", err
	}
	return paging.Read(size, func(n int32) ([]db.RefundPeriodRow, error) {
		return q.RefundPeriod(ctx, pg.Planned{DB: r.pool}, db.RefundPeriodParams{TenantID: tenant,
			Gateway: p.Gateway, StartAt: p.From, EndAt: p.before(), BeforeAt: after.at, BeforeID: after.id, Count: n})
	}, func(f *db.RefundPeriodRow) string { return moment{f.CreatedAt, f.RefundID}.token(pages) },
		func(f *db.RefundPeriodRow) (RefundView, error) { return refundOf(tenant, db.RefundPageRow(*f)), nil })
}
