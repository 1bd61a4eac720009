package bench

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Options of Run. Zero values take the defaults, but for Entries.
type Options struct {
	// Program is started with "serve" and "bench-load"; default: this one.
	Program string
	// Dir is where a directory for Postgres is made; default: one for temporary files on a real disk.
	Dir string

	Rounds          int
	Warmup, Measure time.Duration
	// Only are glob patterns of case names; empty: all.
	Only []string
	// Active is how many accounts transfers go between, default 10,000.
	Active int
	// Accounts and Entries are what the big tables begin with. No entries: no big tables.
	Accounts, Entries int
	// Checks runs all of db/checks at the end as well: minutes on big tables.
	Checks bool
	// Profiles is a directory for CPU profiles of the server, one a case. Profiling costs some speed.
	Profiles string
	// Progress gets a line for every step.
	Progress io.Writer

	wal int // files of 16 MiB put by before, default 128
}

// The defaults.
const (
	DefaultActive   = 10_000
	DefaultAccounts = 1_000_000
	DefaultEntries  = 10_000_000
)

// patience is how long an answer may take before its outcome counts as unknown.
const patience = 10 * time.Second

//go:embed sql/*.sql
var queries embed.FS

// sql is the text of a statement.
func sql(name string) string {
	text, err := queries.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // a constant that names no embedded file
	}
	return string(text)
}

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
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Measure == 0 {
		o.Measure = 4 * time.Second
	}
	if o.Warmup == 0 {
		o.Warmup = 2 * time.Second
	}
	if o.Active == 0 {
		o.Active = DefaultActive
	}
	if o.Accounts == 0 {
		o.Accounts = DefaultAccounts
	}
	if o.wal == 0 {
		o.wal = 128
	}
	if o.Active < 2 || o.Accounts < o.Active || o.Accounts > 9_999_998 {
		return fmt.Errorf("transfers cannot go between %d of %d accounts", o.Active, o.Accounts)
	}
	return nil
}

// ErrFailed says that a verification failed: the numbers are not to be believed.
var ErrFailed = errors.New("verification failed")

// Run measures. With an error of ErrFailed there is a report, which says what failed.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	begin := time.Now()
	cluster, err := startCluster(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer cluster.stop()
	report := &Report{StartedAt: begin, Rounds: o.Rounds, Warmup: o.Warmup, Measure: o.Measure, Active: o.Active}
	if report.Machine, err = cluster.machine(ctx); err != nil {
		return nil, err
	}
	plans := []plan{{name: Small, accounts: o.Active, cases: selected(smallCases(), o.Only)}}
	if o.Entries > 0 {
		plans = append(plans, plan{name: Big, accounts: o.Accounts, entries: o.Entries,
			cases: selected(bigCases(), o.Only)})
	}
	for _, plan := range plans {
		if len(plan.cases) == 0 {
			continue
		}
		if err := cluster.phase(ctx, plan, report); err != nil {
			return nil, fmt.Errorf("%s tables: %w", plan.name, err)
		}
	}
	report.Took = time.Since(begin)
	report.judge()
	if len(report.Failures) > 0 {
		return report, fmt.Errorf("%w: %s", ErrFailed, report.Failures[0])
	}
	return report, nil
}

// plan is one set of tables and what is measured on them.
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

// refilled says that every case begins with the same rows. Else what one adds is there for the next:
// a round leaves millions, which would make small tables big.
func (p *plan) refilled() bool { return p.entries == 0 }

// phase makes a database, measures on it in rounds, so that whatever drifts hits all cases alike, and
// verifies it.
func (c *cluster) phase(ctx context.Context, plan plan, report *Report) error {
	p, err := c.open(ctx, plan)
	if err != nil {
		return err
	}
	defer p.close()
	report.Phases = append(report.Phases, p.info)
	results := make([]Result, len(plan.cases))
	for i, which := range plan.cases {
		results[i] = Result{Tables: plan.name, Case: which}
	}
	for round := range c.options.Rounds {
		for i := range results {
			if plan.refilled() && p.runs > 0 {
				if err := p.refill(ctx); err != nil {
					return err
				}
			}
			run, err := p.run(ctx, &results[i].Case)
			if err != nil {
				return fmt.Errorf("%s: %w", results[i].Name, err)
			}
			results[i].Rounds = append(results[i].Rounds, run)
			c.progress("%s tables, round %d of %d: %s", plan.name, round+1, c.options.Rounds,
				run.line(&results[i].Case))
			for _, failure := range run.Failures {
				report.fail("%s tables, %s, round %d: %s", plan.name, results[i].Name, round+1, failure)
			}
			if plan.refilled() || round == c.options.Rounds-1 && i == len(results)-1 {
				failures, err := p.verifyAll(ctx)
				if err != nil {
					return err
				}
				for _, failure := range failures {
					report.fail("%s tables, after %s of round %d: %s", plan.name, results[i].Name, round+1, failure)
				}
			}
		}
	}
	for i := range results {
		results[i].summarise()
	}
	report.Results = append(report.Results, results...)
	return nil
}

func (c *cluster) progress(format string, args ...any) {
	fmt.Fprintf(c.options.Progress, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
