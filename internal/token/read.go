package token

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/token/internal/db"
)

// Reader looks up tokens outside the engine. It is safe for concurrent use.
type Reader struct{ pool pg.Planned }

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pg.Planned{DB: pool}} }

// Known reports whether a token was issued and has not been deleted, whatever its state.
func (r *Reader) Known(ctx context.Context, tenant int32, token string) (bool, error) {
	h := hashOf(token)
	return q.TokenKnown(ctx, r.pool, db.TokenKnownParams{TenantID: tenant, TokenHash: h[:]})
}

// Tokens describes the submit tokens to the cleaner.
func Tokens() clean.Table {
	return clean.Table{
		Name: "token_submit_tokens",
		Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64,
			error) {
			return q.TokenClean(ctx, tx, limit)
		},
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.TokenOverdue(ctx, tx) },
	}
}
