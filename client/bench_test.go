package client_test

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

// stub answers transfers without doing anything, so that only the client is measured.
type stub struct {
	ledgerv1connect.UnimplementedLedgerServiceHandler
}

var stubTransfer = &ledgerv1.Transfer{Id: 1 << 40, BizNo: "bench-0000001", Type: "transfer",
	RequestId: "0123456789abcdefghjkmnpq",
	Postings:  []*ledgerv1.Posting{{From: "user:1001:wallet", To: "merchant:shop", Asset: "CNY", Amount: "12.30"}},
	Entries: []*ledgerv1.Entry{
		{Account: "user:1001:wallet", Asset: "CNY", Version: 17, Amount: "-12.30", BalanceBefore: "100.00",
			BalanceAfter: "87.70", TransferId: 1 << 40},
		{Account: "merchant:shop", Asset: "CNY", Version: 99, Amount: "12.30", BalanceBefore: "100.00",
			BalanceAfter: "112.30", TransferId: 1 << 40}}}

func (stub) Transfer(context.Context, *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	return &ledgerv1.TransferResponse{Transfer: stubTransfer}, nil
}

func (stub) TransferBatch(_ context.Context,
	r *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	res := &ledgerv1.TransferBatchResponse{Results: make([]*ledgerv1.TransferBatchResult, len(r.GetItems()))}
	for i := range res.Results {
		res.Results[i] = &ledgerv1.TransferBatchResult{Transfer: stubTransfer}
	}
	return res, nil
}

// serve runs a handler on its own port until the test ends.
func serve(t testing.TB, handler ledgerv1connect.LedgerServiceHandler, opts ...connect.HandlerOption) (baseURL string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(ledgerv1connect.NewLedgerServiceHandler(handler, opts...))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + listener.Addr().String()
}

// benchTransfers runs 512 closed-loop callers, like the goroutines of one program.
func benchTransfers(b *testing.B, url, from string, opts ...client.Option) {
	c := newClient(b, url, opts...)
	var callers atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(512 / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		prefix := strconv.FormatInt(callers.Add(1), 10) + "-"
		for n := 0; pb.Next(); n++ {
			if _, err := c.Ledger.Transfer(b.Context(),
				transfer(prefix+strconv.Itoa(n), from, "bob", "0.01")); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transfers/s")
}

// A stub service shows the cost of the client itself, with half of HTTP.
func BenchmarkClientOneByOne(b *testing.B) { benchTransfers(b, serve(b, stub{}), "alice") }
func BenchmarkClientGathered(b *testing.B) {
	benchTransfers(b, serve(b, stub{}), "alice", client.WithGather())
}

// The real server shares the CPU with the client and Postgres, which runs without fsync here.
func BenchmarkLedgerOneByOne(b *testing.B) { benchTransfers(b, startLedger(b), "world") }
func BenchmarkLedgerGathered(b *testing.B) {
	benchTransfers(b, startLedger(b), "world", client.WithGather())
}
