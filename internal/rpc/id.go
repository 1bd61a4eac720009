package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	"github.com/ledgerd/ledgerd/internal/ids"
)

// IDs serves IdService.
type IDs struct{ Generator *ids.Generator }

// idBytes estimates the memory for an id in a response: number, text, and their encoding.
const idBytes = 160

// Generate generates ids. It changes no row of a tenant, so it does not use the engine.
func (s *IDs) Generate(ctx context.Context, r *pb.GenerateRequest) (*pb.GenerateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, maxRead)
	defer cancel()
	c := callOf(ctx)
	if err := c.rejectKeyAndGuards(); err != nil {
		return nil, err
	}
	form, isOrderNo, err := orderForm(r)
	if err != nil {
		return nil, err
	}
	n := int(max(r.GetCount(), 1))
	if err = c.gate.Reads.reserve(ctx, c, n*idBytes); err != nil {
		return nil, err
	}
	res := &pb.GenerateResponse{Texts: make([]string, 0, n)}
	if r.GetKind() == pb.IdKind_ID_KIND_UUID_V7 {
		for _, id := range s.Generator.UUIDs(n) {
			res.Texts = append(res.Texts, id.String())
		}
		return res, nil
	}
	made, err := s.Generator.Next(ctx, n)
	for _, id := range made {
		if isOrderNo {
			res.Texts = append(res.Texts, form.Write(id))
			continue
		}
		res.Ids = append(res.Ids, int64(id))
		res.Texts = append(res.Texts, id.Text())
	}
	return res, err
}

// orderForm returns the form of order numbers, if the request asks for them.
func orderForm(r *pb.GenerateRequest) (form ids.OrderForm, isOrderNo bool, err error) {
	if r.GetKind() != pb.IdKind_ID_KIND_ORDER_NO {
		return form, false, onlyForOrders(r)
	}
	form, err = ids.NewOrderForm(r.GetPrefix(), r.GetTimeZone())
	return form, true, err
}

// onlyForOrders rejects fields that have no effect on other kinds of ids.
func onlyForOrders(r *pb.GenerateRequest) error {
	var d decoder
	if r.GetPrefix() != "" {
		d.bad("prefix", "must be empty unless kind is ID_KIND_ORDER_NO")
	}
	if r.GetTimeZone() != "" {
		d.bad("time_zone", "must be empty unless kind is ID_KIND_ORDER_NO")
	}
	return d.err()
}

var idKinds = map[ids.Kind]pb.IdKind{ids.Snowflake: pb.IdKind_ID_KIND_SNOWFLAKE,
	ids.UUIDv7:  pb.IdKind_ID_KIND_UUID_V7,
	ids.OrderNo: pb.IdKind_ID_KIND_ORDER_NO}

// Parse returns the parts of an id.
func (s *IDs) Parse(_ context.Context, r *pb.ParseRequest) (*pb.ParseResponse, error) {
	p, err := ids.Parse(r.GetId())
	if err != nil {
		return nil, err
	}
	res := &pb.ParseResponse{Kind: idKinds[p.Kind], Time: timestamppb.New(p.Time), Text: p.Text, Prefix: p.Prefix,
		Date: p.Date}
	if p.Kind != ids.UUIDv7 {
		id, worker, sequence := int64(p.ID), int32(p.ID.Worker()), int32(p.ID.Sequence())
		res.Id, res.Worker, res.Sequence = &id, &worker, &sequence
	}
	return res, nil
}
