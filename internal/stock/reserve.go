package stock

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// ReserveCommand reserves units of an item for a time. With a life of 0 it sells them at once. Its answer is a
// Reservation as it is now.
type ReserveCommand struct {
	commit.Caller
	Item          string
	ReservationNo string
	Quantity      int64
	Life          time.Duration
	Ref           string
	Strategy      string // of a direct command; any other is batched

	item     *item
	row      *commit.Row[numbered, Reservation]
	segments int // of a direct command: how many to lock, if one did not suffice
}

// Need names the item and the number.
func (c *ReserveCommand) Need(tx *Tx) {
	c.item = c.need(tx)
	c.row = tx.reservation(c.item, c.ReservationNo)
}

// Apply reserves the units, or returns the existing reservation with the number. Returns faults ITEM_NOT_FOUND,
// RESERVATION_ENDED if it was cancelled before, RESERVATION_EXISTS_DIFFERENT, OUT_OF_STOCK.
func (c *ReserveCommand) Apply(tx *Tx) (any, error) {
	if i := c.item; i.oneSegment && !i.rows[0].found && i.rows[0].number > 0 {
		// The hint named a segment that this database does not have.
		c.segments = 1
		return nil, commit.ErrMoreRows
	}
	if err := c.item.ready(); err != nil {
		return nil, err
	}
	if c.row.Exists {
		first := c.row.Value.at(tx.Now)
		if first.Quantity == 0 {
			return nil, first.ended()
		}
		if d := c.differences(first); len(d) > 0 {
			return nil, tx.numberTaken(ReservationExistsDifferent, "reservation_no", c.ReservationNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	available := c.item.counts().Available
	if c.item.oneSegment && (c.item.due(tx.Now) || available < c.Quantity && c.item.rows[0].segments > 1) {
		c.segments = int(c.item.rows[0].segments)
		return nil, commit.ErrMoreRows
	}
	if short, err := c.item.lacks(c.Quantity); err != nil {
		return nil, err
	} else if short {
		return nil, OutOfStock.New("item %s has %d available", c.Item, available).With("item", c.Item).
			With("available", available)
	}
	r := Reservation{ID: tx.makeID(), Item: c.Item, ReservationNo: c.ReservationNo, Quantity: c.Quantity, State: Sold,
		Ref: c.Ref, Life: c.Life, CreatedAt: tx.Now, ClosedAt: tx.Now, Principal: c.Principal, RequestID: c.RequestID}
	if c.Life > 0 {
		r.State, r.ExpiresAt, r.ClosedAt = Reserved, tx.Now.Add(c.Life), time.Time{}
	}
	if c.segments > 1 {
		tx.level(c.item)
	}
	r.draw(c.item)
	r.spread(0, r.Quantity, func(n int16, units int64) {
		s := tx.change(c.item.segment(n))
		s.Available -= units
		if r.State == Sold {
			s.Sold += units
		} else {
			s.Reserved += units
		}
	})
	if r.State == Reserved {
		tx.expectExpiry(c.item, r)
	}
	*tx.reservations.Change(c.row) = r
	return r, nil
}

// draw decides which segments give the units: the first one that has all of them, otherwise as many as it takes. The
// item has enough.
func (r *Reservation) draw(i *item) {
	for _, s := range i.rows {
		if s.Available >= r.Quantity {
			r.segment = s.number
			return
		}
	}
	left := r.Quantity
	for _, s := range i.rows {
		units := min(left, s.Available)
		if left == r.Quantity && units > 0 {
			r.segment = s.number
		}
		left -= units
		if r.draws = append(r.draws, units); left == 0 {
			return
		}
	}
}

func (c *ReserveCommand) differences(r Reservation) (fields []string) {
	if (c.Life == 0) != (r.Life == 0) {
		fields = append(fields, fault.OtherCall)
	} else if c.Life != r.Life {
		fields = append(fields, "life")
	}
	if c.Quantity != r.Quantity {
		fields = append(fields, "quantity")
	}
	if c.Ref != r.Ref {
		fields = append(fields, "ref")
	}
	return fields
}
