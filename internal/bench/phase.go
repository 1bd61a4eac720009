package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// phase is one database with a server: the small tables, or the big ones.
type phase struct {
	*database
	plan    plan
	info    Phase
	runs    int
	journal *journal
	// smallKey is the API key of the small tenant, if a case has one.
	smallKey string
	// profiles in progress
	profiles sync.WaitGroup
	// acknowledged transfers of all runs, and those with unknown outcome
	acknowledged, unknown map[ledger]int64
}

// ledger is one of the two compared ledgers, named by its schema.
type ledger string

const (
	ours     ledger = "public"
	baseline ledger = "bench"
)

// Phase describes the initial state of a set of tables.
type Phase struct {
	Tables              string
	Accounts, Transfers int
	Load                time.Duration // of the server's tables, including indexes
	Baseline            time.Duration // of the baseline's
}

func (c *cluster) open(ctx context.Context, plan plan) (*phase, error) {
	d, err := c.create(ctx, plan.name, 1)
	if err != nil {
		return nil, err
	}
	p := &phase{database: d, plan: plan, acknowledged: map[ledger]int64{}, unknown: map[ledger]int64{}}
	if err = p.fill(ctx); err == nil {
		err = p.serve(ctx, p.options.Profiles != "")
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// fill loads the initial journal and copies it for the baseline.
func (p *phase) fill(ctx context.Context) error {
	j := newJournal(p.tenant, p.plan.accounts, p.plan.entries)
	p.info = Phase{Tables: p.plan.name, Accounts: p.plan.accounts, Transfers: j.transfers}
	p.progress("%s tables: loading %d accounts and %d entries", p.plan.name, j.accounts, 2*j.transfers)
	if err := j.reserve(ctx, p.conn); err != nil {
		return err
	}
	p.journal = j
	if err := p.copy(ctx); err != nil {
		return err
	}
	p.progress("%s tables: loaded in %v, copied for the baseline in %v", p.plan.name,
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
	if err := j.load(ctx, p.conn, p.superDSN()); err != nil {
		return fmt.Errorf("load the journal: %w", err)
	}
	p.info.Load = time.Since(begin)
	begin = time.Now()
	for _, statement := range []string{sql("baseline"), "reset maintenance_work_mem", "vacuum (analyze)", "checkpoint",
		"set plan_cache_mode = force_custom_plan"} { // the best plans for verification depend on the journal's size
		if _, err := p.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("copy for the baseline: %w", err)
		}
	}
	p.info.Baseline = time.Since(begin)
	return nil
}

// verifyAll compares the whole journal of both ledgers with the loaded and acknowledged transfers.
func (p *phase) verifyAll(ctx context.Context) (failures []string, err error) {
	for _, l := range []ledger{ours, baseline} {
		if err := p.selectLedger(ctx, l); err != nil {
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
	if !p.options.Checks {
		return failures, nil
	}
	if err := p.selectLedger(ctx, ours); err != nil {
		return nil, err
	}
	report, err := verify.Whole(ctx, p.conn, checks.FS)
	for name, rows := range report.Found {
		failures = append(failures, fmt.Sprintf("%s: %d violations", name, rows))
	}
	return failures, err
}

// selectLedger selects a ledger for verification: both use the same names.
func (p *phase) selectLedger(ctx context.Context, l ledger) error {
	_, err := p.conn.Exec(ctx, "set search_path to "+string(l))
	return err
}
