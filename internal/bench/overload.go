package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// OverloadOptions of RunOverload. Zero values take the defaults.
type OverloadOptions struct {
	Options
	// Peak is how many callers of TransferBatch reach the peak, default 10.
	Peak int
	// Times is how many times as many callers overload the server, default 10.
	Times int
	// Beside is how many callers the small tenant has, default 4.
	Beside int
}

// OverloadReport is everything that RunOverload found.
type OverloadReport struct {
	StartedAt       time.Time
	Took            time.Duration
	Machine         Machine
	Rounds          int
	Warmup, Measure time.Duration
	Beside          int
	Results         []OverloadResult
	Targets         []Target
}

// OverloadCase is one load of the large tenant.
type OverloadCase struct {
	Name, What string
	Callers    int
	obey       bool
}

// OverloadResult is a case with all its rounds; its own numbers are medians over them.
type OverloadResult struct {
	OverloadCase
	PerSecond, Least, Most float64 // transfers of the large tenant a second
	Refused                float64 // its refused calls a second
	Ratio                  float64 // PerSecond to that of the peak
	P50                    time.Duration
	SmallPerSecond         float64
	SmallP50, SmallP99     time.Duration
	ServerMemory           int64
	// CPU of the large tenant's transfers, and how many cores other programs had meanwhile: a ratio says little when
	// they had more of them than during the peak.
	CPU     CPU
	Foreign float64
	Rounds  []OverloadRound
}

// OverloadRound is one measurement.
type OverloadRound struct {
	Round
	RefusedPerSecond   float64
	SmallPerSecond     float64
	SmallP50, SmallP99 time.Duration
}

const (
	overloadItems = 1000
	smallTenant   = "bench-small"
	smallAccounts = 100
)

// The targets of an overload.
const (
	overloadRatio = 0.8
	overloadP50   = 150 * time.Millisecond
)

func (o *OverloadOptions) overloadDefaults() error {
	if err := o.defaults(); err != nil {
		return err
	}
	for value, standard := range map[*int]int{&o.Peak: 10, &o.Times: 10, &o.Beside: 4} {
		if *value == 0 {
			*value = standard
		}
	}
	return nil
}

func (o *OverloadOptions) cases() []OverloadCase {
	return []OverloadCase{
		{Name: "peak", What: "as many callers as the server can serve", Callers: o.Peak},
		{Name: "at-once", What: "callers who call again at once when refused", Callers: o.Peak * o.Times},
		{Name: "obedient", What: "callers who wait as RetryInfo says", Callers: o.Peak * o.Times, obey: true},
	}
}

// RunOverload measures one tenant whose many callers send TransferBatch of 1,000, and a small tenant that makes single
// transfers beside it: at the peak of the throughput, and with several times as many callers. With an error of
// ErrFailed there is a report.
func RunOverload(ctx context.Context, o OverloadOptions) (*OverloadReport, error) {
	if err := o.overloadDefaults(); err != nil {
		return nil, err
	}
	begin := time.Now()
	cluster, err := startCluster(ctx, &o.Options)
	if err != nil {
		return nil, err
	}
	defer cluster.stop()
	r := &OverloadReport{StartedAt: begin, Rounds: o.Rounds, Warmup: o.Warmup, Measure: o.Measure, Beside: o.Beside}
	if r.Machine, err = cluster.machine(ctx); err != nil {
		return nil, err
	}
	p, err := cluster.open(ctx, plan{name: Small, accounts: o.Active})
	if err != nil {
		return nil, err
	}
	defer p.close()
	key, err := p.openSmallTenant(ctx)
	if err != nil {
		return nil, fmt.Errorf("the small tenant: %w", err)
	}
	for _, c := range o.cases() {
		if fits(c.Name, o.Only) {
			r.Results = append(r.Results, OverloadResult{OverloadCase: c})
		}
	}
	for round := range o.Rounds {
		for i := range r.Results {
			x := &r.Results[i]
			run, err := p.overload(ctx, &x.OverloadCase, o.Beside, key)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.Name, err)
			}
			x.Rounds = append(x.Rounds, run)
			cluster.progress("round %d of %d: %s", round+1, o.Rounds, run.overloadLine(x.Name))
		}
	}
	r.summarise()
	r.Took = time.Since(begin)
	for i := range r.Results {
		for _, run := range r.Results[i].Rounds {
			if len(run.Failures) > 0 {
				return r, fmt.Errorf("%w: %s: %s", ErrFailed, r.Results[i].Name, run.Failures[0])
			}
		}
	}
	return r, nil
}

// openSmallTenant makes a tenant with some accounts that may go to any depth, and returns an API key of it.
func (p *phase) openSmallTenant(ctx context.Context) (key string, err error) {
	tenant, err := access.EnsureTenant(ctx, p.pool, smallTenant)
	if err != nil {
		return "", err
	}
	if key, err = access.Create(ctx, p.pool, tenant, smallTenant, access.Write); err != nil {
		return "", err
	}
	c := client.New(p.server.url, client.WithAPIKey(key))
	defer c.Close()
	if _, err = c.Ledger.CreateAssets(ctx,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: load.Asset, Scale: load.Scale}}}); err != nil {
		return "", err
	}
	accounts := &ledgerv1.CreateAccountsRequest{}
	for n := range smallAccounts {
		accounts.Accounts = append(accounts.Accounts,
			&ledgerv1.NewAccount{Code: load.Code(n), Asset: load.Asset, Unbounded: true})
	}
	_, err = c.Ledger.CreateAccounts(ctx, accounts)
	return key, err
}

// overload measures a case once: a load process for each of the two tenants, at the same time.
func (p *phase) overload(ctx context.Context, c *OverloadCase, callers int,
	smallKey string) (run OverloadRound, err error) {
	p.runs++
	large := p.spec(&Case{Kind: load.HTTP, Callers: c.Callers, Items: overloadItems})
	large.Obey = c.obey
	small := *large
	small.APIKey, small.Callers, small.Items, small.Accounts, small.Stride = smallKey, callers, 0, smallAccounts, 1
	before, err := p.newest(ctx, ours)
	if err != nil {
		return run, err
	}
	forgetPeak(p.server.process.Pid)
	var smallResult *load.Result
	var smallErr error
	var beside sync.WaitGroup
	beside.Go(func() { smallResult, _, smallErr = p.drive(ctx, nil, &small) })
	largeResult, marks, err := p.drive(ctx, &Case{Name: "overload-" + c.Name, Kind: load.HTTP}, large)
	beside.Wait()
	p.profiles.Wait()
	if err = errors.Join(err, smallErr); err != nil {
		return run, err
	}
	run = OverloadRound{Round: newRun(largeResult, marks), SmallP50: smallResult.P50, SmallP99: smallResult.P99,
		RefusedPerSecond: float64(largeResult.RefusedCalls) / largeResult.Seconds,
		SmallPerSecond:   float64(smallResult.Measured) / smallResult.Seconds}
	run.ServerMemory = peakMemory(p.server.process.Pid)
	told := *largeResult
	told.Refused, told.Measured = 0, max(told.Measured, 1) // refusals are meant to be, even of all calls
	if smallResult.Refused+smallResult.Unknown > 0 {
		run.Failures = append(run.Failures,
			fmt.Sprintf("%d transfers of the small tenant were refused, %d are unknown: %s",
				smallResult.Refused, smallResult.Unknown, smallResult.FirstError))
	}
	if told.Unknown > 0 {
		pause(ctx, 2*time.Second) // what the server still commits must not count for the next run
	}
	return run, p.verify(ctx, ours, before, large.Run, &told, &run.Round)
}

func (r *OverloadRound) overloadLine(name string) string {
	s := fmt.Sprintf("%-9s %8.0f/s  %6.0f calls/s refused; small tenant %6.1f/s  p50 %s  p99 %s", name, r.PerSecond,
		r.RefusedPerSecond,
		r.SmallPerSecond, milliseconds(r.SmallP50), milliseconds(r.SmallP99))
	if r.noisy() {
		s += fmt.Sprintf("  (noisy: others had %.0f %% of a core, %.0f %% were stolen)", 100*r.Foreign, 100*r.Stolen)
	}
	for _, f := range r.Failures {
		s += "  FAILED: " + f
	}
	return s
}

// summarise takes the medians of the rounds, the ratios to the peak, and holds them against the targets.
func (r *OverloadReport) summarise() {
	peak := 0.0
	for i := range r.Results {
		x := &r.Results[i]
		median := func(of func(OverloadRound) float64) float64 { return medianOf(x.Rounds, of) }
		x.PerSecond = median(func(k OverloadRound) float64 { return k.PerSecond })
		x.Refused = median(func(k OverloadRound) float64 { return k.RefusedPerSecond })
		x.P50 = time.Duration(median(func(k OverloadRound) float64 { return float64(k.P50) }))
		x.SmallPerSecond = median(func(k OverloadRound) float64 { return k.SmallPerSecond })
		x.SmallP50 = time.Duration(median(func(k OverloadRound) float64 { return float64(k.SmallP50) }))
		x.SmallP99 = time.Duration(median(func(k OverloadRound) float64 { return float64(k.SmallP99) }))
		x.Foreign = median(func(k OverloadRound) float64 { return k.Foreign })
		x.CPU = CPU{Client: median(func(k OverloadRound) float64 { return k.CPU.Client }),
			Server:   median(func(k OverloadRound) float64 { return k.CPU.Server }),
			Postgres: median(func(k OverloadRound) float64 { return k.CPU.Postgres })}
		x.Least, x.Most = x.PerSecond, x.PerSecond
		for _, k := range x.Rounds {
			x.Least, x.Most = min(x.Least, k.PerSecond), max(x.Most, k.PerSecond)
			x.ServerMemory = max(x.ServerMemory, k.ServerMemory)
		}
		if i == 0 {
			peak = x.PerSecond
		}
		if peak > 0 {
			x.Ratio = x.PerSecond / peak
		}
		if i == 0 {
			continue
		}
		r.Targets = append(r.Targets,
			Target{What: x.Name + ", transfers/s", Want: fmt.Sprintf(">= %.1f × the peak", overloadRatio),
				Measured: true,
				Got:      fmt.Sprintf("%.2f ×", x.Ratio), Reached: x.Ratio >= overloadRatio},
			Target{What: x.Name + ", p50 of the small tenant", Want: "< 150 ms", Measured: true,
				Got:     milliseconds(x.SmallP50),
				Reached: x.SmallP50 > 0 && x.SmallP50 < overloadP50})
	}
}
