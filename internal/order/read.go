package order

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/order/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// State is the state of an order: what its instance says.
type State struct {
	State     string
	Revision  int64
	Cause     string
	TimerAt   time.Time // when it leaves the state by itself; zero: never
	TimerTo   string
	ChangedAt time.Time
}

// View is an order with its state.
type View struct {
	Order
	State
}

// PayBefore is the time until which the order has to be paid. Zero: it is not awaiting payment, or has no such time.
func (v *View) PayBefore() time.Time {
	if v.Revision != 1 {
		return time.Time{}
	}
	return v.TimerAt
}

// Reader reads committed orders, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Order returns an order as it counts now. Returns fault ORDER_NOT_FOUND.
func (r *Reader) Order(ctx context.Context, k Key) (View, error) {
	row, err := q.OrderGet(ctx, pg.Planned{DB: r.pool}, db.OrderGetParams{TenantID: k.Tenant, OrderNo: k.OrderNo})
	if errors.Is(err, pgx.ErrNoRows) {
		return View{}, notFound(k)
	}
	if err != nil {
		return View{}, err
	}
	return viewOf(k.Tenant, db.OrderPageRow(row))
}

// viewOf converts a row to an order as it counts at the time of the read.
func viewOf(tenant int32, r db.OrderPageRow) (View, error) {
	o, err := read(Key{tenant, r.OrderNo}, db.OrderLookupRow{OrderID: r.OrderID, Machine: r.Machine, Subject: r.Subject,
		Asset: r.Asset, Scale: r.Scale, Amount: r.Amount, Lines: r.Lines, Payee: r.Payee, PayWithinMs: r.PayWithinMs,
		LifeMs: r.LifeMs, Reserve: r.Reserve, BalanceAccount: r.BalanceAccount, BalanceAmount: r.BalanceAmount,
		PurchaseParts: r.PurchaseParts, PurchaseLifeMs: r.PurchaseLifeMs, Metadata: r.Metadata,
		Coupon: r.Coupon, Sale: r.Sale, SaleUnit: r.SaleUnit, Once: r.Once, Principal: r.Principal,
		RequestID: r.RequestID, CreatedAt: r.CreatedAt})
	v := View{o, State{State: r.State, Revision: r.Revision, Cause: r.Cause, ChangedAt: r.ChangedAt}}
	if !r.Due {
		v.TimerAt, v.TimerTo = pg.OrZero(r.TimerAt), pg.OrZero(r.TimerTo)
	}
	return v, err
}

// Filter selects orders. Empty texts and zero times match all; a state needs a machine.
type Filter struct {
	Subject, Machine, State string
	From, Before            time.Time // created at or after, and before
}

// Page requests a part of a list: a size, or 0 for the default, and the token returned with the previous page.
type Page struct {
	Size  int
	Token string
}

// Orders lists orders, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Orders(ctx context.Context, tenant int32, f Filter, page Page) ([]View, string, error) {
	start, end := time.Time{}, lastTime
	if !f.From.IsZero() {
		start = f.From
	}
	if !f.Before.IsZero() {
		end = f.Before
	}
	pages := paging.Of("orders", tenant, f.Subject, f.Machine, f.State, start.Format(time.RFC3339Nano),
		end.Format(time.RFC3339Nano))
	before, lastID, err := place(pages, page.Token)
	if err != nil {
		return nil, "", err
	}
	beforeID := lastID
	if before.After(end) {
		before, beforeID = end, 0 // else the index would be read from its newest row down
	}
	fetch := func(d pg.DB, n int32) ([]db.OrderPageRow, error) {
		switch {
		case f.Subject != "":
			found, err := q.OrderPageOfSubject(ctx, d, db.OrderPageOfSubjectParams{TenantID: tenant, Subject: f.Subject,
				Machine: f.Machine, State: f.State, Before: before, BeforeID: beforeID, StartAt: start, EndAt: end,
				Count: n})
			return convert(found, func(x db.OrderPageOfSubjectRow) db.OrderPageRow { return db.OrderPageRow(x) }), err
		case f.State != "":
			found, err := q.OrderPageOfState(ctx, d, db.OrderPageOfStateParams{TenantID: tenant, Machine: f.Machine,
				State: f.State, BeforeID: lastID, StartAt: start, EndAt: end, Count: n})
			return convert(found, func(x db.OrderPageOfStateRow) db.OrderPageRow { return db.OrderPageRow(x) }), err
		default:
			return q.OrderPage(ctx, d, db.OrderPageParams{TenantID: tenant, Machine: f.Machine, Before: before,
				BeforeID: beforeID, StartAt: start, EndAt: end, Count: n})
		}
	}
	return paging.Read(page.Size, func(n int32) ([]db.OrderPageRow, error) {
		return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.OrderPageRow, error) { return fetch(d, n) })
	}, func(x *db.OrderPageRow) string {
		return pages.Token(x.CreatedAt.Format(time.RFC3339Nano), strconv.FormatInt(x.OrderID, 10))
	}, func(x *db.OrderPageRow) (View, error) { return viewOf(tenant, *x) })
}

// lastTime is after all times of requests.
var lastTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)

// place is where a page begins: before a time, and an id.
func place(pages paging.List, token string) (time.Time, int64, error) {
	at, err := pages.After(token, 2)
	if err != nil || at == nil {
		return lastTime, math.MaxInt64, err
	}
	before, err := time.Parse(time.RFC3339Nano, at[0])
	if err != nil {
		return before, 0, err // the token is bound to its text, which is ours
	}
	id, err := strconv.ParseInt(at[1], 10, 64)
	return before, id, err
}

func convert[A, B any](list []A, to func(A) B) []B {
	converted := make([]B, len(list))
	for i, x := range list {
		converted[i] = to(x)
	}
	return converted
}
