package server

import (
	"context"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// sendPool is the size of the pool that leases messages and records their outcomes.
const sendPool = 6

// openOutbox opens the outbox and its workers, which send through the configured providers, and webhooks directly.
// Messages of other channels wait for other processes. Without a master key messages are refused. An unknown tenant in
// the configuration is an error.
func (s *Server) openOutbox(ctx context.Context, instance string) error {
	o := &s.options
	s.outbox = &notify.Outbox{Master: o.Secret, Instance: instance, Region: o.Region, Stored: rpc.StoredMessages,
		Metrics: notify.NewMetrics(s.registry)}
	if o.Secret.Check() != nil {
		return nil
	}
	hooks, err := webhook.New(webhook.Settings{URLs: o.Webhooks, Master: o.Secret,
		Find:    s.endpoint,
		Observe: s.observeEndpoint, Log: s.log})
	if err != nil {
		return err
	}
	tenant := func(name string) (int32, error) { return access.Tenant(ctx, s.reads, name) }
	if s.senders, err = o.Notify.Build(&provider.Env{Tenant: tenant, Registerer: s.registry, Log: s.log,
		Webhooks: hooks}); err != nil {
		return err
	}
	if s.sends, err = pg.Open(ctx, o.DatabaseURL, sendPool); err != nil {
		_ = s.senders.Close()
		return err
	}
	policies := map[send.Channel]deliver.Policy{}
	for channel, n := range s.senders.Concurrency {
		policies[channel] = deliver.Policy{Attempts: n}
	}
	s.pool = deliver.New(deliver.Config{DB: s.sends, Senders: s.senders.ByChannel, Policies: policies,
		Instance: instance, Keys: s.keys(), Secret: o.Secret,
		Drain: s.drainTimeout(), Metrics: deliver.NewMetrics(s.registry), Log: s.log})
	s.outbox.Handoff = s.pool
	return nil
}

// keys returns the keys of messages. It requires a master key.
func (s *Server) keys() send.Keys { return send.NewKeys(s.options.Secret.Derive("notify.origin")) }

// deliver sends messages until shutdown begins, then closes the senders. Running attempts and calls in flight share the
// drain timeout. Messages accepted meanwhile wait for other processes.
func (s *Server) deliver(ctx context.Context) {
	if s.pool == nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	}()
	s.pool.Run(ctx)
	if err := s.senders.Close(); err != nil {
		s.log.Warn("could not close the senders", "error", err)
	}
}

// endpoint finds an endpoint for an attempt to send.
func (s *Server) endpoint(ctx context.Context, k webhook.Key) (webhook.Endpoint, error) {
	return webhook.NewReader(s.reads).Endpoint(pg.ForTenants(ctx, k.Tenant), k)
}

// observeEndpoint records the outcome of an attempt at an endpoint.
func (s *Server) observeEndpoint(ctx context.Context, o webhook.Observation) error {
	for _, r := range s.engine.DoAll(ctx, []flow.Submission{{Tenant: o.Tenant, RequestID: "webhooks",
		Command: flow.Webhook(&webhook.ObserveCommand{Observation: o}), Rows: 1, Bytes: 256}}) {
		if r.Err != nil {
			return fmt.Errorf("observe an endpoint: %w", r.Err)
		}
		if seen, ok := r.Outcome.Answer.(webhook.Observed); ok && seen.Now {
			s.log.WarnContext(ctx, "a webhook endpoint was disabled", "tenant_id", o.Tenant, "endpoint", o.Name,
				"reason", seen.Disabled)
		}
	}
	return nil
}
