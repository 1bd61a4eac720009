package approval

import (
	"cmp"
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

const defaultPage = 100

// Requests lists requests in a state, the newest first; without a state, all. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) Requests(ctx context.Context, tenant int32, s State, size int, token string) (list []Request,
	next string, err error) {
	size = cmp.Or(size, defaultPage)
	pages := paging.Of("approvals", tenant, string(s))
	before, err := pages.AfterNumber(token, math.MaxInt64)
	if err != nil {
		return nil, "", err
	}
	d := pg.Planned{DB: r.pool}
	var rows []db.ApprovalPageRow
	if s == "" {
		rows, err = q.ApprovalPage(ctx, d, db.ApprovalPageParams{TenantID: tenant, BeforeID: before,
			Count: int32(size) + 1})
	} else {
		arg := db.ApprovalPageOfStateParams{TenantID: tenant, State: string(s), BeforeID: before,
			Count: int32(size) + 1}
		if s == Expired {
			arg.State, arg.Expired = string(Open), true
		}
		var found []db.ApprovalPageOfStateRow
		found, err = q.ApprovalPageOfState(ctx, d, arg)
		for _, row := range found {
			rows = append(rows, db.ApprovalPageRow(row))
		}
	}
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = pages.TokenNumber(rows[size-1].ApprovalID)
	}
	for i := range rows {
		list = append(list, requestOf(tenant, &rows[i]))
	}
	return list, next, nil
}

func requestOf(tenant int32, r *db.ApprovalPageRow) Request {
	x := Request{Key: Key{tenant, r.ApprovalID}, State: State(r.State), Operation: r.Operation,
		Reason: pg.OrZero(r.Reason), Principal: r.Principal, RequestID: r.RequestID, CreatedAt: r.CreatedAt.UTC(),
		ExpiresAt: r.ExpiresAt.UTC(), DecidedBy: pg.OrZero(r.DecidedBy), DecidedAt: pg.OrZero(r.DecidedAt),
		Note: pg.OrZero(r.Note)}
	if r.Expired {
		x.State = Expired
	}
	return x
}
