package webhook

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/webhook/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed endpoints without locks. Safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader returns a reader that uses the service's pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Endpoint returns an endpoint. Returns fault WEBHOOK_ENDPOINT_NOT_FOUND.
func (r *Reader) Endpoint(ctx context.Context, k Key) (Endpoint, error) {
	found, err := q.EndpointGet(ctx, pg.Planned{DB: r.pool}, db.EndpointGetParams{TenantID: k.Tenant, Name: k.Name})
	if errors.Is(err, pgx.ErrNoRows) {
		return Endpoint{}, notFound(k)
	}
	if err != nil {
		return Endpoint{}, err
	}
	return endpointOf(k, found), nil
}

// List returns one page of a tenant's endpoints by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, size int, token string) ([]Endpoint, string, error) {
	return paging.ReadNamed(paging.Of("notify_endpoints", tenant), size, token,
		func(after string, n int32) ([]db.EndpointPageRow, error) {
			return q.EndpointPage(ctx, pg.Planned{DB: r.pool},
				db.EndpointPageParams{TenantID: tenant, After: after, Count: n})
		}, func(f *db.EndpointPageRow) string { return f.Name },
		func(f *db.EndpointPageRow) (Endpoint, error) {
			return endpointOf(Key{tenant, f.Name}, db.EndpointGetRow(*f)), nil
		})
}
