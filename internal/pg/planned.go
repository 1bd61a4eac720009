package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what generated queries run on: a pool, a connection, a transaction.
type DB interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

// Planned has every statement planned anew, with its values. A plan kept from when the table was
// small would outlive that, and with one tenant every index looks as good as the right one.
type Planned struct{ DB DB }

// Exec runs a statement without rows.
func (p Planned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.DB.Exec(ctx, sql, anew(args)...)
}

// Query runs a statement for many rows.
func (p Planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.DB.Query(ctx, sql, anew(args)...)
}

// QueryRow runs a statement for one row.
func (p Planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.DB.QueryRow(ctx, sql, anew(args)...)
}

func anew(args []any) []any {
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}
