// Package pg opens connection pools and applies migrations. It knows Postgres and no domain.
package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/ledgerd/ledgerd/db/migrations"
	"github.com/ledgerd/ledgerd/internal/amount"
)

// Open opens a pool of at most size connections. Amounts travel as amount.Int. It does not wait for
// the database: the first use does.
func Open(ctx context.Context, dsn string, size int32) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the database URL cannot be read: %w", hide(err))
	}
	c.MaxConns = size
	c.MaxConnIdleTime = 5 * time.Minute
	c.PingTimeout = 2 * time.Second
	c.ConnConfig.ConnectTimeout = 5 * time.Second
	c.ConnConfig.DialFunc = dialer.DialContext
	c.ConnConfig.OnNotice = notice
	c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		amount.Register(conn.TypeMap())
		registerArrays(conn.TypeMap())
		return nil
	}
	return pgxpool.NewWithConfig(ctx, c)
}

// hide keeps a DSN with its password out of errors.
func hide(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("must be a postgres:// URL or a list of key=value")
	}
	return err
}

const warned = "ledgerd.warned"

// notice remembers warnings: at COMMIT one says that a synchronous replica was not waited for.
func notice(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" {
		c.CustomData()[warned] = n.Message
	}
}

// ClearWarning forgets the warnings of a connection; Warned tells whether there was one since.
func ClearWarning(c *pgx.Conn) { delete(c.PgConn().CustomData(), warned) }

// Warned tells whether the server sent a warning since ClearWarning.
func Warned(c *pgx.Conn) bool { return c.PgConn().CustomData()[warned] != nil }

// Migrate brings the schema up to date. Several processes may do it at once: one works, the others wait.
func Migrate(ctx context.Context, dsn string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return hide(err)
	}
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Pending tells how many migrations the database lacks. It needs no right but to read.
func Pending(ctx context.Context, dsn string) (int, error) {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return 0, hide(err)
	}
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	if err != nil {
		return 0, err
	}
	var empty bool
	if err := db.QueryRowContext(ctx, "select to_regclass($1) is null",
		goose.DefaultTablename).Scan(&empty); err != nil {
		return 0, err
	}
	if empty {
		return len(p.ListSources()), nil // Status would make the table
	}
	status, err := p.Status(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, s := range status {
		if s.State == goose.StatePending {
			n++
		}
	}
	return n, nil
}

// Errors of CheckRole.
var (
	ErrTooPowerful = errors.New("the service must not run as a superuser, as a member of ledgerd_owner or pg_write_all_data, or as a role that may create roles: give it a login role that is a member of ledgerd_app only")
	ErrNoRights    = errors.New("the service's role is not a member of ledgerd_app: it can read and write nothing")
)

// CheckRole refuses a login that could switch the guards of the database off, or go around them, and one that can do
// nothing: every call would fail.
func CheckRole(ctx context.Context, pool *pgxpool.Pool) error {
	var powerful, member bool
	err := pool.QueryRow(ctx, `select rolsuper or rolcreaterole or pg_has_role(session_user, 'ledgerd_owner', 'member')
			or pg_has_role(session_user, 'pg_write_all_data', 'member'), pg_has_role(session_user, 'ledgerd_app', 'member')
		from pg_roles where rolname = session_user`).Scan(&powerful, &member)
	if err != nil {
		return fmt.Errorf("read the rights of the service's role: %w", err)
	}
	switch {
	case powerful:
		return ErrTooPowerful
	case !member:
		return ErrNoRights
	}
	return nil
}
