package rpc

import (
	"context"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// LimitNotFound refuses to remove a limit that the tenant does not have.
var LimitNotFound = fault.Register(fault.Reason{Name: "LIMIT_NOT_FOUND", Class: fault.BadRequest,
	Code: fault.NotFound, Step: fault.Fix, Doc: "The tenant has no limit of this channel, scope and window."})

func messageLimit(l *pb.Limit) notify.Limit {
	return notify.Limit{Channel: send.Channel(l.GetChannel()), Scope: l.GetScope(), Window: l.GetWindow().AsDuration(),
		MaxMessages: l.GetMaxMessages()}
}

func (s *Admin) PutLimit(ctx context.Context, r *pb.PutLimitRequest) (*pb.PutLimitResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	l := messageLimit(r.GetLimit())
	if r.GetLimit().MaxMessages == nil {
		return nil, fault.InvalidField("limit.max_messages", "must be set: 0 allows no message")
	}
	return &pb.PutLimitResponse{}, a.Change(ctx, tenant, func(ctx context.Context, tx pgx.Tx) (audit.Change, error) {
		x, err := notify.PutLimit(ctx, tx, tenant, l)
		return x, fault.In("limit.", err)
	})
}

func (s *Admin) ListLimits(ctx context.Context, r *pb.ListLimitsRequest) (*pb.ListLimitsResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	all, err := notify.ListLimits(ctx, a.Pool(), tenant)
	if err != nil {
		return nil, err
	}
	list, next, err := onePage(all, "admin.limits", tenant, r)
	return &pb.ListLimitsResponse{NextPageToken: next, Limits: each(list, func(l notify.Limit) *pb.Limit {
		return &pb.Limit{Channel: string(l.Channel), Scope: l.Scope, Window: durationpb.New(l.Window),
			MaxMessages: proto.Int32(l.MaxMessages)}
	})}, err
}

func (s *Admin) DeleteLimit(ctx context.Context, r *pb.DeleteLimitRequest) (*pb.DeleteLimitResponse, error) {
	a, tenant, err := s.begin(ctx, r.GetTenant())
	if err != nil {
		return nil, err
	}
	return &pb.DeleteLimitResponse{}, a.Change(ctx, tenant, func(ctx context.Context, tx pgx.Tx) (audit.Change, error) {
		x, err := notify.DeleteLimit(ctx, tx, tenant, messageLimit(r.GetLimit()))
		err = fault.In("limit.", err)
		if err == nil && x.Before == nil {
			err = LimitNotFound.New("the tenant has no such limit").
				WithField("limit", "must be a limit of the tenant")
		}
		return x, err
	})
}
