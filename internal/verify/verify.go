// Package verify holds a live database against the invariants in db/checks.
//
// No snapshot lives for long: one would keep the dead versions of the hottest rows from being cleaned.
// So the checks run on slices of accounts, transfers and holds, each slice in a short read-only
// snapshot of its own. That gives no false alarm while transfers run: every check is one statement
// about rows that one commit changes together, and restricting its answer to a slice changes no row of
// it. What is committed behind a slice that was done is left for the next run.
//
// It owns no table, and needs no more rights than to read them.
package verify

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/db/checks"
)

// Options of Run; the zero value is good.
type Options struct {
	// SliceAccounts is how many accounts are looked at in one snapshot, at most; 0: 500. A slice has
	// ten times as many transfers or holds.
	SliceAccounts int
	// Progress, if any, is called after every slice: so many of about total accounts, transfers,
	// holds or checks are done. The total is an estimate.
	Progress func(done, total int64, what string)
}

// Report is what was looked at and found.
type Report struct {
	Tenants   int
	Accounts  int64
	Transfers int64
	Holds     int64
	Checks    int
	// Found counts the violations of every check that has some.
	Found map[string]int
	// Violations are the first 100 of each check.
	Violations []Violation
}

// OK tells whether nothing was found.
func (r *Report) OK() bool { return len(r.Found) == 0 }

const (
	defaultSlice   = 500
	keptViolations = 100
)

//go:embed sql/*.sql
var queries embed.FS

// query is the text of one of our own statements.
func query(name string) string {
	text, err := queries.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // a constant that names no embedded file
	}
	return string(text)
}

type tenant struct {
	id   int32
	name string
}

// run is one verification.
type run struct {
	Options
	report Report
	conn   *pgx.Conn
	checks []check
	names  map[string]string // of tenants, by number
}

// Run verifies all of db/checks. An error means that it could not look, not that it found something.
func Run(ctx context.Context, pool *pgxpool.Pool, opts Options) (Report, error) {
	return runChecks(ctx, pool, checks.FS, opts)
}

func runChecks(ctx context.Context, pool *pgxpool.Pool, files fs.FS, opts Options) (Report, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("verify: %w", err)
	}
	defer conn.Release()
	r := &run{Options: opts, conn: conn.Conn(), names: map[string]string{}}
	if r.SliceAccounts <= 0 {
		r.SliceAccounts = defaultSlice
	}
	if r.Progress == nil {
		r.Progress = func(int64, int64, string) {}
	}
	if err := r.all(ctx, files); err != nil {
		return r.report, fmt.Errorf("verify: %w", err)
	}
	return r.report, nil
}

func (r *run) all(ctx context.Context, files fs.FS) (err error) {
	if r.checks, err = load(ctx, r.conn, files); err != nil {
		return err
	}
	r.report.Checks = len(r.checks)
	tenants, err := r.tenants(ctx)
	if err != nil {
		return err
	}
	for _, s := range []slicing{
		{column: "account_id", what: "accounts", limit: r.SliceAccounts, done: &r.report.Accounts},
		{column: "transfer_id", what: "transfers", limit: 10 * r.SliceAccounts, done: &r.report.Transfers},
		{column: "hold_id", what: "holds", limit: 10 * r.SliceAccounts, done: &r.report.Holds},
	} {
		if err := r.slices(ctx, s, tenants); err != nil {
			return err
		}
	}
	return r.wholes(ctx)
}

func (r *run) tenants(ctx context.Context) (tenants []tenant, err error) {
	rows, err := r.conn.Query(ctx, query("tenants"))
	if err != nil {
		return nil, err
	}
	var t tenant
	_, err = pgx.ForEachRow(rows, []any{&t.id, &t.name}, func() error {
		tenants = append(tenants, t)
		if t.name != "" {
			r.names[fmt.Sprint(t.id)] = t.name
		}
		return nil
	})
	r.report.Tenants = len(tenants)
	return tenants, err
}

// wholes runs the checks that have no slices.
func (r *run) wholes(ctx context.Context) error {
	for i, c := range r.checks {
		if c.column == "" {
			if err := r.snapshot(ctx, func(tx pgx.Tx) error { return r.violations(ctx, tx, c, c.sql) }); err != nil {
				return err
			}
		}
		r.Progress(int64(i+1), int64(len(r.checks)), "checks")
	}
	return nil
}

// Whole runs every check of files at once over the whole database, for one that is small or at rest.
func Whole(ctx context.Context, conn *pgx.Conn, files fs.FS) (Report, error) {
	r := &run{conn: conn}
	var err error
	if r.checks, err = load(ctx, conn, files); err != nil {
		return r.report, err
	}
	r.report.Checks = len(r.checks)
	for _, c := range r.checks {
		if err := r.violations(ctx, conn, c, c.sql); err != nil {
			return r.report, err
		}
	}
	return r.report, nil
}
