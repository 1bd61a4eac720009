package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench"
	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// benchCmds are the benchmarks, and the hidden commands of their load processes.
type benchCmds struct {
	Bench struct {
		Ledger   benchCmd         `cmd:"" default:"withargs" help:"Measure the ledger against plain Postgres."`
		Keys     benchKeysCmd     `cmd:"" help:"Measure claims, tokens, guarded work and locks, in process and over Connect."`
		Notify   benchNotifyCmd   `cmd:"" help:"Measure messages: accepting, delivering and pick-up, also with a held snapshot and a killed process."`
		Stock    benchStockCmd    `cmd:"" help:"Measure the strategies of stock, in process and over Connect, and the trigger of moves."`
		Sale     benchSaleCmd     `cmd:"" help:"Measure a flash sale, compared with the same sale decided by Redis."`
		Checkout benchCheckoutCmd `cmd:"" help:"Measure orders from their creation until they are paid, compared with the same rows written by PL/pgSQL."`
		Overload benchOverloadCmd `cmd:"" help:"Measure a server with ten times the callers that it can serve, and a small tenant beside them."`
	} `cmd:"" help:"Run benchmarks on a private Postgres, which is removed afterwards."`
	BenchLoad    benchLoadCmd    `cmd:"" hidden:"" help:"The load process of bench."`
	BenchDeliver benchDeliverCmd `cmd:"" hidden:"" help:"The delivering process of bench notify."`
	BenchRedis   benchRedisCmd   `cmd:"" hidden:"" help:"The server in front of Redis, for bench sale."`
}

// benchFlags are common to the benchmarks.
type benchFlags struct {
	Rounds  int           `help:"Number of rounds. Every case runs once per round; medians are shown. Messages are measured once." default:"3"`
	Measure time.Duration `name:"seconds" help:"Measured time per case and round, such as 4s. 0: the benchmark's own." default:"0s"`
	Warmup  time.Duration `help:"Warm-up time per case and round. 0: the benchmark's own." default:"0s"`
	Only    []string      `help:"Only these cases: patterns such as 'a-*,b-256*'."`
	Dir     string        `help:"Directory, on a disk, for the data of Postgres. Default: a temporary directory."`
	JSON    string        `name:"json" help:"Write all measurements to this file." placeholder:"FILE"`
	Doc     string        `help:"Write the tables into this Markdown file, between the benchmark's marks." placeholder:"FILE"`
}

// profileFlag is a flag of the benchmarks of the ledger.
type profileFlag struct {
	Profiles string `help:"Write CPU profiles of the server into this directory. This slows the server a little." placeholder:"DIR"`
}

func (f *profileFlag) prepare() error {
	if f.Profiles == "" {
		return nil
	}
	if err := os.MkdirAll(f.Profiles, 0o755); err != nil {
		return fmt.Errorf("--profiles: %w", err)
	}
	return nil
}

func (f *benchFlags) options(e *env) bench.Options {
	return bench.Options{Dir: f.Dir, Rounds: f.Rounds, Warmup: f.Warmup, Measure: f.Measure, Only: f.Only,
		Progress: e.errOut}
}

// run measures, and writes the report to all requested places. A failed run is not written to a document.
func (f *benchFlags) run(e *env, document bench.Document, measure func() (*bench.Report, error)) error {
	if f.Doc != "" {
		if err := document.Check(f.Doc); err != nil {
			return fmt.Errorf("--doc: %w", err)
		}
	}
	r, failed := measure()
	if r == nil {
		return failed
	}
	if err := r.WriteText(e.out); err != nil {
		return err
	}
	if f.JSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(f.JSON, append(text, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
	}
	if f.Doc == "" || failed != nil {
		return failed
	}
	return document.Write(f.Doc, r.WriteMarkdown)
}

type benchCmd struct {
	benchFlags
	profileFlag
	Quick   bool `help:"One short round on the small tables: about two minutes, for a first look."`
	Entries int  `help:"Number of entries in the big tables. 0: measure the small tables only." default:"10000000"`
	Checks  bool `help:"Also run all checks of the database at the end. Takes minutes on the big tables."`
}

func (c *benchCmd) Run(e *env) error {
	if err := bench.CheckPatterns(c.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if err := c.prepare(); err != nil {
		return err
	}
	o := c.options(e)
	o.Entries, o.Checks, o.Profiles = c.Entries, c.Checks, c.Profiles
	if c.Quick {
		o.Rounds, o.Warmup, o.Measure, o.Entries, o.Checks = 1, 500*time.Millisecond, 2*time.Second, 0, true
	}
	return c.run(e, bench.LedgerDocument, func() (*bench.Report, error) { return bench.Run(e.ctx, o) })
}

type benchKeysCmd struct{ benchFlags }

func (c *benchKeysCmd) Run(e *env) error {
	limitMemory() // an engine runs in this process, as in the server
	return c.run(e, bench.KeysDocument, func() (*bench.Report, error) {
		return bench.RunKeys(e.ctx, bench.KeyOptions{Options: c.options(e)})
	})
}

type benchNotifyCmd struct {
	benchFlags
	Held time.Duration `help:"How long a snapshot is held open under load." default:"2m"`
}

func (c *benchNotifyCmd) Run(e *env) error {
	return c.run(e, bench.NotifyDocument, func() (*bench.Report, error) {
		return bench.RunNotify(e.ctx, bench.NotifyOptions{Held: c.Held, Options: c.options(e)})
	})
}

type benchStockCmd struct{ benchFlags }

func (c *benchStockCmd) Run(e *env) error {
	limitMemory() // an engine runs in this process, as in the server
	return c.run(e, bench.StockDocument, func() (*bench.Report, error) {
		return bench.RunStock(e.ctx, bench.StockOptions{Options: c.options(e)})
	})
}

type benchSaleCmd struct {
	benchFlags
	Units  int    `help:"Units of the sale." default:"10000"`
	Buyers int    `help:"Number of buyers. One in 20 asks twice." default:"100000"`
	Redis  string `help:"Program of Redis to compare with, such as redis-server. Default: no comparison." placeholder:"PROGRAM"`
}

func (c *benchSaleCmd) Run(e *env) error {
	limitMemory() // an engine runs in this process, as in the server
	return c.run(e, bench.SaleDocument, func() (*bench.Report, error) {
		return bench.RunSale(e.ctx, bench.SaleOptions{Options: c.options(e), Units: c.Units, Buyers: c.Buyers,
			Redis: c.Redis})
	})
}

type benchCheckoutCmd struct{ benchFlags }

func (c *benchCheckoutCmd) Run(e *env) error {
	return c.run(e, bench.CheckoutDocument, func() (*bench.Report, error) {
		return bench.RunCheckout(e.ctx, bench.CheckoutOptions{Options: c.options(e)})
	})
}

type benchRedisCmd struct {
	Listen string `required:"" help:"Address."`
	Redis  string `required:"" help:"Address of Redis."`
	Script string `required:"" help:"Hash of the script."`

	DatabaseURL string `required:"" env:"DATABASE_URL" help:"URL of the database with the API keys."`
}

func (c *benchRedisCmd) Run(e *env) error {
	limitMemory() // as in the server
	return bench.ServeRedis(e.ctx, c.Listen, c.Redis, c.Script, c.DatabaseURL)
}

type benchOverloadCmd struct {
	benchFlags
	profileFlag
}

func (c *benchOverloadCmd) Run(e *env) error {
	if err := c.prepare(); err != nil {
		return err
	}
	o := c.options(e)
	o.Profiles = c.Profiles
	return c.run(e, bench.OverloadDocument, func() (*bench.Report, error) {
		return bench.RunOverload(e.ctx, bench.OverloadOptions{Options: o})
	})
}

type benchLoadCmd struct{}

func (*benchLoadCmd) Run(e *env) error { return load.Main(e.ctx, os.Stdin, e.out) }

type benchDeliverCmd struct {
	Sink  string        `required:"" help:"URL of the sink."`
	Lease time.Duration `required:"" help:"Lease of messages."`
}

func (c *benchDeliverCmd) Run(e *env) error {
	return bench.Deliver(e.ctx, os.Getenv("DATABASE_URL"), c.Sink, c.Lease)
}
