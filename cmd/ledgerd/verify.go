package main

import (
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/verify"
)

type verifyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database. Servers may run meanwhile; a role that can read is enough." env:"DATABASE_URL"`
}

// Run re-derives every balance and holds all invariants against the database.
func (c *verifyCmd) Run(e *env) error {
	pool, err := pg.Open(e.ctx, c.DatabaseURL, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	start := time.Now()
	show := progress{out: e.errOut, live: isTerminal(e.errOut)}
	report, err := verify.Run(e.ctx, pool, verify.Options{Progress: show.tell})
	show.end()
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		fmt.Fprintln(e.out, v)
	}
	fmt.Fprintf(e.out, "%d tenants, %d accounts, %d transfers, %d holds, %d checks in %s\n", report.Tenants,
		report.Accounts,
		report.Transfers, report.Holds, report.Checks, time.Since(start).Round(time.Millisecond))
	if report.OK() {
		fmt.Fprintln(e.out, "no violations")
		return nil
	}
	names := make([]string, 0, len(report.Found))
	for name := range report.Found {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(e.out, "%s: %d violations\n", name, report.Found[name])
	}
	return fmt.Errorf("the database violates %d checks", len(names))
}

// progress tells how far a long work is: in place on a terminal, else nothing.
type progress struct {
	out  io.Writer
	live bool
	last time.Time
}

func (p *progress) tell(done, total int64, what string) {
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
