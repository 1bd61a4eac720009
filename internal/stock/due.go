package stock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// DueItem is an item with a reservation that may be past its expiry.
type DueItem struct {
	ItemKey
	NextExpiryAt time.Time
}

// DueItems finds items with reservations that may have expired a delay ago, the oldest first, after the given one. An
// ExpireCommand makes them expire. An item is found once for each segment, and also if its first reservation to expire
// was sold or cancelled and others are open. Correctness does not depend on promptness: loading an item makes its due
// reservations expire too.
func DueItems(ctx context.Context, pool *pgxpool.Pool, delay time.Duration, after DueItem, limit int32) ([]DueItem,
	error) {
	rows, err := q.DuePage(pg.ForAllTenants(ctx), pg.Planned{DB: pool}, db.DuePageParams{DelayS: delay.Seconds(),
		After: after.NextExpiryAt, AfterTenant: after.Tenant, AfterItem: after.Item, Batch: limit})
	due := make([]DueItem, len(rows))
	for n, r := range rows {
		due[n] = DueItem{ItemKey{r.TenantID, r.Item}, pg.OrZero(r.NextExpiryAt)}
	}
	return due, err
}

// ItemsOf returns the distinct items.
func ItemsOf(due []DueItem) []ItemKey {
	items := make([]ItemKey, len(due))
	for n, i := range due {
		items[n] = i.ItemKey
	}
	slices.SortFunc(items, ItemKey.compare)
	return slices.Compact(items)
}

// ExpireCommand makes the due reservations of an item expire, by loading the item.
type ExpireCommand struct {
	Item ItemKey
	item *item
}

// Need names the item.
func (c *ExpireCommand) Need(tx *Tx) { c.item = tx.item(c.Item.Tenant, c.Item.Item, 1) }

// Apply returns ErrLater while due reservations remain; loading did the work.
func (c *ExpireCommand) Apply(*Tx) (any, error) { return nil, c.item.ready() }
