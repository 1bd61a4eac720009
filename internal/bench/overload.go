package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// OverloadOptions of RunOverload. Zero values take the defaults.
type OverloadOptions struct {
	Options
	// Peak is the number of TransferBatch callers that reach peak throughput, default 10.
	Peak int
	// Times is the factor of callers for overload, default 10.
	Times int
	// Beside is the number of the small tenant's callers, default 4.
	Beside int
}

const (
	overloadItems = 1000
	smallTenant   = "bench-small"
	smallAccounts = 100
)

// Targets under overload.
const (
	overloadRatio = 0.8
	overloadP50   = 150 * time.Millisecond
)

// RunOverload measures a large tenant whose many callers send TransferBatches of 1,000, and a small tenant with single
// transfers: at peak throughput, and with several times as many callers. With ErrFailed it also returns a report.
func RunOverload(ctx context.Context, o OverloadOptions) (*Report, error) {
	o.Measure, o.Warmup = cmp.Or(o.Measure, 6*time.Second), cmp.Or(o.Warmup, 3*time.Second)
	o.Peak, o.Times, o.Beside = cmp.Or(o.Peak, 10), cmp.Or(o.Times, 10), cmp.Or(o.Beside, 4)
	c, r, err := start(ctx, &o.Options, OverloadDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	r.Beside = o.Beside
	p, err := c.open(ctx, plan{name: Small, accounts: o.Active})
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.openSmallTenant(ctx); err != nil {
		return nil, fmt.Errorf("the small tenant: %w", err)
	}
	err = r.rounds(c, Small, selected(o.cases(), o.Only), func(x *Case) (Round, error) { return p.run(ctx, x) })
	if err != nil {
		return nil, err
	}
	r.judgeOverload()
	return r.end()
}

func (o *OverloadOptions) cases() []Case {
	large := func(name, what string, callers int, obey bool) Case {
		return Case{Name: name, What: what, Kind: load.HTTP, Callers: callers, Items: overloadItems, Obey: obey,
			Beside: o.Beside}
	}
	return []Case{
		large("peak", "as many callers as the server can serve", o.Peak, false),
		large("at-once", "callers that retry at once when refused", o.Peak*o.Times, false),
		large("retry-info", "callers that honour RetryInfo", o.Peak*o.Times, true),
	}
}

// openSmallTenant creates a tenant with unbounded accounts.
func (p *phase) openSmallTenant(ctx context.Context) (err error) {
	if _, p.smallKey, err = p.newTenant(ctx, smallTenant); err != nil {
		return err
	}
	c := client.New(p.server.url, client.WithAPIKey(p.smallKey))
	defer c.Close()
	if _, err = c.Ledger.CreateAssets(ctx,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: load.Asset, Scale: load.Scale}}}); err != nil {
		return err
	}
	accounts := &ledgerv1.CreateAccountsRequest{}
	for n := range smallAccounts {
		accounts.Accounts = append(accounts.Accounts,
			&ledgerv1.NewAccount{Code: load.Code(n), Asset: load.Asset, Unbounded: true})
	}
	_, err = c.Ledger.CreateAccounts(ctx, accounts)
	return err
}

// judgeOverload computes the ratios to the peak and compares the results with the targets.
func (r *Report) judgeOverload() {
	peak := r.find(Small, "peak")
	for i := range r.Results {
		x := &r.Results[i]
		if peak != nil && peak.PerSecond > 0 {
			x.Ratio = x.PerSecond / peak.PerSecond
		}
		if x.Name == "peak" {
			continue
		}
		what, want := x.Name+", transfers/s", fmt.Sprintf(">= %.1f × the peak", overloadRatio)
		if x.Ratio > 0 {
			r.target(what, want, fmt.Sprintf("%.2f ×", x.Ratio), x.Ratio >= overloadRatio)
		} else {
			r.unmeasured(what, want)
		}
		r.target(x.Name+", p50 of the small tenant", "< 150 ms", milliseconds(x.SmallP50),
			x.SmallP50 > 0 && x.SmallP50 < overloadP50)
	}
}

func (r *Report) overloadSections() []section {
	rows := [][]string{{"case", "what", "callers", "transfers/s [min..max]", "× peak", "refused calls/s", "p50",
		"small tenant/s", "its p50", "its p99", "server RSS", "CPU µs client + server + Postgres", "cores of others"}}
	for i := range r.Results {
		x := &r.Results[i]
		rows = append(rows, []string{x.Name, x.What, thousands(float64(x.Callers)), x.rate(), x.ratio(),
			thousands(x.RefusedPerSecond), milliseconds(x.P50), fmt.Sprintf("%.1f", x.SmallPerSecond),
			milliseconds(x.SmallP50), milliseconds(x.SmallP99), megabytes(x.ServerMemory), x.CPU.String(),
			fmt.Sprintf("%.1f", x.Foreign)})
	}
	return []section{{text: fmt.Sprintf("Load, service and database share the machine. Every call of the large "+
		"tenant is a TransferBatch of %s. %d callers of the small tenant make single transfers. %s",
		thousands(overloadItems), r.Beside, r.length())},
		{rows: rows}}
}
