package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
	"github.com/ledgerd/ledgerd/internal/ids"
)

// IDs serves IdService.
type IDs struct{ Generator *ids.Generator }

var _ idv1connect.IdServiceHandler = (*IDs)(nil)

// Generate makes ids. It changes no row that anybody reads, so it does not go through the engine.
func (s *IDs) Generate(ctx context.Context, r *idv1.GenerateRequest) (*idv1.GenerateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, maxRead)
	defer cancel()
	if err := callOf(ctx).recordsNothing(); err != nil {
		return nil, err
	}
	n, res := int(max(r.GetCount(), 1)), &idv1.GenerateResponse{}
	if r.GetKind() == idv1.IdKind_ID_KIND_ORDER_NO {
		return s.orderNumbers(ctx, r, n)
	}
	if err := onlyForOrders(r); err != nil {
		return nil, err
	}
	if r.GetKind() == idv1.IdKind_ID_KIND_UUID_V7 {
		for _, id := range s.Generator.UUIDs(n) {
			res.Texts = append(res.Texts, id.String())
		}
		return res, nil
	}
	made, err := s.Generator.Next(ctx, n)
	for _, id := range made {
		res.Ids, res.Texts = append(res.Ids, int64(id)), append(res.Texts, id.Text())
	}
	return res, err
}

func (s *IDs) orderNumbers(ctx context.Context, r *idv1.GenerateRequest, n int) (*idv1.GenerateResponse, error) {
	form, err := ids.NewOrderForm(r.GetPrefix(), r.GetTimeZone())
	if err != nil {
		return nil, err
	}
	made, err := s.Generator.Next(ctx, n)
	res := &idv1.GenerateResponse{}
	for _, id := range made {
		res.Texts = append(res.Texts, form.Write(id))
	}
	return res, err
}

// onlyForOrders refuses what would have no effect on other ids.
func onlyForOrders(r *idv1.GenerateRequest) error {
	var d decoder
	if r.GetPrefix() != "" {
		d.bad("prefix", "must be empty unless kind is ID_KIND_ORDER_NO")
	}
	if r.GetTimeZone() != "" {
		d.bad("time_zone", "must be empty unless kind is ID_KIND_ORDER_NO")
	}
	return d.err()
}

var idKinds = map[ids.Kind]idv1.IdKind{ids.Snowflake: idv1.IdKind_ID_KIND_SNOWFLAKE,
	ids.UUIDv7:  idv1.IdKind_ID_KIND_UUID_V7,
	ids.OrderNo: idv1.IdKind_ID_KIND_ORDER_NO}

// Parse tells what stands in an id.
func (s *IDs) Parse(_ context.Context, r *idv1.ParseRequest) (*idv1.ParseResponse, error) {
	p, err := ids.Parse(r.GetId())
	if err != nil {
		return nil, err
	}
	res := &idv1.ParseResponse{Kind: idKinds[p.Kind], Time: timestamppb.New(p.Time), Text: p.Text, Prefix: p.Prefix,
		Date: p.Date}
	if p.Kind != ids.UUIDv7 {
		id, worker, sequence := int64(p.ID), int32(p.ID.Worker()), int32(p.ID.Sequence())
		res.Id, res.Worker, res.Sequence = &id, &worker, &sequence
	}
	return res, nil
}
