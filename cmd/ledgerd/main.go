// Command ledgerd is the ledger and idempotency service: one binary, and one Postgres.
//
//	ledgerd dev       a private Postgres, migrations, sample data, the server: nothing to set up
//	ledgerd serve     the server on DATABASE_URL
//	ledgerd migrate   bring the schema of DATABASE_URL up to date
//	ledgerd apikey    make, list, revoke API keys
//	ledgerd verify    re-derive every balance of a running database
//
// `ledgerd --help` lists the rest.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is the command line: one field a subcommand.
type cli struct {
	LogLevel slog.Level `help:"Least level that is logged: debug, info, warn or error." default:"info" env:"LEDGERD_LOG_LEVEL"`

	Dev     devCmd     `cmd:"" default:"withargs" help:"Run a server with a private Postgres and sample data (the default)."`
	Serve   serveCmd   `cmd:"" help:"Run a server on DATABASE_URL."`
	Migrate migrateCmd `cmd:"" help:"Migrate the schema of DATABASE_URL to this version."`
	Apikey  apikeyCmd  `cmd:"" help:"Create, list and revoke API keys."`
	Policy  policyCmd  `cmd:"" help:"Set what a tenant requires of calls: request keys, submit tokens, the life of keys."`
	Limit   limitCmd   `cmd:"" help:"Limit how many messages a tenant may send."`
	Verify  verifyCmd  `cmd:"" help:"Check DATABASE_URL: recompute every balance, and test all invariants."`
	Bench   benchCmds  `embed:""`
	Notify  notifyCmds `cmd:"" help:"Test providers of messages, and drop old records of messages."`
	Import  importCmd  `cmd:"" help:"Import books from other systems."`
	Export  exportCmd  `cmd:"" help:"Export the books."`
}

// env is what subcommands run with.
type env struct {
	ctx    context.Context // ends at SIGINT or SIGTERM
	out    io.Writer
	log    *slog.Logger
	errOut io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errQuiet ends with a failure that has been told already.
var errQuiet = errors.New("")

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("ledgerd"), kong.Writers(out, errOut), kong.UsageOnError(),
		kong.Description("A ledger and idempotency service on Postgres."))
	if err != nil {
		panic(err) // the command line itself is wrong
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(errOut, "ledgerd:", err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(errOut, &slog.HandlerOptions{Level: c.LogLevel}))
	slog.SetDefault(log)
	err = parsed.Run(&env{ctx: ctx, out: out, log: log, errOut: errOut})
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(errOut, "ledgerd: interrupted")
	case !errors.Is(err, errQuiet):
		fmt.Fprintln(errOut, "ledgerd:", err)
	}
	return 1
}
