package report

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/report/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Finder finds messages by provider_message_id.
type Finder struct{ pool *pgxpool.Pool }

// NewFinder returns a finder that uses the service's pool.
func NewFinder(pool *pgxpool.Pool) *Finder { return &Finder{pool} }

// Tenant returns the tenant of the message with a provider_message_id; 0 if there is none, or more than one.
func (f *Finder) Tenant(ctx context.Context, provider, providerMessageID string) (int32, error) {
	found, err := db.New().SentTenant(pg.ForAllTenants(ctx), pg.Planned{DB: f.pool},
		db.SentTenantParams{Provider: &provider, ProviderMessageID: &providerMessageID})
	if err != nil || len(found) != 1 {
		return 0, err
	}
	return found[0], nil
}
