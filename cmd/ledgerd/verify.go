package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/verify"
)

type verifyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database. Servers may run meanwhile; a role that can read is enough." env:"DATABASE_URL"`
}

// Help describes the exit code and the report.
func (*verifyCmd) Help() string {
	return "Each violation is a line: the check, a file of db/checks, and the wrong row with the expected " +
		"values. The check schema_matches compares the schema with that of this ledgerd's migrations: tables, " +
		"constraints, indexes, triggers, functions, views, rights, row-level security, roles and their settings. " +
		"It names each object that differs, is missing or was added. The exit code is 1 if there is a violation."
}

// Run compares the schema, recomputes every balance and checks all invariants.
func (c *verifyCmd) Run(e *env) error {
	err := c.verify(e)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" { // insufficient privilege
		return fmt.Errorf("%w: the login must be able to read all tables and views, as members of ledgerd_audit are",
			err)
	}
	return err
}

func (c *verifyCmd) verify(e *env) error {
	pool, err := e.open(c.DatabaseURL, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	start := time.Now()
	show := progress{out: e.errOut, live: importer.Terminal(e.errOut)}
	report, err := verify.Run(e.ctx, pool, verify.Options{Progress: show.update})
	show.end()
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		fmt.Fprintln(e.out, v)
	}
	fmt.Fprintf(e.out, "%d checks in %s; the ledger has %d tenants, %d accounts, %d transfers, %d holds\n",
		report.Checks, time.Since(start).Round(time.Millisecond), report.Tenants, report.Accounts, report.Transfers,
		report.Holds)
	fmt.Fprintf(e.out, "%d objects of the schema compared in %s\n",
		report.Objects, report.SchemaTook.Round(time.Millisecond))
	fmt.Fprintf(e.out, "roles that can change or disable guards: %s\n", strings.Join(report.Owners, ", "))
	if report.OK() {
		fmt.Fprintln(e.out, "no violations")
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(report.Found)) {
		fmt.Fprintf(e.out, "%s: %d violations\n", name, report.Found[name])
	}
	return fmt.Errorf("the database violates %d checks", len(report.Found))
}

// progress shows the progress of a long operation, in place on a terminal; otherwise nothing.
type progress struct {
	out  io.Writer
	live bool
	last time.Time
}

func (p *progress) update(done, total int64, what string) {
	if !p.live || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.out, "\r\x1b[K%s: %d of about %d", what, done, max(total, done))
}

func (p *progress) end() {
	if p.live {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
