package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// DueHold is an open hold past its expiry.
type DueHold struct {
	Account   AccountKey
	ID        int64
	ExpiresAt time.Time
}

// DueHolds finds open holds that expired at least delay ago, oldest first, after the given hold. An ExpireCommand for
// each account makes them expire. Correctness does not depend on promptness, because loading an account makes its due
// holds expire too.
func DueHolds(ctx context.Context, pool *pgxpool.Pool, delay time.Duration, after DueHold, limit int32) ([]DueHold,
	error) {
	rows, err := q.HoldDuePage(pg.ForAllTenants(ctx), pg.Planned{DB: pool},
		db.HoldDuePageParams{DelayS: delay.Seconds(), After: after.ExpiresAt, AfterID: after.ID, Batch: limit})
	holds := make([]DueHold, len(rows))
	for i, r := range rows {
		holds[i] = DueHold{AccountKey{r.TenantID, r.Code, r.Asset}, r.HoldID, r.ExpiresAt}
	}
	return holds, err
}

// AccountsOf returns the distinct accounts of holds.
func AccountsOf(holds []DueHold) []AccountKey {
	accounts := make([]AccountKey, len(holds))
	for i, h := range holds {
		accounts[i] = h.Account
	}
	slices.SortFunc(accounts, func(a, b AccountKey) int { return a.compare(&b) })
	return slices.Compact(accounts)
}
