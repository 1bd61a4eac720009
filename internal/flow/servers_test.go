package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// BenchmarkServers measures transfers of 256 callers over one, two and four servers on one database, with COMMIT slowed
// by commit_delay: between 1,000 accounts (even), all into one account (hot), and between accounts that only one server
// uses (apart). A failed call fails the benchmark.
// Compare within one run; one operation is one transfer.
//
//	go run ./internal/pgtest/cmd/withpg -- go test -run '^$' -bench Servers -benchtime 10000x ./internal/flow
func BenchmarkServers(b *testing.B) {
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		d := pgtest.NewDurable(b)
		super := pgtest.Pool(b, d.SuperDSN)
		for _, s := range []string{fmt.Sprintf("alter system set commit_delay = %d", delay.Microseconds()),
			"alter system set commit_siblings = 0", "select pg_reload_conf()"} {
			if _, err := super.Exec(context.Background(), s); err != nil {
				b.Fatal(err)
			}
		}
		accountsFor(b, d.AllDSN)
		for _, load := range loads {
			for _, servers := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/delay=%v/servers=%d", load.name, delay, servers), func(b *testing.B) {
					transferOver(b, d.AllDSN, servers, load.pick)
				})
			}
		}
	}
}

// Two servers share an account that is in all transfers, and a COMMIT takes 150 ms, as with a standby far away:
// longer than a batch usually waits for a lock. They take turns, and no call fails.
func TestServersThatShareAHotAccountTakeTurns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	accountsFor(t, db.AllDSN)
	engines := []*flow.Engine{serverEngine(t, db.AllDSN, "a"), serverEngine(t, db.AllDSN, "b")}
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(), `create function slow() returns trigger language
		plpgsql as $$
		begin perform pg_sleep(0.15); return null; end $$;
		create constraint trigger slow after insert on commit_batches deferrable initially deferred for each row
		execute function slow()`); err != nil {
		t.Fatal(err)
	}
	var slowest atomic.Int64
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for i := range 4 {
				from, to := hotly(0, 0)
				begun := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				_, err := engines[c%2].Do(ctx,
					submission(flow.Submission{Command: flow.Ledger(transfer(fmt.Sprint(c, "-", i), from, to, "1"))}))
				cancel()
				if err != nil {
					t.Errorf("a call failed: %v", err)
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(begun))))
			}
		})
	}
	wg.Wait()
	t.Logf("the slowest call took %v", time.Duration(slowest.Load()))
}

// serverEngine returns an engine like that of a separate process.
func serverEngine(b testing.TB, dsn, name string) *flow.Engine {
	b.Helper()
	pool, err := pg.Open(context.Background(), dsn, 8)
	if err != nil {
		b.Fatal(err)
	}
	e := flow.NewEngine(pool, name, commit.NewMetrics(prometheus.NewRegistry()), nil)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			b.Error(err)
		}
		pool.Close()
	})
	return e
}

// accountsFor creates unbounded accounts.
func accountsFor(b testing.TB, dsn string) {
	b.Helper()
	e := serverEngine(b, dsn, "setup")
	create := &ledger.CreateAccountsCommand{Caller: caller}
	for i := range benchAccounts {
		create.Accounts = append(create.Accounts, ledger.NewAccount{Code: benchUser(i), Asset: "CNY", Kind: "equity"})
	}
	for _, c := range []commit.Command[*ledger.Tx]{
		&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}, create} {
		if _, err := e.Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(c)})); err != nil {
			b.Fatal(err)
		}
	}
}

const benchAccounts = 1000

func benchUser(i int) string { return fmt.Sprint("bench:", i) }

var benchRuns atomic.Int64

// loads are the accounts of one transfer at a server.
var loads = []struct {
	name string
	pick func(server, servers int) (from, to string)
}{{"even", evenly}, {"hot", hotly}, {"apart", apart}}

func evenly(int, int) (from, to string) { return apart(0, 1) }

func hotly(int, int) (from, to string) {
	return benchUser(1 + rand.IntN(benchAccounts-1)), benchUser(0)
}

func apart(server, servers int) (from, to string) {
	a, b := rand.IntN(benchAccounts/servers), rand.IntN(benchAccounts/servers-1)
	if b >= a {
		b++
	}
	return benchUser(a*servers + server), benchUser(b*servers + server)
}

func transferOver(b *testing.B, dsn string, servers int, pick func(server, servers int) (from, to string)) {
	engines := make([]*flow.Engine, servers)
	for i := range engines {
		engines[i] = serverEngine(b, dsn, fmt.Sprint(i))
	}
	const callers = 256
	run, next := benchRuns.Add(1), atomic.Int64{}
	took := make([]time.Duration, b.N)
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				from, to := pick(c%servers, servers)
				begun := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				_, err := engines[c%servers].Do(ctx,
					submission(flow.Submission{Command: flow.Ledger(transfer(fmt.Sprint(run, "-", i), from, to, "1"))}))
				cancel()
				if err != nil {
					b.Errorf("a call failed: %v", err)
				}
				took[i] = time.Since(begun)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transfers/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
