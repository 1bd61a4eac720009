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
)

// sendPool is for taking messages, and for writing what became of them.
const sendPool = 6

// openOutbox makes the outbox, and what delivers its messages: by the providers of the configuration, and
// webhooks by ourselves. Messages of channels without either wait for other processes. Without a master key there are
// no messages. A tenant in the configuration that is not there is an error.
func (s *Server) openOutbox(ctx context.Context, instance string) error {
	o := &s.options
	s.outbox = &notify.Outbox{Master: o.Secret, Instance: instance, Region: o.Region,
		Metrics: notify.NewMetrics(s.registry)}
	if o.Secret.Check() != nil {
		return nil
	}
	hooks, err := webhook.New(webhook.Settings{Guard: o.Webhooks, Master: o.Secret,
		Find:    webhook.NewReader(s.reads).Endpoint,
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

// keys are those of messages. The server has a master key.
func (s *Server) keys() send.Keys { return send.NewKeys(s.options.Secret.Derive("notify.origin")) }

// deliver sends until the server ends, and then closes what is open. Attempts end while calls do, in the same time;
// what is accepted meanwhile waits for other processes.
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

// observeEndpoint tells transactions what became of an attempt at an endpoint.
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
