package sale

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/sale/internal/db"
)

// Reader reads committed sales, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Sale returns a sale, and whether it is open by the database's clock. Returns fault SALE_NOT_FOUND.
func (r *Reader) Sale(ctx context.Context, k Key) (s Named, open bool, err error) {
	row, err := q.SaleGet(ctx, pg.Planned{DB: r.pool}, db.SaleGetParams{TenantID: k.Tenant, Sale: k.Sale})
	if errors.Is(err, pgx.ErrNoRows) {
		return s, false, notFound(k)
	}
	if err != nil {
		return s, false, err
	}
	s.Key = k
	s.Sale, err = saleOf(db.SalePageRow{Item: row.Item, Asset: row.Asset, Amount: row.Amount, Payee: row.Payee,
		PayWithinMs: row.PayWithinMs, Machine: row.Machine, Campaign: row.Campaign, CouponLifeMs: row.CouponLifeMs,
		Metadata: row.Metadata, PerBuyer: row.PerBuyer, Once: row.Once, OpensAt: row.OpensAt, ClosesAt: row.ClosesAt})
	return s, row.Open, err
}

// Sales lists sales by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Sales(ctx context.Context, tenant int32, size int, token string) ([]Named, string, error) {
	return paging.ReadNamed(paging.Of("sales", tenant), size, token,
		func(after string, n int32) ([]db.SalePageRow, error) {
			return q.SalePage(ctx, pg.Planned{DB: r.pool}, db.SalePageParams{TenantID: tenant, After: after, Count: n})
		}, func(row *db.SalePageRow) string { return row.Sale },
		func(row *db.SalePageRow) (Named, error) {
			s, err := saleOf(*row)
			return Named{Key{tenant, row.Sale}, s}, err
		})
}
