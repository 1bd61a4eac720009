package token

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/token/internal/db"
)

// Reader looks at tokens beside the engine. Safe for many goroutines.
type Reader struct{ pool pg.Planned }

// NewReader makes a reader over the service's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pg.Planned{DB: pool}} }

// Known tells whether a token was issued, whatever became of it, and is not forgotten yet.
func (r *Reader) Known(ctx context.Context, tenant int32, token string) (bool, error) {
	h := hashOf(token)
	return q.TokenKnown(ctx, r.pool, db.TokenKnownParams{TenantID: tenant, TokenHash: h[:]})
}

// Tokens are the submit tokens, as the cleaner sees them.
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
