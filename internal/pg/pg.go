// Package pg opens connection pools and applies migrations. It knows no domain.
package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// Open opens a pool of at most size connections and registers the codec of amount.Int. It does not connect; the
// first use does.
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

// hide removes the DSN, which may contain a password, from an error.
func hide(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("must be a postgres:// URL or a list of key=value")
	}
	return err
}

const warned = "ledgerd.warned"

// notice records warnings: after COMMIT, one reports that the wait for a synchronous replica was cancelled.
func notice(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" {
		c.CustomData()[warned] = n.Message
	}
}

// ClearWarning forgets the warnings of a connection.
func ClearWarning(c *pgx.Conn) { delete(c.PgConn().CustomData(), warned) }

// Warned reports whether the server sent a warning since ClearWarning.
func Warned(c *pgx.Conn) bool { return c.PgConn().CustomData()[warned] != nil }

// Errors of CheckRole.
var (
	ErrTooPowerful = errors.New("the service must not run as a superuser, as a member of ledgerd_owner or pg_write_all_data, or as a role that may create roles: give it a login role that is a member of ledgerd_app only")
	ErrNoRights    = errors.New("the service's role is not a member of ledgerd_app: it can read and write nothing")
)

// CheckRole refuses a login role that could disable or bypass the database's guards, and one without rights,
// for which every call would fail.
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
