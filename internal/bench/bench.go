package bench

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// Options of all benchmarks. Zero values take the defaults, except for Entries.
type Options struct {
	// Program is run with "serve", "bench-load" and "bench-deliver"; default: the running binary.
	Program string
	// Dir is the parent directory for Postgres' data; default: a temporary directory on a real disk.
	Dir string

	Rounds          int
	Warmup, Measure time.Duration
	// Only are glob patterns of case names; empty: all.
	Only []string
	// Active is the number of accounts that transfers choose from, default 10,000.
	Active int
	// Accounts and Entries are the initial sizes of the big tables. 0 entries: no big tables.
	Accounts, Entries int
	// Checks also runs all of db/checks at the end, which takes minutes on big tables.
	Checks bool
	// Profiles is a directory for CPU profiles of the server, one per case. Profiling slows the server slightly.
	Profiles string
	// Progress receives a line per step.
	Progress io.Writer

	wal int // preallocated WAL files of 16 MiB, default 128
}

// patience is the timeout after which an outcome counts as unknown.
const patience = 10 * time.Second

//go:embed sql/*.sql
var queries embed.FS

func sql(name string) string { return pg.Embedded(queries, name) }

func (o *Options) defaults() error {
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.Program = self
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Rounds = cmp.Or(o.Rounds, 3)
	o.Measure = cmp.Or(o.Measure, 4*time.Second)
	o.Warmup = cmp.Or(o.Warmup, 2*time.Second)
	o.Active = cmp.Or(o.Active, 10_000)
	o.Accounts = cmp.Or(o.Accounts, 1_000_000)
	o.wal = cmp.Or(o.wal, 128)
	if o.Active < 2 || o.Accounts < o.Active || o.Accounts > 9_999_998 {
		return fmt.Errorf("%d of %d accounts active: at least 2 of at most 9,999,998 must be", o.Active, o.Accounts)
	}
	return nil
}

// ErrFailed means that a verification failed, so the numbers are not valid.
var ErrFailed = errors.New("verification failed")

// Run measures the ledger. With ErrFailed it also returns a report that names the failures.
func Run(ctx context.Context, o Options) (*Report, error) {
	c, r, err := start(ctx, &o, LedgerDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	r.Active = o.Active
	plans := []plan{{name: Small, accounts: o.Active, cases: selected(smallCases(), o.Only)}}
	if o.Entries > 0 {
		plans = append(plans, plan{name: Big, accounts: o.Accounts, entries: o.Entries,
			cases: selected(bigCases(), o.Only)})
	}
	for _, plan := range plans {
		if len(plan.cases) == 0 {
			continue
		}
		if err := c.phase(ctx, plan, r); err != nil {
			return nil, fmt.Errorf("%s tables: %w", plan.name, err)
		}
	}
	r.judge()
	return r.end()
}

// plan is one set of tables and its cases.
type plan struct {
	name              string
	accounts, entries int
	cases             []Case
}

// Names of the two sets of tables.
const (
	Small = "small"
	Big   = "big"
)

// refilled reports whether every case begins with the same rows, as on the small tables: a round adds millions
// of rows, which would make them big. Big tables accumulate rows.
func (p *plan) refilled() bool { return p.entries == 0 }

// phase creates a database, measures, and verifies the database.
func (c *cluster) phase(ctx context.Context, plan plan, r *Report) error {
	p, err := c.open(ctx, plan)
	if err != nil {
		return err
	}
	defer p.close()
	r.Phases = append(r.Phases, p.info)
	err = r.rounds(c, plan.name, plan.cases, func(x *Case) (Round, error) {
		if !plan.refilled() {
			return p.run(ctx, x)
		}
		if p.runs > 0 {
			if err := p.refill(ctx); err != nil {
				return Round{}, err
			}
		}
		run, err := p.run(ctx, x)
		if err != nil {
			return run, err
		}
		failures, err := p.verifyAll(ctx)
		run.Failures = append(run.Failures, failures...)
		return run, err
	})
	if err != nil || plan.refilled() {
		return err
	}
	begin := time.Now()
	failures, err := p.verifyAll(ctx)
	for _, failure := range failures {
		r.fail("%s tables, at the end: %s", plan.name, failure)
	}
	c.progress("%s tables: verified all in %v", plan.name, time.Since(begin).Round(time.Millisecond))
	return err
}
