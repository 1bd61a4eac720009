package bench

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
	"github.com/ledgerd/ledgerd/internal/server"
)

// TestMain lets the test binary act as the processes that the benchmark starts.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		err = serve(ctx)
	case len(os.Args) > 1 && os.Args[1] == "bench-deliver":
		err = deliverMessages(ctx)
	case len(os.Args) > 7 && os.Args[1] == "bench-redis":
		err = ServeRedis(ctx, os.Args[3], os.Args[5], os.Args[7], os.Getenv("DATABASE_URL"))
	case len(os.Args) > 1 && os.Args[1] == "bench-load":
		err = load.Main(ctx, os.Stdin, os.Stdout)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func deliverMessages(ctx context.Context) error {
	flags := flag.NewFlagSet("bench-deliver", flag.ContinueOnError)
	sink, lease := flags.String("sink", "", ""), flags.Duration("lease", 0, "")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	return Deliver(ctx, os.Getenv("DATABASE_URL"), *sink, *lease)
}

func serve(ctx context.Context) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	o := server.Options{DatabaseURL: os.Getenv("DATABASE_URL"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags.StringVar(&o.Listen, "listen", "", "")
	flags.StringVar(&o.MetricsListen, "metrics-listen", "", "")
	pay := flags.String("pay", "", "")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	if *pay != "" {
		var err error
		if o.Pay, err = gateway.ReadFile(*pay, dialects.All); err != nil {
			return err
		}
	}
	s, err := server.Start(ctx, o)
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Stop()
	return nil
}

// progress writes to the test's log and calls the test for every line.
type progress struct {
	t    testing.TB
	mu   sync.Mutex
	line func(string)
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Logf("%s", bytes.TrimSpace(b))
	if p.line != nil {
		p.line(string(b))
	}
	return len(b), nil
}

func tiny(t testing.TB) Options {
	t.Helper()
	dir, err := makeDir("") // not t.TempDir, which Postgres' account under root cannot enter
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return Options{Dir: dir, Rounds: 1, Warmup: 50 * time.Millisecond, Measure: 300 * time.Millisecond,
		Active: 50, Accounts: 120, Entries: 1000, Checks: true, Progress: &progress{t: t}, wal: 4}
}

func TestWholeBenchmarkIsVerified(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	o := tiny(t)
	o.Only = []string{"a-16", "b-64-hot", "d-8", "t-32", "w-256"}
	o.Profiles = t.TempDir()
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 4+4 || len(report.Phases) != 2 || report.Phases[1].Transfers != 500 {
		t.Errorf("%d results, phases %+v", len(report.Results), report.Phases)
	}
	for _, r := range report.Results {
		if r.PerSecond <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P99 || r.Rounds[0].Touched == 0 {
			t.Errorf("%s of the %s tables: %+v", r.Name, r.Tables, r)
		}
		if r.Kind != load.Baseline && r.PerBatch < 1 {
			t.Errorf("%s: %.1f commands a batch", r.Name, r.PerBatch)
		}
	}
	if d := report.find(Small, "d-8"); d == nil || d.Ratio <= 0 {
		t.Errorf("batches: %+v", d)
	}
	profiles, err := filepath.Glob(filepath.Join(o.Profiles, "*.pprof"))
	if err != nil || len(profiles) != 2+3 {
		t.Errorf("profiles %v, %v", profiles, err)
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
	var text bytes.Buffer
	if err := report.WriteText(&text); err != nil || !strings.Contains(text.String(), "Verified in SQL") {
		t.Errorf("report: %v\n%s", err, text.String())
	}
}

func TestInterruptedBenchmarkLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := tiny(t)
	o.Only, o.Entries = []string{"b-1", "b-64"}, 0
	o.Progress = &progress{t: t, line: func(line string) {
		if strings.Contains(line, "round 1") {
			time.AfterFunc(200*time.Millisecond, cancel) // during the second case
		}
	}}
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
	children, err := filepath.Glob(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	for _, file := range children {
		if text, _ := os.ReadFile(file); len(bytes.TrimSpace(text)) > 0 {
			t.Errorf("processes left: %s, %v", text, err)
		}
	}
}

// Verification must find altered results and altered rows, or a run without findings proves nothing.
func TestVerificationFindsErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	ctx, o := t.Context(), tiny(t)
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	o.Checks, o.Measure = false, 200*time.Millisecond
	cluster, err := startCluster(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.stop()
	p, err := cluster.open(ctx, plan{name: Small, accounts: o.Active})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, c := range []Case{
		{Name: "ours", Kind: load.HTTP, Callers: 4},
		{Name: "baseline", Kind: load.Baseline, Callers: 4},
	} {
		findsWrong(t, p, &c)
	}
	failures, err := p.verifyAll(ctx)
	if err != nil || len(failures) != 0 {
		t.Fatalf("an intact journal: %v, %v", failures, err)
	}
	for _, spoil := range []string{
		"update public.ledger_accounts set balance = balance + 1 where code = 'acct:0000001'",
		"update bench.ledger_accounts set version = version + 1 where code = 'acct:0000001'",
		"insert into bench.ledger_transfers (tenant_id, biz_no, type, recorded_at) values (1, 'x', 'x', now())",
	} {
		if _, err := p.conn.Exec(ctx, spoil); err != nil {
			t.Fatal(err)
		}
		more, err := p.verifyAll(ctx)
		if err != nil || len(more) <= len(failures) {
			t.Errorf("%s: found %v, %v", spoil, more, err)
		}
		failures = more
	}
}

// findsWrong runs a valid case, and verifies it again with altered results and altered rows.
func findsWrong(t *testing.T, p *phase, c *Case) {
	t.Helper()
	ctx, l := t.Context(), ours
	if c.Kind == load.Baseline {
		l = baseline
	}
	before, err := p.newest(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.run(ctx, c)
	if err != nil || len(run.Failures) != 0 {
		t.Fatalf("%s: %v, %v", c.Name, run.Failures, err)
	}
	name := p.spec(c).Run
	verify := func(succeeded, refused int64) []string {
		var again Round
		r := load.Result{Succeeded: succeeded, Refused: refused, Measured: 1}
		if err := p.verify(ctx, l, before, name, &r, &again); err != nil {
			t.Fatal(err)
		}
		return again.Failures
	}
	if f := verify(run.Succeeded, 0); len(f) != 0 {
		t.Errorf("%s: unchanged: %v", c.Name, f)
	}
	for _, wrong := range [][2]int64{{run.Succeeded + 1, 0}, {run.Succeeded - 1, 0}, {run.Succeeded, 1}} {
		if f := verify(wrong[0], wrong[1]); len(f) == 0 {
			t.Errorf("%s: %v of %d transfers passes", c.Name, wrong, run.Succeeded)
		}
	}
	// Alter an account of the run: on a busy machine a run touches few accounts, and verify skips untouched versions.
	const touched = ` where (tenant_id, account_id) = (
		select tenant_id, account_id from ledger_entries order by transfer_id desc, account_id limit 1)`
	for _, spoil := range [][2]string{
		{"balance = balance + 1", "balance = balance - 1"},
		{"version = version + 1", "version = version - 1"},
	} {
		for i, set := range spoil {
			if _, err := p.conn.Exec(ctx, "update ledger_accounts set "+set+touched); err != nil {
				t.Fatal(err)
			}
			if f := verify(run.Succeeded, 0); (len(f) == 0) != (i == 1) {
				t.Errorf("%s: after %s: %v", c.Name, set, f)
			}
		}
	}
}

func TestKeysAreMeasuredAndVerified(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	o := KeyOptions{Options: tiny(t), Callers: 8}
	o.Measure = 300 * time.Millisecond
	r, err := RunKeys(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 10 {
		t.Errorf("%d results", len(r.Results))
	}
	for _, x := range r.Results {
		if x.PerSecond <= 0 || x.P50 <= 0 || x.P99 < x.P50 || x.Ratio <= 0 {
			t.Errorf("%s: %+v", x.Name, x)
		}
	}
	var text bytes.Buffer
	if err := r.WriteMarkdown(&text); err != nil || !strings.Contains(text.String(), "| claim-rpc |") {
		t.Errorf("report: %v\n%s", err, text.String())
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}
