package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench"
	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// benchCmds are bench, and what it starts for its load.
type benchCmds struct {
	Bench     benchCmd     `cmd:"" help:"Measure this ledger against plain Postgres, on a private Postgres that is removed again."`
	BenchLoad benchLoadCmd `cmd:"" hidden:"" help:"The load process of bench."`
}

type benchCmd struct {
	Rounds   int           `help:"Rounds; every case once in each. Medians are shown." default:"3"`
	Measure  time.Duration `name:"seconds" help:"Measured time of a case in a round, such as 4s." default:"4s"`
	Warmup   time.Duration `help:"Time before it." default:"2s"`
	Quick    bool          `help:"One short round on the small tables: about two minutes, for a first look."`
	Only     []string      `help:"Only these cases: patterns such as 'a-*,b-256*'."`
	Active   int           `help:"Accounts that transfers go between." default:"10000"`
	Accounts int           `help:"Accounts in the big tables." default:"1000000"`
	Entries  int           `help:"Entries in the big tables. 0: measure the small tables alone." default:"10000000"`
	Dir      string        `help:"Directory on a disk for Postgres' data. Default: one for temporary files."`
	JSON     string        `name:"json" help:"Write everything that was measured to this file." placeholder:"FILE"`
	Doc      string        `help:"Put the tables into this Markdown file, between its bench marks." placeholder:"FILE"`
	Profiles string        `help:"Write CPU profiles of the server into this directory. Costs some speed." placeholder:"DIR"`
	Checks   bool          `help:"Run all checks of the database at the end too. Takes minutes on the big tables."`
}

func (c *benchCmd) Run(e *env) error {
	if err := bench.CheckPatterns(c.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if c.Doc != "" {
		if err := bench.CheckDocument(c.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	if c.Profiles != "" {
		if err := os.MkdirAll(c.Profiles, 0o755); err != nil {
			return fmt.Errorf("--profiles: %w", err)
		}
	}
	o := bench.Options{Dir: c.Dir, Rounds: c.Rounds, Warmup: c.Warmup, Measure: c.Measure, Only: c.Only, Active: c.Active,
		Accounts: c.Accounts, Entries: c.Entries, Checks: c.Checks, Profiles: c.Profiles, Progress: e.errOut}
	if c.Quick {
		o.Rounds, o.Warmup, o.Measure, o.Entries, o.Checks = 1, 500*time.Millisecond, 2*time.Second, 0, true
	}
	report, err := bench.Run(e.ctx, o)
	if report == nil {
		return err
	}
	return errors.Join(c.show(e, report), err)
}

// show writes a report wherever it is wanted. One that failed does not go into a document.
func (c *benchCmd) show(e *env, r *bench.Report) error {
	if err := r.WriteText(e.out); err != nil {
		return err
	}
	if c.JSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.JSON, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if c.Doc == "" || len(r.Failures) > 0 {
		return nil
	}
	return r.WriteDocument(c.Doc)
}

type benchLoadCmd struct{}

func (*benchLoadCmd) Run(e *env) error { return load.Main(e.ctx, os.Stdin, e.out) }
