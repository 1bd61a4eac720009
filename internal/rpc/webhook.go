package rpc

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
	"github.com/ledgerd/ledgerd/internal/commit"
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

var _ notifyv1connect.WebhookServiceHandler = (*Webhooks)(nil)

func (c *call) webhookCaller() commit.Caller {
	return commit.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, RequestID: c.requestID}
}

// CreateEndpoint makes an endpoint.
func (s *Webhooks) CreateEndpoint(ctx context.Context,
	r *notifyv1.CreateEndpointRequest) (*notifyv1.CreateEndpointResponse, error) {
	return run(ctx, s.Mutations, createEndpointCall, r)
}

var createEndpointCall = register("webhook.create",
	func(c *call, d *decoder, r *notifyv1.CreateEndpointRequest) mutation[*notifyv1.CreateEndpointResponse] {
		cmd := &webhook.CreateCommand{Caller: c.webhookCaller(), Name: r.GetName(), URL: d.endpointURL(c, r.GetUrl()),
			Types: eventTypes(r.GetTypes()), Description: d.printable("description", r.GetDescription())}
		return mutation[*notifyv1.CreateEndpointResponse]{command: flow.Webhook(cmd),
			render: func(answer any, _ bool) (*notifyv1.CreateEndpointResponse, error) {
				return &notifyv1.CreateEndpointResponse{Endpoint: renderEndpoint(answer.(webhook.Endpoint))}, nil
			}}
	})

// UpdateEndpoint changes an endpoint.
func (s *Webhooks) UpdateEndpoint(ctx context.Context,
	r *notifyv1.UpdateEndpointRequest) (*notifyv1.UpdateEndpointResponse, error) {
	return run(ctx, s.Mutations, updateEndpointCall, r)
}

var updateEndpointCall = register("webhook.update",
	func(c *call, d *decoder, r *notifyv1.UpdateEndpointRequest) mutation[*notifyv1.UpdateEndpointResponse] {
		cmd := &webhook.UpdateCommand{Caller: c.webhookCaller(), Name: r.GetName(), URL: r.Url,
			Description: r.Description,
			Enabled:     r.Enabled}
		if r.Url != nil {
			d.endpointURL(c, r.GetUrl())
		}
		d.printable("description", r.GetDescription())
		if r.GetTypes() != nil {
			types := eventTypes(r.GetTypes())
			cmd.Types = &types
		}
		return mutation[*notifyv1.UpdateEndpointResponse]{command: flow.Webhook(cmd),
			render: func(answer any, _ bool) (*notifyv1.UpdateEndpointResponse, error) {
				return &notifyv1.UpdateEndpointResponse{Endpoint: renderEndpoint(answer.(webhook.Endpoint))}, nil
			}}
	})

// RotateSecret replaces a secret.
func (s *Webhooks) RotateSecret(ctx context.Context,
	r *notifyv1.RotateSecretRequest) (*notifyv1.RotateSecretResponse, error) {
	return run(ctx, s.Mutations, rotateSecretCall, r)
}

var rotateSecretCall = register("webhook.rotate",
	func(c *call, _ *decoder, r *notifyv1.RotateSecretRequest) mutation[*notifyv1.RotateSecretResponse] {
		cmd := &webhook.RotateCommand{Caller: c.webhookCaller(), Name: r.GetName(), Version: r.GetSecretVersion(),
			Overlap: lifeOr(r.GetOverlap(), webhook.DefaultOverlap)}
		return mutation[*notifyv1.RotateSecretResponse]{command: flow.Webhook(cmd),
			render: func(answer any, _ bool) (*notifyv1.RotateSecretResponse, error) {
				return &notifyv1.RotateSecretResponse{Endpoint: renderEndpoint(answer.(webhook.Endpoint))}, nil
			}}
	})

// DeleteEndpoint does away with an endpoint.
func (s *Webhooks) DeleteEndpoint(ctx context.Context,
	r *notifyv1.DeleteEndpointRequest) (*notifyv1.DeleteEndpointResponse, error) {
	return run(ctx, s.Mutations, deleteEndpointCall, r)
}

var deleteEndpointCall = register("webhook.delete",
	func(c *call, _ *decoder, r *notifyv1.DeleteEndpointRequest) mutation[*notifyv1.DeleteEndpointResponse] {
		cmd := &webhook.DeleteCommand{Caller: c.webhookCaller(), Name: r.GetName()}
		return mutation[*notifyv1.DeleteEndpointResponse]{command: flow.Webhook(cmd),
			render: func(answer any, _ bool) (*notifyv1.DeleteEndpointResponse, error) {
				return &notifyv1.DeleteEndpointResponse{Endpoint: renderEndpoint(answer.(webhook.Endpoint))}, nil
			}}
	})

// Publish sends an event to all endpoints that want it.
func (s *Webhooks) Publish(ctx context.Context, r *notifyv1.PublishRequest) (*notifyv1.PublishResponse, error) {
	return run(ctx, s.Mutations, publishCall, r)
}

var publishCall = register("webhook.publish",
	func(c *call, d *decoder, r *notifyv1.PublishRequest) mutation[*notifyv1.PublishResponse] {
		if !json.Valid(r.GetData()) {
			d.bad("data", "is not JSON")
		}
		cmd := &flow.Publish{Caller: c.webhookCaller(),
			Params: notify.Params{Channel: send.Webhook, Content: send.Content{Type: r.GetType(), Data: r.GetData()},
				BusinessType: businessType(r.GetType()), BizNo: d.bizNo("biz_no", r.GetBizNo()),
				Priority:    priorities[r.GetPriority()],
				GiveUpAfter: r.GetGiveUpAfter().AsDuration(), MaxAttempts: r.GetMaxAttempts()}}
		return mutation[*notifyv1.PublishResponse]{command: cmd, rows: 10 * sendRows,
			render: func(answer any, _ bool) (*notifyv1.PublishResponse, error) {
				p, res := answer.(flow.Published), &notifyv1.PublishResponse{}
				for i, m := range p.Messages {
					res.Messages = append(res.Messages,
						&notifyv1.PublishedMessage{Endpoint: p.Endpoints[i], MessageId: m.ID, Existed: p.Existed[i]})
				}
				return res, nil
			}}
	})

// businessType is a type of event, if it fits.
func businessType(event string) string {
	if len(event) > 64 {
		return ""
	}
	return event
}

// GetSecret tells the secrets that sign now.
func (s *Webhooks) GetSecret(ctx context.Context, r *notifyv1.GetSecretRequest) (*notifyv1.GetSecretResponse, error) {
	if err := s.Master.Check(); err != nil {
		return nil, err
	}
	c := callOf(ctx)
	c.secret = true
	e, err := s.Reader.Endpoint(ctx, webhook.Key{Tenant: c.identity.Tenant, Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	res := &notifyv1.GetSecretResponse{}
	for i, secret := range e.Secrets(s.Master, time.Now()) {
		res.Secrets = append(res.Secrets, &notifyv1.Secret{Version: e.Version - int32(i), Secret: secret.String()})
	}
	return res, nil
}

// GetEndpoint shows an endpoint.
func (s *Webhooks) GetEndpoint(ctx context.Context,
	r *notifyv1.GetEndpointRequest) (*notifyv1.GetEndpointResponse, error) {
	e, err := s.Reader.Endpoint(ctx, webhook.Key{Tenant: callOf(ctx).identity.Tenant, Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	return &notifyv1.GetEndpointResponse{Endpoint: renderEndpoint(e)}, nil
}

// ListEndpoints lists endpoints by name.
func (s *Webhooks) ListEndpoints(ctx context.Context,
	r *notifyv1.ListEndpointsRequest) (*notifyv1.ListEndpointsResponse, error) {
	endpoints, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, int(r.GetPageSize()), r.GetPageToken())
	res := &notifyv1.ListEndpointsResponse{NextPageToken: next}
	for _, e := range endpoints {
		res.Endpoints = append(res.Endpoints, renderEndpoint(e))
	}
	return res, err
}

func (d *decoder) endpointURL(c *call, url string) string {
	if err := c.gate.Webhooks.URL(url); err != nil {
		d.bad("url", err.Error())
	}
	return url
}

// eventTypes are sorted: their order means nothing.
func eventTypes(r *notifyv1.EventTypes) []string { return slices.Sorted(slices.Values(r.GetTypes())) }

var disabledReasons = map[string]notifyv1.DisabledReason{"": notifyv1.DisabledReason_DISABLED_REASON_UNSPECIFIED,
	webhook.ByCaller: notifyv1.DisabledReason_DISABLED_REASON_BY_CALLER,
	webhook.Gone:     notifyv1.DisabledReason_DISABLED_REASON_GONE,
	webhook.Failing:  notifyv1.DisabledReason_DISABLED_REASON_FAILING}

func renderEndpoint(e webhook.Endpoint) *notifyv1.Endpoint {
	return &notifyv1.Endpoint{Name: e.Name, Url: e.URL, Types: e.Types, Description: e.Description,
		DisabledReason: disabledReasons[e.Disabled],
		DisableTime:    timestamp(e.DisabledAt), SecretVersion: e.Version,
		PreviousExpireTime: timestamp(e.PreviousUntil),
		FailingSince:       timestamp(e.FailingSince), CreateTime: timestamp(e.CreatedAt)}
}
