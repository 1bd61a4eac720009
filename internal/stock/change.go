package stock

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// ChangeCommand restocks or adjusts an item, or takes sold units back. Its answer is a Change.
type ChangeCommand struct {
	commit.Caller
	Item          string
	ChangeNo      string
	Kind          string // Restock, Adjust or Unsell
	Quantity      int64  // negative only for Adjust
	ReservationNo string // of an Unsell
	Reason        string

	item *item
	name *commit.Row[numbered, Change]
	sold *commit.Row[numbered, Reservation]
}

// Need names the item, the number, and the reservation of an unsell.
func (c *ChangeCommand) Need(tx *Tx) {
	c.item = tx.item(c.Tenant, c.Item, 1)
	c.name = tx.changes.Want(numbered{c.item.ItemKey, c.ChangeNo})
	if c.Kind == Unsell {
		c.sold = tx.reservation(c.item, c.ReservationNo)
	}
}

// Apply makes the change, or returns the existing one with the number. Returns faults ITEM_NOT_FOUND,
// CHANGE_EXISTS_DIFFERENT, STOCK_TOO_LARGE, STOCK_BELOW_PROMISED, RESERVATION_NOT_FOUND, RESERVATION_NOT_SOLD,
// UNSELL_EXCEEDS_SOLD.
func (c *ChangeCommand) Apply(tx *Tx) (any, error) {
	if err := c.item.ready(); err != nil {
		return nil, err
	}
	if c.name.Exists {
		first := c.name.Value
		if d := c.differences(first); len(d) > 0 {
			return nil, tx.numberTaken(ChangeExistsDifferent, "change_no", c.ChangeNo, first.ID, d)
		}
		return commit.Repeat{First: first}, nil
	}
	var err error
	switch {
	case c.Kind == Unsell:
		err = c.unsell(tx)
	case c.Quantity > 0:
		err = c.add(tx)
	default:
		err = c.remove(tx)
	}
	if err != nil {
		return nil, err
	}
	made := Change{ID: tx.makeID(), Item: c.Item, ChangeNo: c.ChangeNo, Kind: c.Kind, Quantity: c.Quantity,
		StockedAfter: c.item.counts().Stocked, ReservationNo: c.ReservationNo, Reason: c.Reason, ChangedAt: tx.Now,
		Principal: c.Principal, RequestID: c.RequestID}
	*tx.changes.Change(c.name) = made
	return made, nil
}

// add puts units into all segments evenly.
func (c *ChangeCommand) add(tx *Tx) error {
	if stocked := c.item.counts().Stocked; stocked > MaxStocked-c.Quantity {
		return StockTooLarge.New("item %s has %d units, and could have at most %d", c.Item, stocked,
			int64(MaxStocked)).WithField("quantity", "would make the stock too large")
	}
	rows, left := c.item.rows[:c.item.rows[0].segments], c.Quantity
	for n, s := range rows {
		if units := left / int64(len(rows)-n); units > 0 {
			tx.change(s).addStock(units)
			left -= units
		}
	}
	return nil
}

func (s *segment) addStock(units int64) {
	s.Available += units
	s.Stocked += units
}

// remove takes available units away.
func (c *ChangeCommand) remove(tx *Tx) error {
	left := -c.Quantity
	if short, err := c.item.lacks(left); err != nil {
		return err
	} else if short {
		available := c.item.counts().Available
		return StockBelowPromised.New("item %s has only %d units that are neither reserved nor sold", c.Item,
			available).With("item", c.Item).With("available", available)
	}
	for _, s := range c.item.rows {
		if units := min(left, s.Available); units > 0 {
			tx.change(s).addStock(-units)
			left -= units
		}
	}
	return nil
}

// unsell makes sold units available again.
func (c *ChangeCommand) unsell(tx *Tx) error {
	if !c.sold.Exists {
		return reservationNotFound(c.Item, c.ReservationNo)
	}
	old := c.sold.Value.at(tx.Now)
	if old.State != Sold {
		return ReservationNotSold.New("reservation %s of item %s is %s", c.ReservationNo, c.Item, old.State).
			With("reservation_no", c.ReservationNo).With("state", old.State)
	}
	if remaining := old.Quantity - old.Unsold; c.Quantity > remaining {
		return UnsellExceedsSold.New("only %d units of reservation %s are still sold", remaining, c.ReservationNo).
			With("reservation_no", c.ReservationNo).With("remaining", remaining)
	}
	tx.reservations.Change(c.sold).Unsold += c.Quantity
	old.spread(old.Unsold, c.Quantity, func(n int16, units int64) {
		s := tx.change(c.item.segment(n))
		s.Sold -= units
		s.Available += units
	})
	return nil
}

func (c *ChangeCommand) differences(first Change) (fields []string) {
	if c.Kind != first.Kind {
		return []string{fault.OtherCall}
	}
	if c.Quantity != first.Quantity {
		fields = append(fields, "quantity")
	}
	if c.ReservationNo != first.ReservationNo {
		fields = append(fields, "reservation_no")
	}
	if c.Reason != first.Reason {
		fields = append(fields, "reason")
	}
	return fields
}
