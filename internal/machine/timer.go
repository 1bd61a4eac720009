package machine

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// FireCommand records the move of an instance whose timer has fired, and does nothing for others. Its answer reports
// whether it did.
type FireCommand struct {
	commit.Caller
	Key Key

	row *row
}

// Need names the instance.
func (c *FireCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply records the move.
func (c *FireCommand) Apply(tx *Tx) (any, error) {
	if !c.row.Exists {
		return false, nil
	}
	before := c.row.Value.Revision
	v, err := tx.current(c.row, c.Caller)
	if err != nil {
		return nil, err
	}
	return v.Revision > before, nil
}

// Due is an instance whose timer has fired.
type Due struct {
	Key
	ID int64
	At time.Time
}

// DueInstances finds instances whose timer has fired, oldest first, after the given one. A FireCommand for each records
// the move. Correctness does not depend on promptness: every command and read counts such an instance as moved.
func DueInstances(ctx context.Context, pool *pgxpool.Pool, after Due, limit int32) ([]Due, error) {
	rows, err := q.InstanceDuePage(ctx, pg.Planned{DB: pool},
		db.InstanceDuePageParams{After: after.At, AfterID: after.ID, Batch: limit})
	due := make([]Due, len(rows))
	for i, r := range rows {
		due[i] = Due{Key{r.TenantID, r.Machine, r.Key}, r.InstanceID, pg.OrZero(r.TimerAt)}
	}
	return due, err
}
