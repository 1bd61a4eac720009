package stock

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// ConfirmCommand sells the units of a reservation. Its answer is a Reservation.
type ConfirmCommand struct {
	commit.Caller
	Item          string
	ReservationNo string

	item *item
	row  *commit.Row[numbered, Reservation]
}

// Need names the item and the number.
func (c *ConfirmCommand) Need(tx *Tx) {
	c.item = tx.item(c.Tenant, c.Item, 1)
	c.row = tx.reservation(c.item, c.ReservationNo)
}

// Apply sells the units. Confirming a sold reservation is a repeat. Returns faults ITEM_NOT_FOUND,
// RESERVATION_NOT_FOUND, RESERVATION_ENDED.
func (c *ConfirmCommand) Apply(tx *Tx) (any, error) {
	if err := c.item.ready(); err != nil {
		return nil, err
	}
	if !c.row.Exists {
		return nil, reservationNotFound(c.Item, c.ReservationNo)
	}
	switch r := c.row.Value.at(tx.Now); r.State {
	case Sold:
		return commit.Repeat{First: r}, nil
	case Reserved:
		return tx.end(c.item, c.row, Sold, &c.Caller), nil
	default:
		return nil, r.ended()
	}
}

// CancelCommand frees the units of a reservation. Its answer is a Reservation.
type CancelCommand struct {
	commit.Caller
	Item          string
	ReservationNo string

	item *item
	row  *commit.Row[numbered, Reservation]
}

// Need names the item and the number.
func (c *CancelCommand) Need(tx *Tx) {
	c.item = tx.item(c.Tenant, c.Item, 1)
	c.row = tx.reservation(c.item, c.ReservationNo)
}

// Apply frees the units. An unused number is recorded as cancelled, so that a later Reserve is refused. Cancelling a
// reservation that was cancelled or has expired is a repeat. Returns faults ITEM_NOT_FOUND, RESERVATION_ENDED.
func (c *CancelCommand) Apply(tx *Tx) (any, error) {
	if err := c.item.ready(); err != nil {
		return nil, err
	}
	if !c.row.Exists {
		r := Reservation{ID: tx.makeID(), Item: c.Item, ReservationNo: c.ReservationNo, State: Cancelled,
			CreatedAt: tx.Now, ClosedAt: tx.Now, Principal: c.Principal, RequestID: c.RequestID}
		*tx.reservations.Change(c.row) = r
		return r, nil
	}
	switch r := c.row.Value.at(tx.Now); r.State {
	case Reserved:
		return tx.end(c.item, c.row, Cancelled, &c.Caller), nil
	case Sold:
		return nil, r.ended()
	default:
		return commit.Repeat{First: r}, nil
	}
}

// end ends an open reservation: its units are sold, or available again.
func (tx *Tx) end(i *item, row *commit.Row[numbered, Reservation], state string, by *commit.Caller) Reservation {
	r := tx.reservations.Change(row)
	r.State, r.ClosedAt = state, tx.Now
	if by.RequestID != r.RequestID || by.Principal != r.Principal {
		r.closedPrincipal, r.closedRequestID = by.Principal, by.RequestID
	}
	r.spread(0, r.Quantity, func(n int16, units int64) {
		s := tx.change(i.segment(n))
		s.Reserved -= units
		if state == Sold {
			s.Sold += units
		} else {
			s.Available += units
		}
	})
	if i.counts().Reserved == 0 {
		for _, s := range i.rows { // one of them has the next expiry of the whole item after Resolve
			if !s.nextExpiryAt.IsZero() {
				tx.change(s).nextExpiryAt = time.Time{}
			}
		}
	}
	return *r
}
