package rpc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// BenchmarkServersOverConnect measures transfers of 256 callers over one, two and four servers on one database, with
// COMMIT slowed by commit_delay. flow's BenchmarkServers does so in process. A failed call fails the benchmark. Compare
// within one run; one operation is one transfer.
//
//	go run ./internal/pgtest/cmd/withpg -- go test -run '^$' -bench ServersOverConnect \
//		-benchtime 10000x ./internal/rpc
func BenchmarkServersOverConnect(b *testing.B) {
	db := pgtest.NewDurable(b)
	super := pgtest.Pool(b, db.SuperDSN)
	first := &servertest.Site{T: b, DB: db.DB, Pool: super, Log: &servertest.Log{}}
	first.Start(server.Options{})
	key := first.Key("shop", "bench", access.Admin)
	clientOf := func(s *servertest.Site) ledgerv1connect.LedgerServiceClient {
		transport := &http.Transport{MaxIdleConnsPerHost: serverCallers}
		b.Cleanup(transport.CloseIdleConnections)
		return ledgerv1connect.NewLedgerServiceClient(&http.Client{Transport: transport, Timeout: 10 * time.Second},
			s.Base,
			connect.WithInterceptors(servertest.WithKey(key)))
	}
	clients := []ledgerv1connect.LedgerServiceClient{clientOf(first)}
	for len(clients) < 4 {
		clients = append(clients, clientOf(first.Second()))
	}
	makeAccounts(b, clients[0])
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		for _, s := range []string{fmt.Sprintf("alter system set commit_delay = %d", delay.Microseconds()),
			"alter system set commit_siblings = 0", "select pg_reload_conf()"} {
			if _, err := super.Exec(context.Background(), s); err != nil {
				b.Fatal(err)
			}
		}
		for _, load := range serverLoads {
			for _, n := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/delay=%v/servers=%d", load.name, delay, n), func(b *testing.B) {
					transferOver(b, clients[:n], load.pick)
				})
			}
		}
	}
}

const (
	serverCallers  = 256
	serverAccounts = 1_000_000
)

// serverLoads choose the two accounts of a transfer: among all, among 1,000, or always the same creditor.
var serverLoads = []struct {
	name string
	pick func() (from, to int)
}{
	{"even", func() (from, to int) { return twoOf(serverAccounts) }},
	{"shared", func() (from, to int) { return twoOf(1000) }},
	{"hot", func() (from, to int) { return 1 + rand.IntN(serverAccounts-1), 0 }},
}

// twoOf returns two of the first n accounts.
func twoOf(n int) (from, to int) {
	from = rand.IntN(n)
	return from, (from + 1 + rand.IntN(n-1)) % n
}

func makeAccounts(b *testing.B, client ledgerv1connect.LedgerServiceClient) {
	ctx := context.Background()
	_, err := client.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{
		Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}})
	if err != nil {
		b.Fatal(err)
	}
	const each = 1000
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := int(next.Add(each)) - each; i < serverAccounts; i = int(next.Add(each)) - each {
				all := &ledgerv1.CreateAccountsRequest{}
				for n := i; n < i+each; n++ {
					all.Accounts = append(all.Accounts, &ledgerv1.NewAccount{Code: fmt.Sprint("a:", n), Asset: "CNY",
						Unbounded: true})
				}
				if _, err := client.CreateAccounts(ctx, all); err != nil {
					b.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

var serverRuns atomic.Int64

func transferOver(b *testing.B, clients []ledgerv1connect.LedgerServiceClient, pick func() (from, to int)) {
	run, next := serverRuns.Add(1), atomic.Int64{}
	took := make([]time.Duration, b.N)
	var callers sync.WaitGroup
	b.ResetTimer()
	for c := range serverCallers {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				from, to := pick()
				begun := time.Now()
				_, err := clients[c%len(clients)].Transfer(context.Background(), &ledgerv1.TransferRequest{
					BizNo: fmt.Sprint(run, "-", i), Postings: []*ledgerv1.Posting{{From: fmt.Sprint("a:", from),
						To: fmt.Sprint("a:", to), Asset: "CNY", Amount: "0.01"}}})
				if err != nil {
					b.Errorf("a call failed: %v", err)
				}
				took[i] = time.Since(begun)
			}
		})
	}
	callers.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transfers/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
