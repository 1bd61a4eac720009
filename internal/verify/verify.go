// Package verify checks a live database against the invariants in db/checks, and its schema against the one that the
// migrations create, db/schema.
//
// Snapshots must be short, because a long one would keep dead versions of hot rows from being vacuumed. So the
// checks run on slices of accounts, transfers and holds, each slice in its own short read-only snapshot.
// Concurrent transfers cause no false alarms: every check is one statement about rows that one commit changes
// together, and restricting it to a slice changes no row of its result. Commits behind a finished slice are
// left to the next run.
//
// The package owns no table, and needs only the right to read.
package verify

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Options of Run; the zero value is valid.
type Options struct {
	// SliceAccounts is the maximum number of accounts checked in one snapshot; 0: 500. A slice has ten times as
	// many transfers or holds.
	SliceAccounts int
	// Progress, if set, is called after every slice with the number of accounts, transfers, holds or checks
	// done. The total is an estimate.
	Progress func(done, total int64, what string)
}

// Report is the result of a verification.
type Report struct {
	Tenants   int
	Accounts  int64
	Transfers int64
	Holds     int64
	Checks    int
	// Objects counts the objects of the schema that were compared, in SchemaTook.
	Objects    int
	SchemaTook time.Duration
	// Owners are the roles that can change or disable the guards.
	Owners []string
	// Found counts the violations by check.
	Found map[string]int
	// Violations are the first 100 violations of each check.
	Violations []Violation
}

// OK reports whether there are no violations.
func (r *Report) OK() bool { return len(r.Found) == 0 }

const (
	defaultSlice   = 500
	keptViolations = 100
)

//go:embed sql/*.sql
var queries embed.FS

func query(name string) string { return pg.Embedded(queries, name) }

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
	names  map[string]string // tenant names by number
}

// Run runs all of db/checks. An error means that the checks could not run; violations are not errors.
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
	if r.checks, err = loadSliced(ctx, r.conn, files); err != nil {
		return err
	}
	r.report.Checks = len(r.checks) + 1 // the schema
	if err := r.schema(ctx); err != nil {
		return err
	}
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
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query("tenants"))
		if err != nil {
			return err
		}
		var t tenant
		_, err = pgx.ForEachRow(rows, []any{&t.id, &t.name}, func() error {
			tenants = append(tenants, t)
			if t.name != "" {
				r.names[fmt.Sprint(t.id)] = t.name
			}
			return nil
		})
		return err
	})
	r.report.Tenants = len(tenants)
	return tenants, err
}

// wholes runs the checks that are not sliced.
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

// Whole runs every check over the whole database at once, for a small or idle database.
func Whole(ctx context.Context, conn *pgx.Conn, files fs.FS) (Report, error) {
	r := &run{conn: conn}
	var err error
	if r.checks, err = load(files); err != nil {
		return r.report, err
	}
	r.report.Checks = len(r.checks)
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		for _, c := range r.checks {
			if err := r.violations(ctx, tx, c, c.sql); err != nil {
				return err
			}
		}
		return nil
	})
	return r.report, err
}
