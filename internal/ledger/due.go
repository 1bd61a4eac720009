package ledger

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DueAccounts finds some accounts with a hold whose time has come: a LapseCommand for each lets them
// lapse. Nothing depends on it being prompt: loading an account does the same.
func DueAccounts(ctx context.Context, pool *pgxpool.Pool, limit int32) ([]AccountKey, error) {
	rows, err := q.HoldDueAccounts(ctx, planned{pool}, limit)
	keys := make([]AccountKey, len(rows))
	for i, r := range rows {
		keys[i] = AccountKey{r.TenantID, r.Code, r.Asset}
	}
	return keys, err
}
