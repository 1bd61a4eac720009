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

// Planned plans every statement anew with its parameter values. A cached plan made on a small table would
// outlive its growth, and with one tenant every index looks equally selective.
type Planned struct{ DB DB }

func (p Planned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.DB.Exec(ctx, sql, replanned(args)...)
}

func (p Planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.DB.Query(ctx, sql, replanned(args)...)
}

func (p Planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.DB.QueryRow(ctx, sql, replanned(args)...)
}

func replanned(args []any) []any {
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}
