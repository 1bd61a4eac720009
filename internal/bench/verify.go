package bench

import (
	"context"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// mark is the position of a ledger.
type mark struct{ transfer, batches, commands int64 }

// newest selects a ledger and returns its position.
func (p *phase) newest(ctx context.Context, l ledger) (m mark, err error) {
	if err := p.selectLedger(ctx, l); err != nil {
		return m, err
	}
	if err := p.conn.QueryRow(ctx, sql("newest"), p.tenant).Scan(&m.transfer); err != nil {
		return m, err
	}
	err = p.conn.QueryRow(ctx, sql("batches"), 0).Scan(&m.batches, &m.commands)
	return m, err
}

// verify compares a run's rows in the database with the acknowledged transfers, and records differences in the round.
func (p *phase) verify(ctx context.Context, l ledger, before mark, name string, r *load.Result, run *Round) error {
	// The statistics predate the run's rows, so the planner might choose sequential scans.
	if _, err := p.conn.Exec(ctx, "set enable_seqscan = off; set jit = off"); err != nil {
		return err
	}
	var newer, named, entries, touched, wrong int64
	var total, balances string
	if err := p.conn.QueryRow(ctx, sql("run_counts"), p.tenant, before.transfer, name).Scan(&newer, &named, &entries,
		&total); err != nil {
		return err
	}
	if err := p.conn.QueryRow(ctx, sql("run_accounts"), p.tenant, before.transfer).Scan(&touched, &wrong); err != nil {
		return err
	}
	if _, err := p.conn.Exec(ctx, "reset enable_seqscan; reset jit"); err != nil {
		return err
	}
	if err := p.conn.QueryRow(ctx, sql("balances"), p.tenant).Scan(&balances); err != nil {
		return err
	}
	after, err := p.newest(ctx, l)
	if err != nil {
		return err
	}
	run.Batches, run.Touched = after.batches-before.batches, touched
	if run.Batches > 0 {
		run.PerBatch = float64(after.commands-before.commands) / float64(run.Batches)
	}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			run.Failures = append(run.Failures, fmt.Sprintf(format, args...))
		}
	}
	check(newer >= r.Succeeded && newer <= r.Succeeded+r.Unknown,
		"%d transfers were committed, %d acknowledged, %d unknown", newer, r.Succeeded, r.Unknown)
	check(named == newer, "%d transfers bear the run's name, %d are new", named, newer)
	check(entries == 2*newer, "%d entries of %d transfers", entries, newer)
	check(total == "0", "the entries sum to %s", total)
	check(balances == "0", "the balances sum to %s", balances)
	check(wrong == 0, "%d of %d accounts do not match their entries", wrong, touched)
	check(r.Refused == 0, "%d transfers were refused: %s", r.Refused, r.FirstError)
	check(r.Measured > 0, "nothing was measured: %s", r.FirstError)
	return nil
}
