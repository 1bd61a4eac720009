package coupon

import (
	"context"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/coupon/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed coupons, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Coupon returns a coupon as it counts now. Returns fault COUPON_NOT_FOUND.
func (r *Reader) Coupon(ctx context.Context, k Key) (View, error) {
	row, err := q.CouponGet(ctx, pg.Planned{DB: r.pool}, db.CouponGetParams{TenantID: k.Tenant, Code: k.Code})
	if errors.Is(err, pgx.ErrNoRows) {
		return View{}, notFound(k)
	}
	if err != nil {
		return View{}, err
	}
	return viewOf(k.Tenant, db.CouponPageRow(row)), nil
}

func viewOf(tenant int32, r db.CouponPageRow) View {
	return View{Coupon{Key: Key{tenant, r.Code}, ID: r.CouponID, Campaign: r.Campaign, ExpiresAt: r.ExpiresAt,
		Metadata: pg.Metadata(r.Metadata), Principal: r.Principal, RequestID: r.RequestID, CreatedAt: r.CreatedAt},
		State{State: r.State, Owner: pg.OrZero(r.Owner), Cause: r.Cause, ChangedAt: r.ChangedAt}}
}

// Filter selects coupons. Empty texts match all; a campaign or an owner must be set.
type Filter struct{ Campaign, Owner, State string }

// Coupons lists coupons, the newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Coupons(ctx context.Context, tenant int32, f Filter, size int, token string) ([]View, string, error) {
	return paging.ReadNumbered(paging.Of("coupons", tenant, f.Campaign, f.Owner, f.State), size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.CouponPageRow, error) {
			return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.CouponPageRow, error) {
				return f.page(ctx, d, tenant, before, n)
			})
		}, func(row *db.CouponPageRow) int64 { return row.CouponID },
		func(row *db.CouponPageRow) (View, error) { return viewOf(tenant, *row), nil })
}

func (f Filter) page(ctx context.Context, d pg.DB, tenant int32, before int64, n int32) (rows []db.CouponPageRow,
	err error) {
	if f.Owner == "" {
		return q.CouponPage(ctx, d, db.CouponPageParams{TenantID: tenant, Campaign: f.Campaign, State: f.State,
			BeforeID: before, Count: n})
	}
	found, err := q.CouponPageOfOwner(ctx, d, db.CouponPageOfOwnerParams{TenantID: tenant, Owner: f.Owner,
		Campaign: f.Campaign, State: f.State, BeforeID: before, Count: n})
	for _, row := range found {
		rows = append(rows, db.CouponPageRow(row))
	}
	return rows, err
}
