package rpc

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
)

func simple() *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: "order-1", Metadata: map[string]string{"order": "77"},
		Postings: []*ledgerv1.Posting{{From: "user:1001:wallet", To: "merchant:shop", Asset: "CNY", Amount: "12.30"}}}
}

// BenchmarkTransferEdge measures the work of this package for a transfer: Connect, the gate, decoding, the fingerprint,
// rendering and recording. It excludes the network, the lookup of the API key, and the engine.
func BenchmarkTransferEdge(b *testing.B) {
	gate := &Gate{Metrics: NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
		Authenticate: func(context.Context, string) (access.Identity, error) {
			return access.Identity{Tenant: 1, Principal: "p", Role: access.Write}, nil
		}}
	done := sampleTransfer()
	work := func(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
		c := callOf(ctx)
		var d decoder
		p := d.transfer(r, "")
		g := transfer(c.caller(), r, p)
		plain(r)
		if _, err := g.submission(c, nil, r).Command, d.err(); err != nil {
			return nil, err
		}
		res := g.render(done, false)
		_, err := marshal.Marshal(res)
		return res, err
	}
	method := ledgerv1.File_ledgerd_ledger_v1_ledger_service_proto.Services().ByName("LedgerService").Methods().
		ByName("Transfer")
	h := NewAdmission(nil).Handler(slog.New(slog.DiscardHandler), connect.NewUnaryHandlerSimple(
		ledgerv1connect.LedgerServiceTransferProcedure, work, append(gate.Options(), connect.WithSchema(method))...))
	for _, codec := range []connect.Codec{protoCodec{}, jsonCodec{"json"}} {
		body, err := codec.Marshal(simple())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(codec.Name(), func(b *testing.B) {
			b.ReportAllocs()
			w := &sink{header: http.Header{}}
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, ledgerv1connect.LedgerServiceTransferProcedure,
					bytes.NewReader(body))
				r.Header = http.Header{"Content-Type": {"application/" + codec.Name()}, "Authorization": {"Bearer k"},
					KeyHeader: {"key"}}
				clear(w.header)
				h.ServeHTTP(w, r)
				if w.code != 0 && w.code != 200 {
					b.Fatal(w.code)
				}
			}
		})
	}
}

type sink struct {
	header http.Header
	code   int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(code int)        { s.code = code }

func BenchmarkParts(b *testing.B) {
	r := simple()
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	run("check", func() { _ = check(r) })
	run("findInvalid", func() { findInvalid(r.ProtoReflect()) })
	run("fingerprint", func() { plain(r) })
	run("decode", func() { var d decoder; d.transfer(r, "") })
	t := sampleTransfer()
	run("render", func() { renderTransfer(t, true) })
	res := &ledgerv1.TransferResponse{Transfer: renderTransfer(t, true)}
	run("record", func() { _, _ = marshal.Marshal(res) })
	run("json", func() { _, _ = jsonCodec{"json"}.Marshal(res) })
	run("request id", func() { newRequestID() })
}
