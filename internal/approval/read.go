package approval

import (
	"context"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/approval/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed requests, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader reads over a pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Content returns a request with its content, if there is one.
func (r *Reader) Content(ctx context.Context, k Key) (c Content, found bool, err error) {
	c.Key = k
	row, err := q.ApprovalGet(ctx, pg.Planned{DB: r.pool}, db.ApprovalGetParams{TenantID: k.Tenant, ApprovalID: k.ID})
	if errors.Is(err, pgx.ErrNoRows) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	c = Content{KeyID: pg.OrZero(row.KeyID), Bytes: row.Request, Request: requestOf(k.Tenant, &db.ApprovalPageRow{
		ApprovalID: row.ApprovalID, State: row.State, Expired: row.Expired, Operation: row.Operation,
		Reason: row.Reason, Principal: row.Principal, RequestID: row.RequestID, CreatedAt: row.CreatedAt,
		ExpiresAt: row.ExpiresAt, DecidedBy: row.DecidedBy, DecidedAt: row.DecidedAt, Note: row.Note})}
	c.Response = row.Response
	return c, true, nil
}

// Requests lists requests in a state, or in all states if s is empty, newest first. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Requests(ctx context.Context, tenant int32, s State, size int, token string) ([]Request, string,
	error) {
	return paging.ReadNumbered(paging.Of("approvals", tenant, string(s)), size, token, math.MaxInt64,
		func(before int64, n int32) ([]db.ApprovalPageRow, error) { return r.page(ctx, tenant, s, before, n) },
		func(row *db.ApprovalPageRow) int64 { return row.ApprovalID },
		func(row *db.ApprovalPageRow) (Request, error) { return requestOf(tenant, row), nil })
}

func (r *Reader) page(ctx context.Context, tenant int32, s State, before int64, n int32) (rows []db.ApprovalPageRow,
	err error) {
	d := pg.Planned{DB: r.pool}
	if s == "" {
		return q.ApprovalPage(ctx, d, db.ApprovalPageParams{TenantID: tenant, BeforeID: before, Count: n})
	}
	arg := db.ApprovalPageOfStateParams{TenantID: tenant, State: string(s), BeforeID: before, Count: n}
	if s == Expired {
		arg.State, arg.Expired = string(Open), true
	}
	found, err := q.ApprovalPageOfState(ctx, d, arg)
	for _, row := range found {
		rows = append(rows, db.ApprovalPageRow(row))
	}
	return rows, err
}

func requestOf(tenant int32, r *db.ApprovalPageRow) Request {
	x := Request{Key: Key{tenant, r.ApprovalID}, State: State(r.State), Operation: r.Operation,
		Reason: pg.OrZero(r.Reason), Principal: r.Principal, RequestID: r.RequestID, CreatedAt: r.CreatedAt,
		ExpiresAt: r.ExpiresAt, DecidedBy: pg.OrZero(r.DecidedBy), DecidedAt: pg.OrZero(r.DecidedAt),
		Note: pg.OrZero(r.Note)}
	if r.Expired {
		x.State = Expired
	}
	return x
}
