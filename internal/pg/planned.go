package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is what generated queries run on: a pool, a connection, a transaction.
type DB interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

// Planned plans every statement anew with its parameter values. A cached plan made on a small table would
// outlive its growth, and with one tenant every index looks equally selective.
//
// On a pool a statement sees the rows of the tenants of its context (see ForTenants), without a further round trip. A
// transaction set its tenants when it began.
type Planned struct{ DB DB }

// scoped returns the pool, and the tenants that the statement is to see, if both are there.
func (p Planned) scoped(ctx context.Context) (*pgxpool.Pool, string, bool) {
	pool, ok := p.DB.(*pgxpool.Pool)
	set := TenantsOf(ctx)
	return pool, set, ok && set != ""
}

func (p Planned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if pool, set, ok := p.scoped(ctx); ok {
		r, err := runForTenants(ctx, pool, set, sql, args)
		if err != nil {
			return pgconn.CommandTag{}, err
		}
		r.Close()
		return r.CommandTag(), r.Err()
	}
	return p.DB.Exec(ctx, sql, replanned(args)...)
}

func (p Planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if pool, set, ok := p.scoped(ctx); ok {
		r, err := runForTenants(ctx, pool, set, sql, args)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	return p.DB.Query(ctx, sql, replanned(args)...)
}

func (p Planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if pool, set, ok := p.scoped(ctx); ok {
		r, err := runForTenants(ctx, pool, set, sql, args)
		return row{r, err}
	}
	return p.DB.QueryRow(ctx, sql, replanned(args)...)
}

func replanned(args []any) []any {
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}
