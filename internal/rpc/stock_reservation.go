package rpc

import (
	"context"
	"time"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

const defaultReservationLife = 15 * time.Minute

func (s *Stock) Reserve(ctx context.Context, r *pb.ReserveRequest) (*pb.ReserveResponse, error) {
	return run(ctx, s.Mutations, reserveOperation, r)
}

var reserveOperation = register("stock.reserve",
	func(c *call, d *decoder, r *pb.ReserveRequest) mutation[*pb.ReserveResponse] {
		cmd := reserveCommand(c, d, r)
		cmd.Life = durationOr(r.GetLife(), defaultReservationLife)
		m := newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Reservation, existed bool) *pb.ReserveResponse {
				return &pb.ReserveResponse{Reservation: renderReservation(&x), Existed: existed}
			})
		m.direct, m.standsAlone = byStrategy(c, cmd, r)
		return m
	})

func (s *Stock) Deduct(ctx context.Context, r *pb.DeductRequest) (*pb.DeductResponse, error) {
	return run(ctx, s.Mutations, deductOperation, r)
}

var deductOperation = register("stock.deduct",
	func(c *call, d *decoder, r *pb.DeductRequest) mutation[*pb.DeductResponse] {
		cmd := reserveCommand(c, d, r)
		m := newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Reservation, existed bool) *pb.DeductResponse {
				return &pb.DeductResponse{Reservation: renderReservation(&x), Existed: existed}
			})
		m.direct, m.standsAlone = byStrategy(c, cmd, r)
		return m
	})

// reserveCommand decodes the fields that reservations and direct sales have.
func reserveCommand(c *call, d *decoder, r interface {
	GetItem() string
	GetReservationNo() string
	GetQuantity() int64
	GetRef() string
}) *stock.ReserveCommand {
	return &stock.ReserveCommand{Caller: c.caller(), Item: d.bizNo("item", r.GetItem()),
		ReservationNo: d.bizNo("reservation_no", r.GetReservationNo()), Quantity: r.GetQuantity(),
		Ref: d.name("ref", r.GetRef())}
}

func (s *Stock) Confirm(ctx context.Context, r *pb.ConfirmRequest) (*pb.ConfirmResponse, error) {
	return run(ctx, s.Mutations, confirmOperation, r)
}

var confirmOperation = register("stock.confirm",
	func(c *call, d *decoder, r *pb.ConfirmRequest) mutation[*pb.ConfirmResponse] {
		cmd := &stock.ConfirmCommand{Caller: c.caller(), Item: d.bizNo("item", r.GetItem()),
			ReservationNo: d.bizNo("reservation_no", r.GetReservationNo())}
		return newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Reservation, existed bool) *pb.ConfirmResponse {
				return &pb.ConfirmResponse{Reservation: renderReservation(&x), Existed: existed}
			})
	})

func (s *Stock) Cancel(ctx context.Context, r *pb.CancelRequest) (*pb.CancelResponse, error) {
	return run(ctx, s.Mutations, cancelOperation, r)
}

var cancelOperation = register("stock.cancel",
	func(c *call, d *decoder, r *pb.CancelRequest) mutation[*pb.CancelResponse] {
		cmd := &stock.CancelCommand{Caller: c.caller(), Item: d.bizNo("item", r.GetItem()),
			ReservationNo: d.bizNo("reservation_no", r.GetReservationNo())}
		return newMutation(flow.Stock(cmd), stockRows,
			func(x stock.Reservation, existed bool) *pb.CancelResponse {
				return &pb.CancelResponse{Reservation: renderReservation(&x), Existed: existed}
			})
	})

func (s *Stock) GetReservation(ctx context.Context, r *pb.GetReservationRequest) (*pb.GetReservationResponse, error) {
	x, err := s.Reader.Reservation(ctx, itemKey(ctx, r), r.GetReservationNo())
	if err != nil {
		return nil, err
	}
	return &pb.GetReservationResponse{Reservation: renderReservation(&x)}, nil
}

func (s *Stock) ListReservations(ctx context.Context,
	r *pb.ListReservationsRequest) (*pb.ListReservationsResponse, error) {
	all, next, err := s.Reader.Reservations(ctx, itemKey(ctx, r), reservationStateNames[r.GetState()],
		stock.Page{Size: int(r.GetPageSize()), Token: r.GetPageToken()})
	return &pb.ListReservationsResponse{Reservations: eachOf(all, renderReservation), NextPageToken: next}, err
}

var reservationStates = map[string]pb.ReservationState{
	stock.Reserved:  pb.ReservationState_RESERVATION_STATE_RESERVED,
	stock.Sold:      pb.ReservationState_RESERVATION_STATE_SOLD,
	stock.Cancelled: pb.ReservationState_RESERVATION_STATE_CANCELLED,
	stock.Expired:   pb.ReservationState_RESERVATION_STATE_EXPIRED,
}

var reservationStateNames = inverse(reservationStates)

func renderReservation(x *stock.Reservation) *pb.Reservation {
	return &pb.Reservation{Id: x.ID, Item: x.Item, ReservationNo: x.ReservationNo, Quantity: x.Quantity,
		Unsold: x.Unsold, State: reservationStates[x.State], Ref: x.Ref, CreateTime: timestamp(x.CreatedAt),
		ExpireTime: timestamp(x.ExpiresAt), CloseTime: timestamp(x.ClosedAt), RequestId: x.RequestID}
}
