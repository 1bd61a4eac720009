// Command ledgerd is a ledger and idempotency service: one binary and one Postgres.
//
//	ledgerd dev       run with a private Postgres and sample data; needs no setup
//	ledgerd serve     run on DATABASE_URL
//	ledgerd migrate   migrate the schema of DATABASE_URL
//	ledgerd apikey    create, list, rotate, revoke API keys
//	ledgerd verify    recompute every balance of a running database
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
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// cli is the command line: one field per subcommand.
type cli struct {
	Version  kong.VersionFlag `help:"Show the version of this program."`
	LogLevel slog.Level       `help:"Minimum log level: debug, info, warn or error." default:"info" env:"LEDGERD_LOG_LEVEL"`

	Dev     devCmd     `cmd:"" default:"withargs" help:"Run a server with a private Postgres and sample data (the default)."`
	Serve   serveCmd   `cmd:"" help:"Run a server on DATABASE_URL."`
	Migrate migrateCmd `cmd:"" help:"Migrate the schema of DATABASE_URL to this version."`
	Apikey  apikeyCmd  `cmd:"" help:"Create, list, rotate and revoke API keys."`
	Policy  policyCmd  `cmd:"" help:"Set what a tenant requires of calls: request keys, submit tokens, approvals, the life of keys."`
	Limit   limitCmd   `cmd:"" help:"Limit how many messages a tenant may send."`
	Verify  verifyCmd  `cmd:"" help:"Check DATABASE_URL: recompute every balance, test all invariants, compare the schema."`
	Bench   benchCmds  `embed:""`
	Secret  secretCmd  `cmd:"" help:"Replace the master key."`
	Notify  notifyCmds `cmd:"" help:"Test providers of messages, and drop old records of messages."`
	Import  importCmd  `cmd:"" help:"Import books from other systems."`
	Export  exportCmd  `cmd:"" help:"Export the books."`

	Reconcile reconcileCmd `cmd:"" help:"Compare the books with statements of banks and gateways."`
}

// env is the environment of subcommands.
type env struct {
	ctx    context.Context // cancelled by SIGINT or SIGTERM
	out    io.Writer
	log    *slog.Logger
	errOut io.Writer
}

// open opens a pool on a database with exactly the migrations of this program.
func (e *env) open(url string, size int32) (*pgxpool.Pool, error) {
	if err := pg.CheckSchema(e.ctx, url); err != nil {
		return nil, err
	}
	pool, err := pg.Open(e.ctx, url, size)
	if err != nil {
		return nil, err
	}
	if err := pg.CheckMode(e.ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// tenantFlag names the tenant of a command.
type tenantFlag struct {
	Tenant string `required:"" help:"Name of the tenant."`
}

// with runs a function with a pool on a database, and the id of the tenant.
func (f *tenantFlag) with(e *env, url string, do func(pool *pgxpool.Pool, tenant int32) error) error {
	pool, err := e.openAdmin(url)
	if err != nil {
		return err
	}
	defer pool.Close()
	tenant, err := access.Tenant(e.ctx, pool, f.Tenant)
	if err != nil {
		return err
	}
	return do(pool, tenant)
}

// openAdmin opens a database to administer its tenants.
func (e *env) openAdmin(url string) (*pgxpool.Pool, error) {
	pool, err := e.open(url, 1)
	if err != nil {
		return nil, err
	}
	if err := access.CheckAdministrator(e.ctx, pool); err != nil {
		pool.Close()
		return nil, fmt.Errorf("%w: name its URL in --database-url or LEDGERD_ADMIN_DATABASE_URL", err)
	}
	return pool, nil
}

// table writes rows in columns, below a header.
func (e *env) table(header string, rows func(w io.Writer)) error {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	rows(w)
	return w.Flush()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errQuiet is a failure that has already been reported.
var errQuiet = errors.New("")

// checkFlags refuses ambiguous input: a flag that is given twice, and an empty URL of the database.
func checkFlags(parsed *kong.Context) error {
	given := map[*kong.Flag]bool{}
	for _, p := range parsed.Path {
		f := p.Flag
		switch {
		case f == nil || p.Resolved:
			continue
		case given[f] && !f.IsCumulative():
			return fmt.Errorf("--%s is given twice", f.Name)
		case f.Name == "database-url" && strings.TrimSpace(f.Target.String()) == "":
			return fmt.Errorf("--%s must not be empty", f.Name)
		}
		given[f] = true
	}
	return nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	for _, name := range []string{"LEDGERD_ADMIN_DATABASE_URL", "DATABASE_URL"} {
		if strings.TrimSpace(os.Getenv(name)) == "" { // an empty URL would mean the database of libpq's defaults
			_ = os.Unsetenv(name)
		}
	}
	var c cli
	parser, err := kong.New(&c, kong.Name("ledgerd"), kong.Writers(out, errOut), kong.UsageOnError(),
		kong.Vars{"version": version()},
		kong.Description("A ledger and idempotency service on Postgres."))
	if err != nil {
		panic(err) // the definition of the command line is invalid
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = checkFlags(parsed)
	}
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
