package rpc

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// silentEngine returns an engine whose database accepts connections and never answers, and its number of waiting rows.
func silentEngine(t *testing.T) (e *flow.Engine, waiting func() float64) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	pool, err := pgxpool.New(context.Background(),
		"postgres://x@"+silent.Addr().String()+"/x?sslmode=disable&connect_timeout=60")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	return flow.NewEngine(pool, "test", commit.NewMetrics(reg), slog.New(slog.DiscardHandler)), func() float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "ledgerd_commit_inflight_rows" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("there is no ledgerd_commit_inflight_rows")
		return 0
	}
}

// If the engine admits no item of a call, the call has one error, not one for each item.
func TestBatchRefusedByTheEngineHasOneError(t *testing.T) {
	t.Parallel()
	engine, waiting := silentEngine(t)
	mutations := &Mutations{Engine: engine, KeyLife: time.Hour}
	gate := &Gate{Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil)}
	c := &call{gate: gate, procedure: "x", identity: access.Identity{Tenant: 1}, header: http.Header{},
		requestID: "r", key: "k"}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), callKey{}, c))
	full := make(chan error, 1)
	go func() { // fills the tenant's share of the queue
		_, err := engine.Do(ctx, flow.Submission{Tenant: 1, Command: flow.Ledger(&ledger.TransferAllCommand{}),
			Rows: 100, Bytes: 32 << 20})
		full <- err
	}()
	for tick := time.NewTicker(time.Millisecond); waiting() < 100; <-tick.C {
	}
	transfers, messages := &ledgerv1.TransferBatchRequest{}, &notifyv1.SendBatchRequest{}
	for range 3 {
		transfers.Items = append(transfers.Items,
			&ledgerv1.TransferBatchItem{Transfer: &ledgerv1.TransferRequest{BizNo: "n",
				Postings: []*ledgerv1.Posting{{From: "a", To: "b", Asset: "CNY", Amount: "1"}}}})
		messages.Items = append(messages.Items, &notifyv1.SendRequest{BizNo: "n", Channel: notifyv1.Channel_CHANNEL_SMS,
			Recipient: "+8613800138000",
			Says:      &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "hello"}}})
	}
	// An item that is invalid in itself.
	transfers.Items = append(transfers.Items,
		&ledgerv1.TransferBatchItem{IdempotencyKey: "\n", Transfer: transfers.Items[0].Transfer})
	res, err := (&Ledger{Mutations: mutations}).TransferBatch(ctx, transfers)
	if f := fault.Of(err); f == nil || f.Reason != fault.Busy || f.RetryAfter == 0 || res != nil {
		t.Errorf("TransferBatch: %v, %v", res, err)
	}
	sent, err := (&Notify{Mutations: mutations}).SendBatch(ctx, messages)
	if !fault.Is(err, fault.Busy) || sent != nil {
		t.Errorf("SendBatch: %v, %v", sent, err)
	}
	cancel()
	if err := <-full; err == nil || strings.Contains(err.Error(), "panic") {
		t.Errorf("waiting submission: %v", err)
	}
}
