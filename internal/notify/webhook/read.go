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

const (
	pageDefault = 100
	pageMax     = 1_000
)

// List returns one page of a tenant's endpoints by name. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, size int,
	token string) (endpoints []Endpoint, next string, err error) {
	pages := paging.Of("notify_endpoints", tenant)
	place, err := pages.After(token, 1)
	if err != nil {
		return nil, "", err
	}
	if size = min(size, pageMax); size <= 0 {
		size = pageDefault
	}
	arg := db.EndpointPageParams{TenantID: tenant, Count: int32(size + 1)}
	if place != nil {
		arg.After = place[0]
	}
	found, err := q.EndpointPage(ctx, pg.Planned{DB: r.pool}, arg)
	for _, f := range found {
		endpoints = append(endpoints, endpointOf(Key{tenant, f.Name},
			db.EndpointGetRow{EndpointID: f.EndpointID, Url: f.Url, Types: f.Types,
				Description: f.Description, DisabledFor: f.DisabledFor, DisabledAt: f.DisabledAt,
				SecretVersion: f.SecretVersion,
				PreviousUntil: f.PreviousUntil, FailingSince: f.FailingSince, FailedAt: f.FailedAt,
				CreatedAt: f.CreatedAt,
				ChangedAt: f.ChangedAt,
				Principal: f.Principal, RequestID: f.RequestID}))
	}
	if len(endpoints) > size {
		endpoints = endpoints[:size]
		next = pages.Token(endpoints[size-1].Name)
	}
	return endpoints, next, err
}
