package server

import (
	"context"
	"net/http"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/report"
)

// reports serves delivery reports of providers, if any provider sends them.
func (s *Server) reports(mux *http.ServeMux) {
	if s.senders == nil || len(s.senders.Reports) == 0 {
		return
	}
	h := &report.Handler{Sources: s.senders.Reports, Find: report.NewFinder(s.reads).Tenant, Keys: s.keys(), Log: s.log,
		Take: func(ctx context.Context, requestID string, reports []report.Placed) error {
			return flow.TakeReports(ctx, s.engine, requestID, reports)
		}}
	h.Register(mux)
}
