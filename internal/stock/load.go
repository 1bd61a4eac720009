package stock

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Lookup reads the named reservations and changes, and the details of items to describe anew.
func (tx *Tx) Lookup(p *commit.Pipe) {
	tx.lookupReservations(p)
	tx.lookupChanges(p)
	tx.lookupDetails(p)
}

func (tx *Tx) lookupReservations(p *commit.Pipe) {
	wanted := tx.reservations.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.ReservationLookupParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Items = append(arg.Items, r.Key.Item)
		arg.ReservationNos = append(arg.ReservationNos, r.Key.no)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.ReservationLookup(p.Context(), d, arg)
		for _, r := range rows {
			row := wanted[r.N-1]
			v := reservationOf(row.Key.ItemKey, pageRow(row.Key.no, r))
			v.seen.tid = r.Ctid
			tx.reservations.Load(row, v)
		}
		return err
	})
}

func pageRow(no string, r db.ReservationLookupRow) db.ReservationPageRow {
	return db.ReservationPageRow{ReservationNo: no, ReservationID: r.ReservationID, Quantity: r.Quantity,
		Unsold: r.Unsold, Segment: r.Segment, Draws: r.Draws, State: r.State, Ref: r.Ref, LifeMs: r.LifeMs,
		CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, ClosedAt: r.ClosedAt, Principal: r.Principal,
		RequestID: r.RequestID, ClosedPrincipal: r.ClosedPrincipal, ClosedRequestID: r.ClosedRequestID}
}

func reservationOf(k ItemKey, r db.ReservationPageRow) Reservation {
	return Reservation{ID: r.ReservationID, Item: k.Item, ReservationNo: r.ReservationNo, Quantity: r.Quantity,
		Unsold: r.Unsold, State: r.State, Ref: pg.OrZero(r.Ref),
		Life:      pg.Milliseconds(pg.OrZero(r.LifeMs)),
		CreatedAt: r.CreatedAt, ExpiresAt: pg.OrZero(r.ExpiresAt), ClosedAt: pg.OrZero(r.ClosedAt),
		Principal: r.Principal, RequestID: r.RequestID, closedPrincipal: pg.OrZero(r.ClosedPrincipal),
		closedRequestID: pg.OrZero(r.ClosedRequestID),
		segment:         r.Segment, draws: r.Draws, seen: seen{state: r.State, unsold: r.Unsold}}
}

func (tx *Tx) lookupChanges(p *commit.Pipe) {
	wanted := tx.changes.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.ChangeLookupParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Items = append(arg.Items, r.Key.Item)
		arg.ChangeNos = append(arg.ChangeNos, r.Key.no)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.ChangeLookup(p.Context(), d, arg)
		for _, r := range rows {
			row := wanted[r.N-1]
			tx.changes.Load(row, Change{ID: r.ChangeID, Item: row.Key.Item, ChangeNo: row.Key.no, Kind: r.Kind,
				Quantity: r.Quantity, StockedAfter: r.StockedAfter, ReservationNo: pg.OrZero(r.ReservationNo),
				Reason: r.Reason, ChangedAt: r.ChangedAt, RequestID: r.RequestID})
		}
		return err
	})
}

func (tx *Tx) lookupDetails(p *commit.Pipe) {
	wanted := tx.details.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.DetailLookupParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Items = append(arg.Items, r.Key.Item)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.DetailLookup(p.Context(), d, arg)
		for _, r := range rows {
			tx.details.Load(wanted[r.N-1], Details{Label: r.Label, Metadata: pg.Metadata(r.Metadata),
				CreatedAt: r.CreatedAt, ChangedAt: r.ChangedAt})
		}
		return err
	})
}

// maxExpiries is the approximate number of reservations that expire in one batch.
const maxExpiries = 2000

// Resolve makes the due reservations of the items expire, before any command and regardless of the commands' outcome:
// otherwise units whose time is over would not be available until the scheduler runs. An item with very many due
// reservations expires some of them in this batch, and its commands run after it.
//
// An optimistic batch cannot expire reservations of items that it took over: the batch before may not have written
// them yet. If the clock has gone back since, it may even have expired reservations that are not due now.
func (tx *Tx) Resolve(p *commit.Pipe) {
	if tx.resolved {
		return
	}
	tx.resolved = true
	var due []*item
	for _, i := range tx.items {
		// Without all segments the batch runs again.
		isDue := i.due(tx.Now) && !i.oneSegment && int(i.rows[0].segments) <= len(i.rows)
		for _, s := range i.rows {
			if s.asOf.After(tx.Now) || isDue && s.writer != nil {
				p.Refuse(commit.ErrConflict)
				return
			}
		}
		if isDue {
			due = append(due, i)
		}
	}
	if len(due) > 0 {
		tx.resolveDue(p, due)
	}
}

func (tx *Tx) resolveDue(p *commit.Pipe, due []*item) {
	most := max(1, maxExpiries/len(due))
	arg := db.ReservationDueParams{Now: tx.Now, Most: int64(most) + 1}
	for _, i := range due {
		arg.Tenants = append(arg.Tenants, i.Tenant)
		arg.Items = append(arg.Items, i.Item)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.ReservationDue(p.Context(), d, arg)
		if err != nil {
			return err
		}
		for _, i := range due {
			for _, s := range i.rows {
				if !s.nextExpiryAt.IsZero() {
					tx.change(s).nextExpiryAt = time.Time{}
				}
			}
		}
		met, expired := make([]int, len(due)), make([]bool, len(due))
		for _, r := range rows {
			i, expiresAt := due[r.N-1], pg.OrZero(r.ExpiresAt)
			met[r.N-1]++
			switch last := met[r.N-1] > most && !expiresAt.After(tx.Now); {
			case last && expired[r.N-1]:
				tx.change(i.rows[0]).nextExpiryAt, i.overdue = expiresAt, true
				continue
			case last: // all before it are held, and there may be more
				i.held = i.counts().Reserved
				tx.expectExpiry(i, Reservation{ExpiresAt: expiresAt, segment: r.Segment, draws: r.Draws})
				continue
			case !r.Free:
				i.held += r.Quantity
				tx.expectExpiry(i, Reservation{ExpiresAt: expiresAt, segment: r.Segment, draws: r.Draws})
				continue
			}
			expired[r.N-1] = expired[r.N-1] || !expiresAt.After(tx.Now)
			tx.expireIfDue(i, r.ReservationNo, Reservation{Quantity: r.Quantity, State: Reserved, ExpiresAt: expiresAt,
				segment: r.Segment, draws: r.Draws, seen: seen{tid: r.Tid, state: Reserved}})
		}
		return nil
	})
}

// expireIfDue makes an open reservation expire if it is due, and otherwise notes its expiry.
func (tx *Tx) expireIfDue(i *item, no string, r Reservation) {
	if r.ExpiresAt.After(tx.Now) {
		tx.expectExpiry(i, r)
		return
	}
	r.spread(0, r.Quantity, func(n int16, units int64) {
		s := tx.change(i.segment(n))
		s.Reserved -= units
		s.Available += units
	})
	k := numbered{i.ItemKey, no}
	if named := tx.reservations.Wanted(k); named != nil {
		v := tx.reservations.Change(named)
		*v = v.at(tx.Now)
		return
	}
	tx.expired = append(tx.expired, expired{k, r.at(tx.Now)})
}

// expectExpiry lowers the next expiry of the reservation's segment to that of the reservation.
func (tx *Tx) expectExpiry(i *item, r Reservation) {
	if s := i.segment(r.segment); s.nextExpiryAt.IsZero() || r.ExpiresAt.Before(s.nextExpiryAt) {
		tx.change(s).nextExpiryAt = r.ExpiresAt
	}
}

// spread calls f for each segment with its share of units [from, from+n) of the reservation. Units of lower segments
// come first.
func (r *Reservation) spread(from, n int64, f func(segment int16, units int64)) {
	if r.draws == nil {
		f(r.segment, n)
		return
	}
	for segment, drawn := range r.draws {
		skipped := min(from, drawn)
		from -= skipped
		if units := min(n, drawn-skipped); units > 0 {
			n -= units
			f(int16(segment), units)
		}
	}
}
