package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(holderURL); url != "" {
		holdUntilLost(url)
		return
	}
	pgtest.Main(m)
}

// master is the key of all servers: those on one database must share it.
var master = secret.New()

// startServer runs a real server on a database until the test ends.
func startServer(t testing.TB, db *pgtest.DB) (baseURL string) {
	t.Helper()
	tenant, err := access.EnsureTenant(context.Background(), pgtest.Pool(t, db.AdminDSN), "test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(context.Background(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: tenant, Principal: "test", Role: access.Admin}, Secret: master,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return "http://" + s.Addr()
}

// startLedger is startServer on its own database.
func startLedger(t testing.TB) (baseURL string) {
	t.Helper()
	return startLedgerOn(t, pgtest.New(t))
}

// startLedgerOn is startServer with the asset CNY, an unbounded account "world", "alice" with 100.00, and empty
// "bob" and "shop".
func startLedgerOn(t testing.TB, db *pgtest.DB) (baseURL string) {
	t.Helper()
	baseURL = startServer(t, db)
	c := client.New(baseURL)
	defer c.Close()
	ctx := context.Background()
	if _, err := c.Ledger.CreateAssets(ctx,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.CreateAccounts(ctx, &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "world", Asset: "CNY", Unbounded: true}, {Code: "alice", Asset: "CNY"}, {Code: "bob",
			Asset: "CNY"}, {Code: "shop", Asset: "CNY"},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.Transfer(ctx, transfer("top-up", "world", "alice", "100.00")); err != nil {
		t.Fatal(err)
	}
	return baseURL
}

func transfer(bizNo, from, to, amount string) *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: bizNo,
		Postings: []*ledgerv1.Posting{{From: from, To: to, Asset: "CNY", Amount: amount}}}
}

// protocols are the wire protocols; every guarantee must hold over each.
var protocols = map[string][]client.Option{
	"connect": nil, "json": {client.WithJSON()}, "grpc": {client.WithGRPC()},
}

func eachProtocol(t *testing.T, test func(t *testing.T, opts ...client.Option)) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) { test(t, opts...) })
	}
}

// newClient makes a client whose connections are closed when the test ends.
func newClient(t testing.TB, baseURL string, opts ...client.Option) *client.Client {
	c := client.New(baseURL, opts...)
	t.Cleanup(c.Close)
	return c
}

// rpcs counts the RPCs on the wire and records their keys.
type rpcs struct {
	mu   sync.Mutex
	keys map[string][]string // by procedure
}

func (r *rpcs) option() client.Option {
	return client.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			r.mu.Lock()
			if r.keys == nil {
				r.keys = map[string][]string{}
			}
			p := req.Spec().Procedure
			r.keys[p] = append(r.keys[p], req.Header().Get(client.KeyHeader))
			r.mu.Unlock()
			return next(ctx, req)
		}
	}))
}

func (r *rpcs) of(procedure string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[procedure]
}

// losing is an HTTP client that loses answers after the server has done its work.
type losing struct {
	connect.HTTPClient
	lose atomic.Int32 // answers still to lose
}

func (l *losing) Do(r *http.Request) (*http.Response, error) {
	res, err := l.HTTPClient.Do(r)
	if err != nil || l.lose.Add(-1) < 0 {
		return res, err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return nil, fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
}

func (l *losing) CloseIdleConnections() { l.HTTPClient.(*http.Client).CloseIdleConnections() }

func newLosing(lose int32) *losing {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetUnencryptedHTTP2(true)
	l := &losing{HTTPClient: &http.Client{Transport: t}}
	l.lose.Store(lose)
	return l
}

// forExamples is a testing.TB for functions without one.
type forExamples struct {
	testing.TB
	cleanups []func()
}

// exampleLedger is startLedger for examples: end stops the server and drops its database.
func exampleLedger() (baseURL string, end func()) {
	t := new(forExamples)
	return startLedger(t), func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
	}
}

func (t *forExamples) Helper()                    {}
func (t *forExamples) Name() string               { return "example" }
func (t *forExamples) Failed() bool               { return false }
func (t *forExamples) Cleanup(f func())           { t.cleanups = append(t.cleanups, f) }
func (t *forExamples) Error(args ...any)          { panic(fmt.Sprint(args...)) }
func (t *forExamples) Errorf(f string, a ...any)  { panic(fmt.Sprintf(f, a...)) }
func (t *forExamples) Fatal(args ...any)          { panic(fmt.Sprint(args...)) }
func (t *forExamples) Fatalf(f string, a ...any)  { panic(fmt.Sprintf(f, a...)) }
func (t *forExamples) Logf(f string, args ...any) { fmt.Fprintf(os.Stderr, f+"\n", args...) }
