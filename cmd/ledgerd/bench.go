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
	Bench struct {
		Ledger   benchCmd         `cmd:"" default:"withargs" help:"Measure the ledger against plain Postgres."`
		Keys     benchKeysCmd     `cmd:"" help:"Measure claims, tokens, guarded work and locks, against Redis if it is installed."`
		Notify   benchNotifyCmd   `cmd:"" help:"Measure messages: accepting, delivering and pick-up, also with a held snapshot and a killed process."`
		Overload benchOverloadCmd `cmd:"" help:"Measure a server with ten times the callers that it can serve, and a small tenant beside them."`
	} `cmd:"" help:"Run benchmarks on a private Postgres, which is removed afterwards."`
	BenchLoad    benchLoadCmd    `cmd:"" hidden:"" help:"The load process of bench."`
	BenchDeliver benchDeliverCmd `cmd:"" hidden:"" help:"The delivering process of bench notify."`
}

type benchCmd struct {
	Rounds   int           `help:"Number of rounds. Every case runs once per round; medians are shown." default:"3"`
	Measure  time.Duration `name:"seconds" help:"Measured time per case and round, such as 4s." default:"4s"`
	Warmup   time.Duration `help:"Warm-up time per case and round." default:"2s"`
	Quick    bool          `help:"One short round on the small tables: about two minutes, for a first look."`
	Only     []string      `help:"Only these cases: patterns such as 'a-*,b-256*'."`
	Active   int           `help:"Number of accounts that transfers choose from." default:"10000"`
	Accounts int           `help:"Number of accounts in the big tables." default:"1000000"`
	Entries  int           `help:"Number of entries in the big tables. 0: measure the small tables only." default:"10000000"`
	Dir      string        `help:"Directory, on a disk, for the data of Postgres. Default: a temporary directory."`
	JSON     string        `name:"json" help:"Write all measurements to this file." placeholder:"FILE"`
	Doc      string        `help:"Write the tables into this Markdown file, between its bench marks." placeholder:"FILE"`
	Profiles string        `help:"Write CPU profiles of the server into this directory. This slows the server a little." placeholder:"DIR"`
	Checks   bool          `help:"Also run all checks of the database at the end. Takes minutes on the big tables."`
}

func (c *benchCmd) Run(e *env) error {
	if err := bench.CheckPatterns(c.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if c.Doc != "" {
		if err := bench.LedgerDocument.Check(c.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	if c.Profiles != "" {
		if err := os.MkdirAll(c.Profiles, 0o755); err != nil {
			return fmt.Errorf("--profiles: %w", err)
		}
	}
	o := bench.Options{Dir: c.Dir, Rounds: c.Rounds, Warmup: c.Warmup, Measure: c.Measure, Only: c.Only,
		Active:   c.Active,
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
		if err := writeJSON(c.JSON, r); err != nil {
			return err
		}
	}
	if c.Doc == "" || len(r.Failures) > 0 {
		return nil
	}
	return bench.LedgerDocument.Write(c.Doc, r.WriteMarkdown)
}

type benchKeysCmd struct {
	Rounds  int           `help:"Number of rounds. Every case runs once per round; medians are shown." default:"3"`
	Measure time.Duration `name:"seconds" help:"Measured time per case and round, such as 4s." default:"4s"`
	Warmup  time.Duration `help:"Warm-up time per case and round." default:"2s"`
	Callers int           `help:"Number of concurrent callers." default:"256"`
	Only    []string      `help:"Only these cases: patterns such as 'redis,claim*'."`
	Redis   string        `help:"The Redis server to compare with. Default: redis-server, if it is installed." placeholder:"PROGRAM"`
	Dir     string        `help:"Directory, on a disk, for the data of Postgres and Redis. Default: a temporary directory."`
	JSON    string        `name:"json" help:"Write all measurements to this file." placeholder:"FILE"`
	Doc     string        `help:"Write the table into this Markdown file, between its bench keys marks." placeholder:"FILE"`
}

func (c *benchKeysCmd) Run(e *env) error {
	if c.Doc != "" {
		if err := bench.KeysDocument.Check(c.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	limitMemory() // an engine runs in this process, as in the server
	r, err := bench.RunKeys(e.ctx, bench.KeyOptions{Callers: c.Callers, Redis: c.Redis,
		Options: bench.Options{Dir: c.Dir, Rounds: c.Rounds,
			Warmup: c.Warmup, Measure: c.Measure, Only: c.Only, Progress: e.errOut}})
	if r == nil || err != nil {
		return err
	}
	if err := r.WriteText(e.out); err != nil {
		return err
	}
	if c.JSON != "" {
		if err := writeJSON(c.JSON, r); err != nil {
			return err
		}
	}
	if c.Doc == "" {
		return nil
	}
	return bench.KeysDocument.Write(c.Doc, r.WriteMarkdown)
}

func writeJSON(file string, report any) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

type benchLoadCmd struct{}

func (*benchLoadCmd) Run(e *env) error { return load.Main(e.ctx, os.Stdin, e.out) }

type benchNotifyCmd struct {
	Measure time.Duration `name:"seconds" help:"Measured time per case, such as 10s." default:"10s"`
	Warmup  time.Duration `help:"Warm-up time per case and round." default:"3s"`
	Callers int           `help:"Number of concurrent callers." default:"256"`
	Backlog int           `help:"Number of messages that are enqueued before delivery starts." default:"60000"`
	Held    time.Duration `help:"How long a snapshot is held open under load." default:"2m"`
	Lease   time.Duration `help:"Length of the processes' leases. 0: as in the service." default:"0s"`
	Only    []string      `help:"Only these cases: patterns such as 'enqueue,burn-down'."`
	Dir     string        `help:"Directory, on a disk, for the data of Postgres. Default: a temporary directory."`
	JSON    string        `name:"json" help:"Write all measurements to this file." placeholder:"FILE"`
	Doc     string        `help:"Write the tables into this Markdown file, between its bench notify marks." placeholder:"FILE"`
}

func (c *benchNotifyCmd) Run(e *env) error {
	if c.Doc != "" {
		if err := bench.NotifyDocument.Check(c.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	r, failed := bench.RunNotify(e.ctx, bench.NotifyOptions{Callers: c.Callers, Backlog: c.Backlog, Held: c.Held,
		Lease:   c.Lease,
		Options: bench.Options{Dir: c.Dir, Warmup: c.Warmup, Measure: c.Measure, Only: c.Only, Progress: e.errOut}})
	if r == nil {
		return failed
	}
	if err := r.WriteText(e.out); err != nil {
		return err
	}
	if c.JSON != "" {
		if err := writeJSON(c.JSON, r); err != nil {
			return err
		}
	}
	if c.Doc == "" || failed != nil {
		return failed
	}
	return bench.NotifyDocument.Write(c.Doc, r.WriteMarkdown)
}

type benchDeliverCmd struct {
	Sink  string        `required:"" help:"Where messages go."`
	Lease time.Duration `required:"" help:"Of messages."`
}

func (c *benchDeliverCmd) Run(e *env) error {
	return bench.Deliver(e.ctx, os.Getenv("DATABASE_URL"), c.Sink, c.Lease)
}

type benchOverloadCmd struct {
	Rounds   int           `help:"Number of rounds. Every case runs once per round; medians are shown." default:"3"`
	Measure  time.Duration `name:"seconds" help:"Measured time per case and round, such as 6s." default:"6s"`
	Warmup   time.Duration `help:"Warm-up time per case and round." default:"3s"`
	Peak     int           `help:"Number of callers of TransferBatch that reach the peak throughput." default:"10"`
	Times    int           `help:"Factor by which the number of callers grows for overload." default:"10"`
	Beside   int           `help:"Number of callers of the small tenant." default:"4"`
	Only     []string      `help:"Only these cases: patterns such as 'peak,at-*'."`
	Dir      string        `help:"Directory, on a disk, for the data of Postgres. Default: a temporary directory."`
	JSON     string        `name:"json" help:"Write all measurements to this file." placeholder:"FILE"`
	Doc      string        `help:"Write the tables into this Markdown file, between its bench overload marks." placeholder:"FILE"`
	Profiles string        `help:"Write CPU profiles of the server into this directory. This slows the server a little." placeholder:"DIR"`
}

func (c *benchOverloadCmd) Run(e *env) error {
	if c.Doc != "" {
		if err := bench.OverloadDocument.Check(c.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	r, failed := bench.RunOverload(e.ctx, bench.OverloadOptions{Peak: c.Peak, Times: c.Times, Beside: c.Beside,
		Options: bench.Options{Dir: c.Dir, Rounds: c.Rounds, Warmup: c.Warmup, Measure: c.Measure, Only: c.Only,
			Profiles: c.Profiles,
			Progress: e.errOut}})
	if r == nil {
		return failed
	}
	if err := r.WriteText(e.out); err != nil {
		return err
	}
	if c.JSON != "" {
		if err := writeJSON(c.JSON, r); err != nil {
			return err
		}
	}
	if c.Doc == "" || failed != nil {
		return failed
	}
	return bench.OverloadDocument.Write(c.Doc, r.WriteMarkdown)
}
