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

const defaultPage = 100

// Sales lists sales by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Sales(ctx context.Context, tenant int32, size int, token string) (list []Named, next string,
	err error) {
	if size == 0 {
		size = defaultPage
	}
	pages := paging.Of("sales", tenant)
	after, err := pages.After(token, 1)
	if err != nil {
		return nil, "", err
	}
	if after == nil {
		after = []string{""}
	}
	rows, err := q.SalePage(ctx, pg.Planned{DB: r.pool},
		db.SalePageParams{TenantID: tenant, After: after[0], Count: int32(size) + 1})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = pages.Token(rows[size-1].Sale)
	}
	for _, row := range rows {
		s, err := saleOf(row)
		if err != nil {
			return nil, "", err
		}
		list = append(list, Named{Key{tenant, row.Sale}, s})
	}
	return list, next, nil
}
