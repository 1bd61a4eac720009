package rpc

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Webhooks serves WebhookService.
type Webhooks struct {
	*Mutations
	Reader *webhook.Reader
	Master *secret.Master
}

func (s *Webhooks) CreateEndpoint(ctx context.Context,
	r *pb.CreateEndpointRequest) (*pb.CreateEndpointResponse, error) {
	return run(ctx, s.Mutations, createEndpointOperation, r)
}

var createEndpointOperation = register("notify.create_endpoint",
	func(c *call, d *decoder, r *pb.CreateEndpointRequest) mutation[*pb.CreateEndpointResponse] {
		cmd := &webhook.CreateCommand{Caller: c.caller(), Name: r.GetName(), URL: d.endpointURL(c, r.GetUrl()),
			Types: eventTypes(r.GetTypes()), Description: d.printable("description", r.GetDescription())}
		return newMutation(flow.Webhook(cmd), 1, func(e webhook.Endpoint, _ bool) *pb.CreateEndpointResponse {
			return &pb.CreateEndpointResponse{Endpoint: renderEndpoint(e)}
		})
	})

func (s *Webhooks) UpdateEndpoint(ctx context.Context,
	r *pb.UpdateEndpointRequest) (*pb.UpdateEndpointResponse, error) {
	return run(ctx, s.Mutations, updateEndpointOperation, r)
}

var updateEndpointOperation = register("notify.update_endpoint",
	func(c *call, d *decoder, r *pb.UpdateEndpointRequest) mutation[*pb.UpdateEndpointResponse] {
		cmd := &webhook.UpdateCommand{Caller: c.caller(), Name: r.GetName(), URL: r.Url, Description: r.Description,
			Enabled: r.Enabled}
		if r.Url != nil {
			d.endpointURL(c, r.GetUrl())
		}
		d.printable("description", r.GetDescription())
		if r.GetTypes() != nil {
			types := eventTypes(r.GetTypes())
			cmd.Types = &types
		}
		return newMutation(flow.Webhook(cmd), 1, func(e webhook.Endpoint, _ bool) *pb.UpdateEndpointResponse {
			return &pb.UpdateEndpointResponse{Endpoint: renderEndpoint(e)}
		})
	})

func (s *Webhooks) RotateSecret(ctx context.Context, r *pb.RotateSecretRequest) (*pb.RotateSecretResponse, error) {
	return run(ctx, s.Mutations, rotateSecretOperation, r)
}

var rotateSecretOperation = register("notify.rotate_secret",
	func(c *call, _ *decoder, r *pb.RotateSecretRequest) mutation[*pb.RotateSecretResponse] {
		cmd := &webhook.RotateCommand{Caller: c.caller(), Name: r.GetName(), Version: r.GetSecretVersion(),
			Overlap: durationOr(r.GetOverlap(), webhook.DefaultOverlap)}
		return newMutation(flow.Webhook(cmd), 1, func(e webhook.Endpoint, _ bool) *pb.RotateSecretResponse {
			return &pb.RotateSecretResponse{Endpoint: renderEndpoint(e)}
		})
	})

func (s *Webhooks) DeleteEndpoint(ctx context.Context,
	r *pb.DeleteEndpointRequest) (*pb.DeleteEndpointResponse, error) {
	return run(ctx, s.Mutations, deleteEndpointOperation, r)
}

var deleteEndpointOperation = register("notify.delete_endpoint",
	func(c *call, _ *decoder, r *pb.DeleteEndpointRequest) mutation[*pb.DeleteEndpointResponse] {
		cmd := &webhook.DeleteCommand{Caller: c.caller(), Name: r.GetName()}
		return newMutation(flow.Webhook(cmd), 1, func(e webhook.Endpoint, _ bool) *pb.DeleteEndpointResponse {
			return &pb.DeleteEndpointResponse{Endpoint: renderEndpoint(e)}
		})
	})

func (s *Webhooks) Publish(ctx context.Context, r *pb.PublishRequest) (*pb.PublishResponse, error) {
	return run(ctx, s.Mutations, publishOperation, r)
}

var publishOperation = register("notify.publish",
	func(c *call, d *decoder, r *pb.PublishRequest) mutation[*pb.PublishResponse] {
		if !json.Valid(r.GetData()) {
			d.bad("data", "is not JSON")
		}
		cmd := &flow.Publish{Caller: c.caller(),
			Params: notify.Params{Channel: send.Webhook, Content: send.Content{Type: r.GetType(), Data: r.GetData()},
				BusinessType: flow.BusinessType(r.GetType()), BizNo: d.bizNo("biz_no", r.GetBizNo()),
				Priority: priorities[r.GetPriority()], GiveUpAfter: r.GetGiveUpAfter().AsDuration(),
				MaxAttempts: r.GetMaxAttempts()}}
		return newMutation(cmd, 10*sendRows, func(p flow.Published, _ bool) *pb.PublishResponse {
			res := &pb.PublishResponse{}
			for i, m := range p.Messages {
				res.Messages = append(res.Messages,
					&pb.PublishedMessage{Endpoint: p.Endpoints[i], MessageId: m.ID, Existed: p.Existed[i]})
			}
			return res
		})
	})

func (s *Webhooks) GetSecret(ctx context.Context, r *pb.GetSecretRequest) (*pb.GetSecretResponse, error) {
	if err := s.Master.Check(); err != nil {
		return nil, err
	}
	noStore(ctx)
	e, err := s.Reader.Endpoint(ctx, webhook.Key{Tenant: callOf(ctx).identity.Tenant, Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	res := &pb.GetSecretResponse{}
	for i, secret := range e.Secrets(s.Master, time.Now()) {
		res.Secrets = append(res.Secrets, &pb.Secret{Version: e.Version - int32(i), Secret: secret.String()})
	}
	return res, nil
}

func (s *Webhooks) GetEndpoint(ctx context.Context, r *pb.GetEndpointRequest) (*pb.GetEndpointResponse, error) {
	e, err := s.Reader.Endpoint(ctx, webhook.Key{Tenant: callOf(ctx).identity.Tenant, Name: r.GetName()})
	return &pb.GetEndpointResponse{Endpoint: renderEndpoint(e)}, err
}

func (s *Webhooks) ListEndpoints(ctx context.Context, r *pb.ListEndpointsRequest) (*pb.ListEndpointsResponse, error) {
	endpoints, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListEndpointsResponse{Endpoints: each(endpoints, renderEndpoint), NextPageToken: next}, err
}

func (d *decoder) endpointURL(c *call, url string) string {
	if err := c.gate.Webhooks.URL(url); err != nil {
		d.bad("url", err.Error())
	}
	return url
}

// eventTypes returns the types sorted: their order has no meaning.
func eventTypes(r *pb.EventTypes) []string { return slices.Sorted(slices.Values(r.GetTypes())) }

var disabledReasons = map[string]pb.DisabledReason{"": pb.DisabledReason_DISABLED_REASON_UNSPECIFIED,
	webhook.ByCaller: pb.DisabledReason_DISABLED_REASON_BY_CALLER,
	webhook.Gone:     pb.DisabledReason_DISABLED_REASON_GONE,
	webhook.Failing:  pb.DisabledReason_DISABLED_REASON_FAILING}

func renderEndpoint(e webhook.Endpoint) *pb.Endpoint {
	return &pb.Endpoint{Name: e.Name, Url: e.URL, Types: e.Types, Description: e.Description,
		DisabledReason: disabledReasons[e.Disabled], DisableTime: timestamp(e.DisabledAt), SecretVersion: e.Version,
		PreviousExpireTime: timestamp(e.PreviousExpiresAt), FailingSince: timestamp(e.FailingSince),
		CreateTime: timestamp(e.CreatedAt)}
}
