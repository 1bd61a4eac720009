package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/server"
)

type devCmd struct {
	serverFlags
	Dir         string `help:"Directory for the data of the private Postgres." env:"LEDGERD_DIR"`
	DatabaseURL string `help:"URL of a Postgres database to use instead of a private Postgres." env:"DATABASE_URL"`
}

// Roles and database that dev creates in its private Postgres: those of the server and of administration, and the
// auditor's for psql.
const (
	devDatabase = "ledgerd"
	devRole     = "ledgerd_dev"
	devAdmin    = "ledgerd_dev_admin"
	devAuditor  = "ledgerd_dev_auditor"
	devTenant   = "sample"
)

func (c *devCmd) Run(e *env) error {
	if err := onlyLoopback(c.Listen); err != nil {
		return err
	}
	if err := checkFree(c.Listen); err != nil {
		return err
	}
	if err := c.keepSecret(); err != nil {
		return err
	}
	messages, err := c.messages()
	if err != nil {
		return err
	}
	url := c.DatabaseURL
	audit, admin := url, url
	if url == "" {
		local, end, err := c.localPostgres(e)
		if err != nil {
			return err
		}
		defer end()
		url, audit = local.DSN(devRole, devDatabase), local.DSN(devAuditor, devDatabase)
		admin = local.DSN(devAdmin, devDatabase)
	} else if err := pg.Migrate(e.ctx, url); err != nil {
		return err
	}
	anyone, err := sampleTenant(e.ctx, admin)
	if err != nil {
		return err
	}
	sent := "Messages are not sent, but written to " + messages
	if c.Notify != "" {
		sent = "Messages are sent by the providers in " + c.Notify +
			"; messages of other channels are not sent, but written to " + messages
	}
	o := server.Options{DatabaseURL: url, Anyone: &anyone}
	if c.DatabaseURL == "" { // a given URL is that of a role which migrates
		o.AdminDatabaseURL = admin
	}
	err = c.serve(e, o, provider.Development(messages), func(s *server.Server) error {
		base := "http://" + s.Addr()
		if err := sample(e.ctx, base); err != nil {
			return fmt.Errorf("sample data: %w", err)
		}
		program, err := os.Executable()
		if err != nil {
			program = "ledgerd"
		}
		fmt.Fprintf(e.out, welcome, base, audit, sent, admin, program)
		return nil
	})
	if cause := context.Cause(e.ctx); errors.Is(cause, errPostgresEnded) {
		return cause // later errors are its consequences
	}
	return err
}

// keepSecret creates a master key beside the data, unless one is given.
func (c *devCmd) keepSecret() error {
	if c.SecretsFile != "" || os.Getenv("LEDGERD_SECRET") != "" {
		return nil
	}
	name, err := c.beside(".secret")
	if err != nil {
		return err
	}
	c.SecretsFile = name
	_, err = secret.KeepFile(name)
	return err
}

// messages returns the file to which messages are written instead of being sent. It renames the file of an earlier,
// deleted database: a new database reuses message numbers, so its messages would be mistaken for the old ones.
func (c *devCmd) messages() (string, error) {
	name, err := c.beside(".messages")
	if err != nil {
		return "", err
	}
	data, err := c.beside("")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(data); c.DatabaseURL == "" && errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(name, name+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return name, nil
}

// beside returns the path of a file beside the data directory, which belongs to Postgres.
func (c *devCmd) beside(suffix string) (string, error) {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = localpg.DefaultDir(); err != nil {
			return "", err
		}
	}
	return filepath.Clean(dir) + suffix, nil
}

var errPostgresEnded = errors.New("the private Postgres stopped unexpectedly")

// onlyLoopback refuses addresses that other machines can reach: dev requires no API key.
func onlyLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", address, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("dev needs no API keys, so it listens on loopback addresses only, not on %s: "+
			"use `ledgerd serve`", address)
	}
	return nil
}

// checkFree refuses an address in use, so that no cluster is created in vain.
func checkFree(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w: choose another address with --listen or LEDGERD_LISTEN", err)
	}
	return l.Close()
}

// localPostgres starts the private Postgres and migrates it.
func (c *devCmd) localPostgres(e *env) (local *localpg.Server, end func(), err error) {
	dir := c.Dir
	if dir == "" {
		if dir, err = localpg.DefaultDir(); err != nil {
			return nil, nil, err
		}
	}
	local, err = localpg.Start(e.ctx, localpg.Options{Dir: dir, Durable: true,
		Notes: func(note string) { e.log.Info(note) }})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(e.ctx)
	end = func() {
		cancel(nil) // first, so that the shutdown is not reported as a crash
		if err := local.Stop(); err != nil {
			e.log.Error("stop Postgres", "error", err)
		}
	}
	if err := prepare(e.ctx, local); err != nil {
		end()
		if errors.Is(err, pg.ErrUnknownMigration) {
			err = fmt.Errorf("%w; to start with an empty database, remove the folder %s", err, dir)
		}
		return nil, nil, err
	}
	e.ctx = ctx
	go func() {
		<-local.Done()
		cancel(fmt.Errorf("%w: %w", errPostgresEnded, cmp.Or(local.Err(), errors.New("it was stopped"))))
	}()
	return local, end, nil
}

// prepare creates the database, its schema, and the roles.
func prepare(ctx context.Context, local *localpg.Server) error {
	conn, err := pgx.Connect(ctx, local.DSN(localpg.Superuser, "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)",
		devDatabase).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := conn.Exec(ctx, "create database "+devDatabase); err != nil {
			return err
		}
	}
	if err := pg.Migrate(ctx, local.DSN(localpg.Superuser, devDatabase)); err != nil {
		return err
	}
	for role, of := range map[string]string{devRole: "ledgerd_app", devAdmin: "ledgerd_admin",
		devAuditor: "ledgerd_audit"} {
		if err := conn.QueryRow(ctx, "select exists (select from pg_roles where rolname = $1)",
			role).Scan(&there); err != nil {
			return err
		}
		if there {
			continue
		}
		if _, err := conn.Exec(ctx, "create role "+role+" login in role "+of); err != nil {
			return err
		}
	}
	return nil
}

// sampleTenant creates the tenant of all calls in dev.
func sampleTenant(ctx context.Context, url string) (access.Identity, error) {
	pool, err := pg.Open(ctx, url, 1)
	if err != nil {
		return access.Identity{}, err
	}
	defer pool.Close()
	id, err := access.EnsureTenant(ctx, pool, devTenant)
	return access.Identity{Tenant: id, Principal: "dev", Role: access.Admin}, err
}

const welcome = `
ledgerd is ready at %[1]s, without keys, for this machine only.

Move 12.30 CNY (send it twice: it happens once):

  curl %[1]s/ledgerd.ledger.v1.LedgerService/Transfer \
    -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first' \
    -d '{"bizNo":"order-1","postings":[{"from":"user:1001:wallet","to":"merchant:shop",
         "asset":"CNY","amount":"12.30"}]}'

See what is there (docs/auditing.md):

  curl %[1]s/ledgerd.ledger.v1.LedgerService/ListAccounts -H 'Content-Type: application/json' -d '{}'
  psql '%[2]s'

Set limits, policies and keys of the tenant sample:

  '%[5]s' limit list --tenant sample --database-url '%[4]s'

%[3]s.
Ctrl-C ends it; the data stays.
`
