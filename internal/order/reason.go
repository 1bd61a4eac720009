package order

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of orders.
var (
	NotFound = fault.Register(fault.Reason{Name: "ORDER_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no order with this number."})
	ExistsDifferent = fault.Register(fault.Reason{Name: "ORDER_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The order_no is already used with other content: the fields, and the metadata, list those that differ."})
	PurchaseRepeated = fault.Register(fault.Reason{Name: "PURCHASE_REPEATED", Class: fault.Duplicate,
		Code: fault.AlreadyExists, Step: fault.Ignore, Show: true,
		Doc: "There is an order of the same purchase already, and the call has set purchase.refuse. " +
			"The metadata has its order_no, and its state now."})
	PartExists = fault.Register(fault.Reason{Name: "ORDER_PART_EXISTS", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "Another call has taken the number of a part of the order: of a reservation, hold, transfer, " +
			"instance or expiry message. The metadata names it. Choose another order_no. " +
			"If the order exists already, it cannot be paid any more: cancel it."})
)

// notFound is the fault for a missing order.
func notFound(k Key) *fault.Fault {
	return NotFound.New("there is no order %s", k.OrderNo).With("order_no", k.OrderNo).
		WithField("order_no", "must be the number of an order that exists")
}

// PartTaken is the fault for a part whose number another call has taken.
func PartTaken(k Key, kind, no string) *fault.Fault {
	return PartExists.New("order %s: %s %s exists already and is not part of this order", k.OrderNo, kind, no).
		With("order_no", k.OrderNo).With("kind", kind).With("number", no)
}

// Same checks that a request describes a stored order. Returns fault ORDER_EXISTS_DIFFERENT.
func (o *Order) Same(f *Facts) error {
	differs := f.differences(o)
	if len(differs) == 0 {
		return nil
	}
	return ExistsDifferent.New("the order_no %s is already used", o.OrderNo).Differing(differs, "order_no").
		With("order_no", o.OrderNo).With("first_id", o.ID)
}

// Repeated is the fault for an order of the same purchase as this one.
func (v *View) Repeated() error {
	return PurchaseRepeated.New("order %s was created for the same purchase", v.OrderNo).With("order_no", v.OrderNo).
		With("state", v.State.State).With("revision", v.Revision).
		With("create_time", v.CreatedAt.Format(time.RFC3339Nano))
}

// CheckDecimals checks that the asset can have all amounts. Returns faults AMOUNT_TOO_PRECISE, AMOUNT_TOO_LARGE.
func (f *Facts) CheckDecimals(scale uint8) error {
	amounts := map[string]amount.Decimal{"amount": f.Amount}
	if f.Balance != nil {
		amounts["balance.amount"] = f.Balance.Amount
	}
	for n := range f.Lines {
		if text := f.Lines[n].Amount; text != "" {
			amounts[fmt.Sprintf("lines[%d].amount", n)], _ = amount.ParseDecimal(text) // checked by the caller
		}
	}
	var bad *fault.Fault
	for _, path := range slices.Sorted(maps.Keys(amounts)) {
		_, err := amounts[path].Minor(scale)
		if err == nil {
			continue
		}
		refused := amount.Refused(err, amounts[path], f.Asset, scale)
		if bad == nil {
			bad = refused
		}
		bad = bad.WithField(path, refused.Message)
	}
	if bad == nil {
		return nil
	}
	return bad
}
