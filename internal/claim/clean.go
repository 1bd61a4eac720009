package claim

import (
	"context"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Cleaners delete claims whose life is over, of either table. Nothing depends on them being prompt.
func Cleaners() []commit.Cleaner {
	cleaners := make([]commit.Cleaner, len(tables))
	for i := range tables {
		cleaners[i] = func(ctx context.Context, d commit.DB, batch int32) (int64, error) {
			return tables[i].clean(ctx, d, batch)
		}
	}
	return cleaners
}
