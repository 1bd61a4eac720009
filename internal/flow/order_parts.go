package flow

import (
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// ends are the commands that end the parts of an order, with their rows named.
type ends struct {
	order    order.Facts
	confirms []*stock.ConfirmCommand
	cancels  []*stock.CancelCommand
	capture  *ledger.CaptureCommand // nil: nothing is held
	release  *ledger.ReleaseCommand
	purchase *claim.Row  // nil: none, or it stays claimed
	coupon   *coupon.Row // nil: none
}

// expectOrder names the order of an instance in advance, so that the first attempt reads it.
func (e *consequences) expectOrder(k order.Key) {
	if e.orders == nil {
		e.orders = map[order.Key]order.Order{}
	}
	e.orders[k] = order.Order{}
}

// openParts opens the participants that nameParts may need. A command whose order is found in Discover calls it in
// Need: its nameParts runs in Discover, when no participant can be opened any more.
func (tx *Tx) openParts() {
	tx.Ledger()
	tx.Stock()
	tx.Claims()
	tx.Coupons()
	tx.Messages()
}

// nameParts names the rows that end the parts of an order.
func (tx *Tx) nameParts(o *order.Order) {
	if tx.endsOf(o) != nil {
		return
	}
	e := &ends{order: o.Facts}
	for n := range o.Lines {
		if !o.Reserve {
			break
		}
		confirm := &stock.ConfirmCommand{Item: o.Lines[n].Item, ReservationNo: o.LineNo(n)}
		cancel := &stock.CancelCommand{Item: o.Lines[n].Item, ReservationNo: o.LineNo(n)}
		confirm.Tenant, cancel.Tenant = o.Tenant, o.Tenant
		confirm.Need(tx.Stock())
		cancel.Need(tx.Stock())
		e.confirms, e.cancels = append(e.confirms, confirm), append(e.cancels, cancel)
	}
	if o.Holds() {
		e.capture = &ledger.CaptureCommand{CaptureParams: ledger.CaptureOf(0, o.HoldNo())}
		e.capture.BizNo, e.capture.Type, e.capture.Tenant = o.PayNo(), orderTransfer, o.Tenant
		e.capture.Need(tx.Ledger())
		e.release = ledger.ReleaseOf(commit.Caller{Tenant: o.Tenant}, 0, o.HoldNo())
		e.release.Need(tx.Ledger())
	}
	if hasClaim(o) && (o.Sale == nil || !o.Sale.Once) {
		e.purchase = tx.Claims().Want(purchaseKey(o))
	}
	if o.Coupon != "" {
		e.coupon = tx.needCoupon(o.Tenant, o.Coupon)
	}
	for _, id := range o.ExpiryMessages {
		cancel := notify.CancelCommand{Caller: commit.Caller{Tenant: o.Tenant}, ID: id}
		cancel.Need(tx.Messages())
	}
	tx.Payments() // open ones are closed at their gateways
	if tx.ends == nil {
		tx.ends = map[order.Key][]*ends{}
	}
	tx.ends[o.Key] = append(tx.ends[o.Key], e)
}

// endsOf returns the commands that end the parts of an order, or nil if they are not named. It compares the
// parts, since a CreateOrder of the batch may have other content, and other messages, in each attempt.
func (tx *Tx) endsOf(o *order.Order) *ends {
	unnamed := func(id int64) bool {
		return !messages.opened(tx) || !tx.Messages().Named(notify.Key{Tenant: o.Tenant, ID: id})
	}
	for _, e := range tx.ends[o.Key] {
		if o.Same(&e.order) == nil && !slices.ContainsFunc(o.ExpiryMessages, unnamed) {
			return e
		}
	}
	return nil
}

// orderOf returns the order of an instance, or nil if it has none. It is known if the batch has looked for the order.
func (tx *Tx) orderOf(i *machine.Instance) (o *order.Order, known bool) {
	if !orders.opened(tx) {
		return nil, false
	}
	row := tx.Orders().Wanted(order.Key{Tenant: i.Tenant, OrderNo: i.Key.Key})
	if row == nil {
		return nil, false
	}
	if !row.Exists || row.Value.Machine != i.Machine {
		return nil, true
	}
	return &row.Value, true
}

// partsNamed reports whether the rows that end the parts of a moved order are named. If they are not, the next attempt
// names them, as far as this one knows the order.
func (e *consequences) partsNamed(tx *Tx, m *machine.Moved) bool {
	o, known := tx.orderOf(&m.Instance)
	if !known {
		e.expectOrder(order.Key{Tenant: m.Instance.Tenant, OrderNo: m.Instance.Key.Key})
		return false
	}
	if o == nil || tx.endsOf(o) != nil {
		return true
	}
	e.expectOrder(o.Key)
	e.orders[o.Key] = *o
	return false
}

// endParts confirms or cancels the parts of an order that has moved. Parts that have ended before stay as they are, but
// a confirmation fails if one was cancelled, or its time is over. Returns faults RESERVATION_ENDED, HOLD_EXPIRED,
// HOLD_NOT_HELD.
func (tx *Tx) endParts(m *machine.Moved) error {
	o, _ := tx.orderOf(&m.Instance)
	if o == nil || m.Parts == machine.KeepParts {
		return nil
	}
	tx.Payments().CloseAll(payment.OrderKey(o.Key))
	if m.Instance.Revision == 2 && m.Actor != machine.ByTimer { // it leaves its first state in time
		if err := cancelExpiry(tx, m, o); err != nil {
			return err
		}
	}
	if row := tx.endsOf(o).coupon; row != nil {
		if err := tx.settleCoupon(row, m, o.OrderNo); err != nil {
			return err
		}
	}
	if m.Parts == machine.ConfirmParts {
		return tx.endsOf(o).confirm(tx, m, o)
	}
	return tx.endsOf(o).cancel(tx, m, o)
}

// cancelExpiry cancels the messages that are due at the end of the time to pay. A caller may have cancelled one before.
// None has been sent: the batch has locked the messages, and then read a time before that end. Only a clock that was
// set back can let a message be in delivery already.
func cancelExpiry(tx *Tx, m *machine.Moved, o *order.Order) error {
	for _, id := range o.ExpiryMessages {
		c := notify.CancelCommand{Caller: m.Caller, ID: id}
		c.Need(tx.Messages()) // finds the row that nameParts has named
		_, err := c.Apply(tx.Messages())
		if err != nil && !fault.Is(err, notify.NotFound) && !fault.Is(err, notify.NotCancellable) &&
			!fault.Is(err, notify.BeingSent) {
			return err
		}
	}
	return nil
}

func (e *ends) confirm(tx *Tx, m *machine.Moved, o *order.Order) error {
	for _, c := range e.confirms {
		c.Caller = m.Caller
		if _, err := c.Apply(tx.Stock()); err != nil {
			return err
		}
	}
	if e.capture == nil {
		return nil
	}
	e.capture.Caller = m.Caller
	_, err := e.capture.Apply(tx.Ledger())
	if fault.Is(err, ledger.BizNoExistsDifferent) {
		return order.PartTaken(o.Key, "transfer", e.capture.BizNo)
	}
	return err
}

func (e *ends) cancel(tx *Tx, m *machine.Moved, o *order.Order) error {
	for _, c := range e.cancels {
		c.Caller = m.Caller
		if _, err := c.Apply(tx.Stock()); err != nil && !fault.Is(err, stock.ReservationEnded) {
			return err
		}
	}
	if e.release != nil {
		e.release.Caller = m.Caller
		if _, err := e.release.Apply(tx.Ledger()); err != nil && !fault.Is(err, ledger.HoldExpired) &&
			!fault.Is(err, ledger.HoldNotHeld) {
			return err
		}
	}
	if e.purchase == nil {
		return nil
	}
	p := purchase(o)
	_, err := tx.Claims().Drop(e.purchase, &claim.DropParams{Scope: p.Scope, Key: p.Key, Owner: o.OrderNo})
	if fault.Is(err, claim.Foreign) {
		return nil // another order has claimed it since
	}
	return err
}

// hasClaim reports whether an order claims its purchase, or a unit of a sale.
func hasClaim(o *order.Order) bool { return o.Purchase != nil || o.Sale != nil }

// purchase is the claim of an order on its purchase, so that no other order makes the same one, or on a unit of a sale.
// Its result and its owner are the order_no.
func purchase(o *order.Order) claim.Params {
	if s := o.Sale; s != nil {
		parts := []string{s.Sale, o.Subject, strconv.Itoa(int(s.Unit))}
		return claim.Params{Scope: claim.SaleScope, Key: claim.Compose(parts), Parts: parts, Owner: o.OrderNo,
			Result: o.OrderNo}
	}
	r := claim.Rule{Name: claim.OrderScope, Life: o.Purchase.Life}
	p := r.Params(o.Purchase.Parts...)
	p.Owner, p.Result = o.OrderNo, o.OrderNo
	return p
}

func purchaseKey(o *order.Order) claim.Key {
	p := purchase(o)
	return p.At(o.Tenant)
}
