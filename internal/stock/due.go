package stock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// DueReservation is an open reservation past its expiry.
type DueReservation struct {
	Item      ItemKey
	ExpiresAt time.Time
}

// DueReservations finds reservations past their expiry, oldest first, after the given one. A LapseCommand for each item
// makes them lapse. Correctness does not depend on promptness: loading an item makes its due reservations lapse too.
func DueReservations(ctx context.Context, pool *pgxpool.Pool, after DueReservation,
	limit int32) ([]DueReservation, error) {
	rows, err := q.DuePage(pg.ForAllTenants(ctx), pg.Planned{DB: pool}, db.DuePageParams{After: after.ExpiresAt,
		AfterTenant: after.Item.Tenant, AfterItem: after.Item.Item, Batch: limit})
	due := make([]DueReservation, len(rows))
	for n, r := range rows {
		due[n] = DueReservation{ItemKey{r.TenantID, r.Item}, pg.OrZero(r.ExpiresAt)}
	}
	return due, err
}

// ItemsOf returns the distinct items of reservations.
func ItemsOf(due []DueReservation) []ItemKey {
	items := make([]ItemKey, len(due))
	for n, r := range due {
		items[n] = r.Item
	}
	slices.SortFunc(items, ItemKey.compare)
	return slices.Compact(items)
}

// LapseCommand makes the due reservations of an item lapse, by loading the item.
type LapseCommand struct {
	Item ItemKey
	item *item
}

// Need declares the item.
func (c *LapseCommand) Need(tx *Tx) { c.item = tx.item(c.Item.Tenant, c.Item.Item, 1) }

// Apply only asks for another run while due reservations remain.
func (c *LapseCommand) Apply(*Tx) (any, error) { return nil, c.item.ready() }
