package claim

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/claim/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader serves reads from committed rows, outside the engine. It is safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a Reader on the server's own pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Claim returns a claim, or fault CLAIM_NOT_FOUND if the key is not claimed now.
func (r *Reader) Claim(ctx context.Context, k Key) (Claim, error) {
	row, err := q.ClaimGet(ctx, pg.Planned{DB: r.pool},
		db.ClaimGetParams{TenantID: k.Tenant, Scope: k.Scope, Key: k.Key})
	if errors.Is(err, pgx.ErrNoRows) {
		return Claim{}, NotFound.New("the key is not claimed").With("scope", k.Scope).With("key", k.Key).
			WithField("key", "must be a key that is claimed")
	}
	if err != nil {
		return Claim{}, err
	}
	return read(&row)
}
