package commit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Epoch is a stretch of the database's history in which commits have one order and none was lost. A
// restore into another cluster or database begins another one, and so does each promotion of a standby.
type Epoch struct {
	Number int32
	// Term names the epoch in cursors. No other copy of the database has it, unless it was copied later
	// without Postgres noticing, as by a snapshot of its disk.
	Term  string
	Began time.Time
}

// CurrentEpoch reads the epoch, and records it when no server has noticed it yet.
func CurrentEpoch(ctx context.Context, pool *pgxpool.Pool) (Epoch, error) {
	for recorded := false; ; recorded = true {
		e, err := q.EpochRead(ctx, pool)
		if err != nil {
			return Epoch{}, fmt.Errorf("read the epoch: %w", err)
		}
		if e.Nonce != "" {
			return Epoch{Number: e.Epoch, Term: fmt.Sprintf("%d-%s", e.Epoch, e.Nonce), Began: e.BeganAt}, nil
		}
		if recorded {
			return Epoch{}, fmt.Errorf("epoch %d was recorded, and is not there: the database changes", e.Epoch)
		}
		if err := q.EpochBegin(ctx, pool); err != nil {
			return Epoch{}, fmt.Errorf("begin epoch %d: %w", e.Epoch, err)
		}
	}
}
