package stock

import (
	"cmp"
	"hash/maphash"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/hint"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Strategies of deducting and reserving: how concurrent calls for one item are kept from selling a unit twice. A batch
// decides in memory over rows that it has locked or taken over. The others are direct commands (see
// commit.Direct) of one call each, which use a single segment of the item, chosen by the number of the reservation. If
// that one has too few units, or reservations that are due, the transaction runs again with all segments locked, so
// that no item is falsely sold out. All strategies write the same rows, and any of them can run beside any other.
const (
	Batched     = "batched"     // many calls share a transaction
	Atomic      = "atomic"      // one UPDATE, on condition that enough is available
	Optimistic  = "optimistic"  // read without a lock, and UPDATE if nothing has changed since; otherwise try again
	Pessimistic = "pessimistic" // lock the row, then read
	Advisory    = "advisory"    // lock a number made of the item's name, then as Optimistic
)

const (
	defaultAttempts = 3
	attemptsPause   = 50 * time.Millisecond
)

// Direct returns how a command of the strategy runs, with a number of attempts or, if that is 0, the default. Nil: in a
// batch.
func Direct(strategy string, attempts int) *commit.Direct {
	if strategy == Batched {
		return nil
	}
	return &commit.Direct{Attempts: cmp.Or(attempts, defaultAttempts), Pause: attemptsPause}
}

// need declares the item: all of its segments, or, in a direct command, first one of them alone.
func (c *ReserveCommand) need(tx *Tx) *item {
	if !tx.direct || c.segments > 0 {
		return tx.item(c.Tenant, c.Item, max(1, c.segments))
	}
	k := ItemKey{c.Tenant, c.Item}
	chosen := maphash.String(segmentSeed, c.ReservationNo) % uint64(tx.layouts.of(k).segments)
	s := &segment{ItemKey: k, number: int16(chosen)}
	i := &item{ItemKey: k, layouts: tx.layouts, rows: []*segment{s}, oneSegment: true}
	tx.strategy, tx.items[k], tx.segments = c.Strategy, i, []*segment{s}
	return i
}

func (tx *Tx) lockAdvisory(p *commit.Pipe) {
	for _, s := range tx.segments {
		arg := db.ItemAdvisoryLockParams{TenantID: s.Tenant, Segment: s.number, Item: s.Item}
		p.Queue(func(d commit.DB) error { return q.ItemAdvisoryLock(p.Context(), d, arg) })
	}
}

// take queues the UPDATE that reserves or sells the units of an atomic command.
func (tx *Tx) take(p *commit.Pipe) {
	for _, row := range tx.reservations.Fresh() {
		r := &row.Value
		arg := db.ItemTakeParams{TenantID: row.Key.Tenant, Item: row.Key.Item, Segment: r.segment}
		if r.State == Reserved {
			arg.Reserved, arg.NextExpiryAt = r.Quantity, r.ExpiresAt
		} else {
			arg.Sold = r.Quantity
		}
		p.Queue(func(d commit.DB) error { return q.ItemTake(p.Context(), d, arg) })
	}
}

// level spreads the available units of an item over its segments.
func (tx *Tx) level(i *item) {
	rows, left := i.rows[:i.rows[0].segments], i.counts().Available
	for n, s := range rows {
		units := left / int64(len(rows)-n)
		left -= units
		if units != s.Available {
			tx.change(s).addStock(units - s.Available)
		}
	}
}

// Layouts remembers segments and strategies of the items that do not have the defaults.
type Layouts struct {
	items *hint.Memory[ItemKey, layout]
}

type layout struct {
	segments int
	strategy string
}

var defaultLayout = layout{1, Batched}

// maxLayouts limits the items whose layout a server remembers.
const maxLayouts = 100_000

// NewLayouts returns an empty memory.
func NewLayouts() *Layouts {
	return &Layouts{hint.New[ItemKey](maxLayouts, func(a, b layout) bool { return a == b })}
}

func (l *Layouts) of(i ItemKey) layout {
	if x, ok := l.items.Last(i); ok {
		return x
	}
	return defaultLayout
}

func (l *Layouts) learn(i ItemKey, x layout) {
	if x == defaultLayout {
		l.items.Forget(i)
		return
	}
	l.items.Learn(i, x)
}

// Strategy returns the item's own strategy, as far as this server knows. The first call after a change may run by the
// old one: it loads the item, and so the server learns of the change.
func (l *Layouts) Strategy(i ItemKey) string { return l.of(i).strategy }
