package report

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/report/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Finder finds messages by providers' numbers.
type Finder struct{ pool *pgxpool.Pool }

// NewFinder makes one over the service's own pool.
func NewFinder(pool *pgxpool.Pool) *Finder { return &Finder{pool} }

// Tenant gives the tenant whose message has a number at a provider. 0: there is none, or more than one has it.
func (f *Finder) Tenant(ctx context.Context, provider, providerMessageID string) (int32, error) {
	found, err := db.New().SentTenant(ctx, pg.Planned{DB: f.pool},
		db.SentTenantParams{Provider: &provider, ProviderMessageID: &providerMessageID})
	if err != nil || len(found) != 1 {
		return 0, err
	}
	return found[0], nil
}
