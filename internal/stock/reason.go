package stock

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of stock.
var (
	ItemNotFound = fault.Register(fault.Reason{Name: "ITEM_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such item: create it with PutItem."})
	SegmentsTooFew = fault.Register(fault.Reason{Name: "SEGMENTS_TOO_FEW", Class: fault.BadRequest,
		Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "The item has more segments: their number can grow, but not shrink."})
	ReservationNotFound = fault.Register(fault.Reason{Name: "RESERVATION_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "The item has no reservation with this number."})
	ReservationExistsDifferent = fault.Register(fault.Reason{Name: "RESERVATION_EXISTS_DIFFERENT",
		Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The reservation_no is already used with other content: the metadata lists the fields that differ."})
	ChangeExistsDifferent = fault.Register(fault.Reason{Name: "CHANGE_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The change_no is already used with other content: the metadata lists the fields that differ."})
	ReservationEnded = fault.Register(fault.Reason{Name: "RESERVATION_ENDED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The reservation has ended in another way: the metadata says sold, cancelled or expired. " +
			"A Reserve or Deduct is refused if a Cancel came before it."})
	OutOfStock = fault.Register(fault.Reason{Name: "OUT_OF_STOCK", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "Fewer units are available than asked for. The metadata has the number of available ones."})
	StockBelowPromised = fault.Register(fault.Reason{Name: "STOCK_BELOW_PROMISED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The adjustment would take units that are reserved or sold. The metadata has the number of " +
			"available ones."})
	StockTooLarge = fault.Register(fault.Reason{Name: "STOCK_TOO_LARGE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The item would have more than 10^15 units."})
	StrategyStandsAlone = fault.Register(fault.Reason{Name: "STRATEGY_STANDS_ALONE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The call names a strategy that has a transaction of its own, and cannot share one: " +
			"with the other operations of an Execute, a submit token or a claim. Leave strategy out: " +
			"the call is then batched. Nothing was done."})
	ReservationNotSold = fault.Register(fault.Reason{Name: "RESERVATION_NOT_SOLD", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "Units can come back only from a reservation that was sold: the metadata says reserved, " +
			"cancelled or expired."})
	UnsellExceedsSold = fault.Register(fault.Reason{Name: "UNSELL_EXCEEDS_SOLD", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "More units would come back than were sold under the reservation. The metadata has the number of " +
			"those that remain."})
)

func itemNotFound(name string) error {
	return ItemNotFound.New("there is no item %s", name).With("item", name).
		WithField("item", "must be an item that exists")
}

func reservationNotFound(item, no string) error {
	return ReservationNotFound.New("item %s has no reservation %s", item, no).With("item", item).
		With("reservation_no", no).WithField("reservation_no", "must be the number of a reservation of the item")
}

// ended refuses a call that comes after the end of the reservation.
func (r *Reservation) ended() error {
	return ReservationEnded.New("reservation %s of item %s ended at %s: %s", r.ReservationNo, r.Item,
		r.ClosedAt.Format(time.RFC3339), r.State).With("reservation_no", r.ReservationNo).With("state", r.State).
		With("close_time", r.ClosedAt.Format(time.RFC3339Nano))
}

// numberTaken refuses a number that is used for other content. It names the first object if its commit does not depend
// on this command.
func (tx *Tx) numberTaken(reason *fault.Reason, field, no string, first int64, differs []string) error {
	f := reason.New("the %s %s is already used", field, no).Differing(differs, field).With(field, no)
	if !slices.Contains(tx.made, first) {
		f.With("first_id", first)
	}
	return f
}
