package stock

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Stored states of reservations, and kinds of changes.
const (
	Reserved, Sold, Cancelled, Expired = "reserved", "sold", "cancelled", "expired"
	Restock, Adjust, Unsell            = "restock", "adjust", "unsell"
)

// Limits. Sums of quantities stay far below the limits of a bigint.
const (
	MaxQuantity = 1_000_000_000_000
	MaxStocked  = 1000 * MaxQuantity
)

// ItemKey identifies an item.
type ItemKey struct {
	Tenant int32
	Item   string
}

func (k ItemKey) compare(l ItemKey) int {
	return cmp.Or(cmp.Compare(k.Tenant, l.Tenant), strings.Compare(k.Item, l.Item))
}

// numbered identifies a reservation or a change of an item.
type numbered struct {
	ItemKey
	no string
}

func (k numbered) compare(l numbered) int {
	return cmp.Or(k.ItemKey.compare(l.ItemKey), strings.Compare(k.no, l.no))
}

// Counts are the counts of an item: Available + Reserved + Sold = Stocked, and none is negative.
type Counts struct {
	Available, Reserved, Sold, Stocked int64
}

// Item is an item with its counts over all segments.
type Item struct {
	ItemKey
	Details
	Counts
	Segments int
	Strategy string
}

// Details are the columns of an item that seldom change.
type Details struct {
	Label     string
	Metadata  map[string]string
	CreatedAt time.Time
	ChangedAt time.Time
	caller    commit.Caller // of the last change
}

// Reservation is a number of units that are reserved, or were until it ended.
type Reservation struct {
	ID            int64
	Item          string
	ReservationNo string
	Quantity      int64 // 0: cancelled before it was made
	Unsold        int64
	State         string
	Ref           string
	Life          time.Duration // 0: sold directly, or cancelled before it was made
	CreatedAt     time.Time
	ExpiresAt     time.Time // zero: Life is 0
	ClosedAt      time.Time // zero: it has not ended
	Principal     string
	RequestID     string

	// The call that ended it. Empty: it has not ended, it expired, or the call that made it ended it.
	closedPrincipal, closedRequestID string

	segment int16
	draws   []int64 // by segment; nil: segment gave all. Never changed in place.
	seen    seen
}

// seen are the columns as read that an update confirms.
type seen struct {
	tid    pgtype.TID
	state  string
	unsold int64
}

// at returns the reservation as of a time. One past its expiry has expired: by the batch that reads it, or by one whose
// rows this batch has taken over.
func (r Reservation) at(now time.Time) Reservation {
	if r.State == Reserved && !r.ExpiresAt.After(now) {
		r.State, r.ClosedAt = Expired, r.ExpiresAt
	}
	return r
}

// Change is a change of stock.
type Change struct {
	ID            int64
	Item          string
	ChangeNo      string
	Kind          string
	Quantity      int64 // negative for some adjustments
	StockedAfter  int64
	ReservationNo string // of an unsell
	Reason        string
	ChangedAt     time.Time
	Principal     string
	RequestID     string
}

// segment is a row of stock_items.
type segment struct {
	ItemKey
	number   int16
	segments int16 // of the item
	strategy string
	Counts
	version      int64
	nextExpiryAt time.Time // zero: none

	xmin   uint32            // transaction that wrote the row
	tid    pgtype.TID        // location of the row; unknown if the batch that it was taken over from changes it
	writer *commit.RowWriter // batch that will write the row; nil: loaded
	asOf   time.Time         // time of the batch that it was taken over from
	found  bool              // in the database or created by this batch
	fresh  bool              // created by this batch
	dirty  bool
	saved  uint64 // the mark at which it was saved for undo
}

func (s *segment) compare(t *segment) int {
	return cmp.Or(s.ItemKey.compare(t.ItemKey), cmp.Compare(s.number, t.number))
}

// item is the handle of an item: all of its segments, from 0, or one alone.
type item struct {
	ItemKey
	layouts    *Layouts
	rows       []*segment
	oneSegment bool  // rows has only one, which may be unlocked (see need)
	overdue    bool  // due reservations remain
	held       int64 // units of due reservations that other transactions hold, so that these have not expired
}

// lacks reports whether fewer than n units of the item are available. If due reservations that other transactions hold
// may have the rest, it returns ErrHeld.
func (i *item) lacks(n int64) (bool, error) {
	available := i.counts().Available
	if available < n && available+i.held >= n {
		return true, commit.ErrHeld
	}
	return available < n, nil
}

// segment returns the row of a segment.
func (i *item) segment(n int16) *segment { return i.rows[n-i.rows[0].number] }

// ready checks that the item exists, that all of its segments are loaded, and that no due reservation is left. If
// segments are missing, the next attempt loads them.
func (i *item) ready() error {
	first := i.rows[0]
	switch {
	case !first.found:
		return itemNotFound(i.Item)
	case !i.oneSegment && !i.whole():
		// load does that too, but not for rows taken over
		i.layouts.learn(i.ItemKey, layout{int(first.segments), first.strategy})
		return commit.ErrMoreRows
	case i.overdue:
		return commit.ErrLater
	}
	return nil
}

// whole reports whether all segments are loaded. One that PutItem added while the batch waited for the lock of another
// is not: the statement that waited does not see it.
func (i *item) whole() bool {
	n := int(i.rows[0].segments)
	return n <= len(i.rows) && !slices.ContainsFunc(i.rows[:n], func(s *segment) bool { return !s.found })
}

// counts are the sums over the segments.
func (i *item) counts() (sum Counts) {
	for _, s := range i.rows {
		sum.Available += s.Available
		sum.Reserved += s.Reserved
		sum.Sold += s.Sold
		sum.Stocked += s.Stocked
	}
	return sum
}

// due reports whether reservations of the item may have to expire.
func (i *item) due(now time.Time) bool {
	for _, s := range i.rows {
		if s.found && !s.nextExpiryAt.IsZero() && !s.nextExpiryAt.After(now) {
			return true
		}
	}
	return false
}
