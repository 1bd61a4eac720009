// Package pg opens connection pools and applies migrations. It knows no domain.
package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// Open opens a pool of at most size connections, which read amount.Int, and times in UTC. It does not connect; the
// first use does.
func Open(ctx context.Context, dsn string, size int32) (*pgxpool.Pool, error) {
	return open(ctx, dsn, size, 0)
}

// OpenReads is Open for short statements and reads: they end after ReadTimeout.
func OpenReads(ctx context.Context, dsn string, size int32) (*pgxpool.Pool, error) {
	return open(ctx, dsn, size, ReadTimeout)
}

func open(ctx context.Context, dsn string, size int32, statementTimeout time.Duration) (*pgxpool.Pool, error) {
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
	c.PrepareConn = renewReadOnly
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		amount.Register(conn.TypeMap())
		registerTimes(conn.TypeMap())
		registerArrays(conn.TypeMap())
		if err := setKeepAlive(ctx, conn); err != nil || statementTimeout == 0 {
			return err
		}
		return setTimeout(ctx, conn, statementTimeout)
	}
	return pgxpool.NewWithConfig(ctx, c)
}

const (
	readOnlySince = "ledgerd.read_only_since"
	readOnlyLife  = time.Second
)

// renewReadOnly drops a session that is read-only by default, a second after its first use: the session keeps this
// default even when that of the role or the database is changed back.
func renewReadOnly(_ context.Context, c *pgx.Conn) (usable bool, err error) {
	if c.PgConn().ParameterStatus("default_transaction_read_only") != "on" {
		return true, nil
	}
	data := c.PgConn().CustomData()
	since, seen := data[readOnlySince].(time.Time)
	if !seen {
		data[readOnlySince] = time.Now()
	}
	return !seen || time.Since(since) < readOnlyLife, nil
}

// setKeepAlive makes Postgres detect a silent network as the dialer does. Otherwise the locks of a host that vanishes
// are held for hours: while Postgres waits for the rest of a pipeline, none of its timeouts runs. Behind a pooler the
// setting is that of the pooler's connection.
func setKeepAlive(ctx context.Context, conn *pgx.Conn) error {
	if conn.PgConn().Conn().RemoteAddr().Network() != "tcp" {
		return nil
	}
	_, err := conn.Exec(ctx, "select set_config('tcp_keepalives_idle', $1, false), "+
		"set_config('tcp_keepalives_interval', $2, false), set_config('tcp_keepalives_count', $3, false), "+
		"set_config('tcp_user_timeout', $4, false)",
		pgx.QueryExecModeSimpleProtocol, seconds(keepAliveIdle), seconds(keepAliveInterval),
		strconv.Itoa(keepAliveCount), strconv.FormatInt(silence.Milliseconds(), 10))
	if err != nil {
		return fmt.Errorf("set keepalives: %w", err)
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

// ReadTimeout bounds a statement of a read in the database: pgx asks Postgres to cancel the statement of a call that
// has ended, but that request may be lost, and this process may die.
const ReadTimeout = 65 * time.Second

// setTimeout sets the statement timeout of a connection straight to Postgres. Behind a pooler in transaction mode the
// setting would leak to other clients of the connection. There, long reads set the timeout in their transaction.
func setTimeout(ctx context.Context, conn *pgx.Conn, timeout time.Duration) error {
	_, err := conn.Exec(ctx, "select set_config('statement_timeout', $1, false) where pg_backend_pid()::bigint = $2",
		pgx.QueryExecModeSimpleProtocol, strconv.FormatInt(timeout.Milliseconds(), 10), int64(conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("set the statement timeout: %w", err)
	}
	return nil
}

// hide removes the DSN, which may contain a password, from an error.
func hide(err error) error {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return err
	}
	// The DSN stands between backquotes, and may stand again in errors about its form.
	if _, problem, ok := strings.Cut(parse.Error(), "`: "); ok && !strings.HasPrefix(problem, "failed to parse") &&
		!strings.Contains(problem, "://") {
		return errors.New(problem)
	}
	return errors.New("must be a postgres:// URL or a list of key=value")
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

// Errors of CheckRole and CheckAdminRole.
var (
	ErrExcessRights = errors.New("the service must run as a login role that is a member of ledgerd_app only")
	ErrNoRights     = errors.New("the service's role is not a member of ledgerd_app: it can read and write nothing")

	ErrAdminExcessRights = errors.New("administration must run as a login role that is a member of ledgerd_admin only")
	ErrNoAdminRights     = errors.New("the role of administration is not a member of ledgerd_admin")
)

// rolePowers selects the powers of the login role beyond the group $1, including those of roles that it may become, and
// whether it is a member of the group. The roles named pg_ bypass the privileges of tables.
const rolePowers = `
with me as (
    select * from pg_roles where rolname = session_user
), roles as (
    select r.* from pg_roles r, me where r.oid = me.oid or not me.rolsuper and pg_has_role(me.oid, r.oid, 'member')
), ours as (
    select relnamespace as schema from pg_class where oid = 'ledger_accounts'::regclass
    union select 'audit'::regnamespace
)
select array(
    select p.power from roles r cross join lateral (values
        (r.rolsuper, 'is a superuser'), (r.rolcreaterole, 'may create roles'), (r.rolreplication, 'may replicate'),
        (r.rolbypassrls, 'bypasses row-level security'),
        (r.rolname <> $1 and r.rolname in ('ledgerd_owner', 'ledgerd_app', 'ledgerd_admin', 'ledgerd_audit',
            'pg_read_all_data', 'pg_write_all_data', 'pg_read_server_files', 'pg_write_server_files',
            'pg_execute_server_program', 'pg_maintain', 'pg_create_subscription'),
            'is a member of ' || r.rolname)
    ) p (has, power)
    where p.has
    union select 'owns the database' from pg_database d join roles r on r.oid = d.datdba
    where d.datname = current_database()
    union select 'owns schema ' || n.nspname from pg_namespace n join ours on ours.schema = n.oid
    join roles r on r.oid = n.nspowner
    union select 'owns ' || c.relname from pg_class c join ours on ours.schema = c.relnamespace
    join roles r on r.oid = c.relowner and r.rolname <> 'ledgerd_owner'
    where c.relkind in ('r', 'p', 'v')
    order by 1
), pg_has_role(session_user, $1, 'member')`

// CheckRole refuses a login role that could disable or bypass the database's guards, read the files of its machine or
// run programs there, and one without rights, for which every call would fail. Attributes of roles that it may become
// count.
func CheckRole(ctx context.Context, pool *pgxpool.Pool) error {
	return checkRole(ctx, pool, "ledgerd_app", ErrExcessRights, ErrNoRights)
}

// CheckAdminRole is CheckRole for the login role of administration, a member of ledgerd_admin only.
func CheckAdminRole(ctx context.Context, pool *pgxpool.Pool) error {
	return checkRole(ctx, pool, "ledgerd_admin", ErrAdminExcessRights, ErrNoAdminRights)
}

func checkRole(ctx context.Context, pool *pgxpool.Pool, group string, excessRights, noRights error) error {
	var powers []string
	var member bool
	err := pool.QueryRow(ctx, rolePowers, group).Scan(&powers, &member)
	switch {
	case err != nil:
		return fmt.Errorf("read the rights of a role: %w", err)
	case len(powers) > 0:
		return fmt.Errorf("%w: this one %s", excessRights, strings.Join(powers, ", "))
	case !member:
		return noRights
	}
	return nil
}
