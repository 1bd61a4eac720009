package lease

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fresh plans every query anew: reads are few, and a plan that was made when the tables were empty would
// read them whole for as long as its connection lives.
type fresh struct{ pool *pgxpool.Pool }

func planned(args []any) []any { return append([]any{pgx.QueryExecModeCacheDescribe}, args...) }

func (f fresh) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return f.pool.Exec(ctx, sql, planned(args)...)
}

func (f fresh) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return f.pool.Query(ctx, sql, planned(args)...)
}

func (f fresh) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return f.pool.QueryRow(ctx, sql, planned(args)...)
}
