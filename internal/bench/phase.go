package bench

import (
	"context"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// phase is one database with a server on it: the small tables, or the big ones.
type phase struct {
	cluster *cluster
	plan    plan
	info    Phase
	conn    *pgx.Conn     // superuser
	pool    *pgxpool.Pool // as the server
	server  *service
	tenant  int32
	apiKey  string
	runs    int
	journal *journal
	// profiles that are being taken
	profiles sync.WaitGroup
	// acknowledged transfers of all runs, and those whose outcome is unknown
	acknowledged, unknown map[ledger]int64
}

// ledger is one of the two that are compared, by the schema of its tables.
type ledger string

const (
	ours     ledger = "public"
	baseline ledger = "bench"
)

// Phase tells what a set of tables began with.
type Phase struct {
	Tables              string
	Accounts, Transfers int
	Load                time.Duration // of the service's tables; indexes too
	Baseline            time.Duration // of the baseline's
}

const tenantName = "bench"

func (c *cluster) open(ctx context.Context, plan plan) (*phase, error) {
	p := &phase{cluster: c, plan: plan, acknowledged: map[ledger]int64{}, unknown: map[ledger]int64{}}
	if err := p.prepare(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *phase) close() {
	if p.server != nil {
		p.server.stop(stopPatience)
	}
	if p.pool != nil {
		p.pool.Close()
	}
	if p.conn != nil {
		_ = p.conn.Close(context.Background())
	}
}

func (p *phase) prepare(ctx context.Context) (err error) {
	c, database := p.cluster, "bench_"+p.plan.name
	if err := c.exec(ctx, "postgres", "create database "+database); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, c.postgres.DSN(localpg.Superuser, database)); err != nil {
		return err
	}
	if p.conn, err = c.connect(ctx, database); err != nil {
		return err
	}
	if _, err := p.conn.Exec(ctx, "grant ledgerd_app to "+loginRole); err != nil {
		return err
	}
	url := c.postgres.DSN(loginRole, database)
	if err := p.makeKey(ctx, url); err != nil {
		return err
	}
	if err := p.fill(ctx); err != nil {
		return err
	}
	p.server, err = startService(ctx, c.options.Program, url, c.options.Profiles != "")
	return err
}

func (p *phase) makeKey(ctx context.Context, url string) (err error) {
	if p.pool, err = pg.Open(ctx, url, 1); err != nil {
		return err
	}
	if p.tenant, err = access.EnsureTenant(ctx, p.pool, tenantName); err != nil {
		return err
	}
	p.apiKey, err = access.Create(ctx, p.pool, p.tenant, tenantName, access.Write)
	return err
}

// fill loads the journal that the measuring begins with, and copies it for the baseline.
func (p *phase) fill(ctx context.Context) error {
	j := newJournal(p.tenant, p.plan.accounts, p.plan.entries)
	p.info = Phase{Tables: p.plan.name, Accounts: p.plan.accounts, Transfers: j.transfers}
	p.cluster.progress("%s tables: loading %d accounts and %d entries", p.plan.name, j.accounts, 2*j.transfers)
	if err := j.reserve(ctx, p.conn); err != nil {
		return err
	}
	p.journal = j
	if err := p.copy(ctx); err != nil {
		return err
	}
	p.cluster.progress("%s tables: loaded in %v, copied for the baseline in %v", p.plan.name,
		p.info.Load.Round(time.Millisecond), p.info.Baseline.Round(time.Millisecond))
	return nil
}

// refill empties the tables of both ledgers and loads the same journal again.
func (p *phase) refill(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, sql("empty")); err != nil {
		return fmt.Errorf("empty the tables: %w", err)
	}
	clear(p.acknowledged)
	clear(p.unknown)
	return p.copy(ctx)
}

func (p *phase) copy(ctx context.Context) error {
	j, begin := p.journal, time.Now()
	dsn := p.cluster.postgres.DSN(localpg.Superuser, "bench_"+p.plan.name)
	if err := j.load(ctx, p.conn, dsn); err != nil {
		return fmt.Errorf("load the journal: %w", err)
	}
	p.info.Load = time.Since(begin)
	begin = time.Now()
	for _, statement := range []string{sql("baseline"), "reset maintenance_work_mem", "vacuum (analyze)", "checkpoint",
		"set plan_cache_mode = force_custom_plan"} { // the verification's plans hang on how far the journal is
		if _, err := p.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("copy for the baseline: %w", err)
		}
	}
	p.info.Baseline = time.Since(begin)
	return nil
}

// verifyAll holds the whole journal of both ledgers against what was loaded and acknowledged.
func (p *phase) verifyAll(ctx context.Context) (failures []string, err error) {
	begin := time.Now()
	for _, l := range []ledger{ours, baseline} {
		if err := p.look(ctx, l); err != nil {
			return nil, err
		}
		var transfers, entries, wrong int64
		if err := p.conn.QueryRow(ctx, sql("phase")).Scan(&transfers, &entries, &wrong); err != nil {
			return nil, fmt.Errorf("verify all: %w", err)
		}
		least := int64(p.info.Transfers) + p.acknowledged[l]
		if transfers < least || transfers > least+p.unknown[l] {
			failures = append(failures, fmt.Sprintf("schema %s has %d transfers, %d were loaded or acknowledged", l,
				transfers, least))
		}
		if entries != 2*transfers || wrong != 0 {
			failures = append(failures, fmt.Sprintf("schema %s has %d entries of %d transfers, and %d wrong accounts",
				l, entries, transfers, wrong))
		}
	}
	if p.cluster.options.Checks {
		broken, err := p.runChecks(ctx)
		if err != nil {
			return failures, err
		}
		failures = append(failures, broken...)
	}
	if !p.plan.refilled() {
		p.cluster.progress("%s tables: verified all in %v", p.plan.name, time.Since(begin).Round(time.Millisecond))
	}
	return failures, nil
}

// look turns the verification to one ledger: both have the same names for the same things.
func (p *phase) look(ctx context.Context, l ledger) error {
	_, err := p.conn.Exec(ctx, "set search_path to "+string(l))
	return err
}

// runChecks runs the invariants of the database, as `ledgerd verify` does.
func (p *phase) runChecks(ctx context.Context) (failures []string, err error) {
	if err := p.look(ctx, ours); err != nil {
		return nil, err
	}
	names, err := fs.Glob(checks.FS, "*.sql")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(checks.FS, name)
		if err != nil {
			return nil, err
		}
		var violations int64
		if err := p.conn.QueryRow(ctx, "select count(*) from (\n"+string(text)+"\n) c").Scan(&violations); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if violations > 0 {
			failures = append(failures, fmt.Sprintf("%s: %d violations", name, violations))
		}
	}
	return failures, nil
}
