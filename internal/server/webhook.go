package server

import (
	"context"
	"maps"
	"net/http"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// webhooks makes the sender of webhooks. What it sees of endpoints goes through the engine.
func (s *Server) webhooks() (send.Sender, error) {
	return webhook.New(webhook.Settings{Guard: s.options.Webhooks, Master: s.options.Secret, Find: webhook.NewReader(s.reads).Endpoint, Log: s.log,
		Observe: func(ctx context.Context, o webhook.Observation) error {
			out, err := s.engine.Do(ctx, flow.Work{Tenant: o.Tenant, Command: flow.Webhook(&webhook.ObserveCommand{Observation: o}), Rows: 1, Bytes: 512})
			if err != nil {
				return err
			}
			if seen := out.Answer.(webhook.Observed); seen.Now {
				s.log.WarnContext(ctx, "a webhook endpoint was disabled", "tenant_id", o.Tenant, "endpoint", o.Name, "reason", seen.Disabled)
			}
			return nil
		}})
}

// reports serves what providers post about messages.
func (s *Server) reports(mux *http.ServeMux) {
	sources := maps.Clone(s.options.Reports)
	if s.senders != nil {
		sources = s.senders.Reports
		maps.Copy(sources, s.options.Reports)
	}
	h := &report.Handler{Sources: sources, Find: report.NewFinder(s.reads).Tenant, Log: s.log,
		Take: func(ctx context.Context, requestID string, reports []report.Placed) error {
			return flow.TakeReports(ctx, s.engine, requestID, reports)
		}}
	h.Register(mux)
}
