package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// modeSetting is the database URL's parameter for pgx's query execution mode.
const modeSetting = "default_query_exec_mode"

// Errors of CheckMode.
var (
	ErrMode     = errors.New("the database URL sets an unsupported query execution mode")
	ErrPoolMode = errors.New("the pooler before the database allows no transactions")
)

// CheckMode refuses query execution modes that do not work. exec and simple_protocol cannot encode arrays of
// the service's types. describe_exec uses an unnamed statement over two round trips, and a pooler may switch to
// another connection between them. Behind a pooler, prepared statements (cache_statement, the default) may be lost.
func CheckMode(ctx context.Context, pool *pgxpool.Pool) error {
	config := pool.Config().ConnConfig
	switch config.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeDescribeExec:
		return fmt.Errorf("%w: %s must be cache_statement or cache_describe", ErrMode, modeSetting)
	case pgx.QueryExecModeCacheStatement:
		pooler, err := behindPooler(ctx, pool)
		if err != nil {
			return fmt.Errorf("ask for the server's process: %w", err)
		}
		if pooler {
			return fmt.Errorf("%w: there is a pooler before the database, which may lose prepared statements: "+
				"add %s=cache_describe to the URL", ErrMode, modeSetting)
		}
	}
	return checkTransactions(ctx, pool)
}

// checkTransactions refuses a pooler that pools statements.
func checkTransactions(ctx context.Context, pool *pgxpool.Pool) error {
	err := pgx.BeginFunc(ctx, pool, func(pgx.Tx) error { return nil })
	if p, ok := errors.AsType[*pgconn.PgError](err); ok && p.Code == "08P01" {
		return fmt.Errorf("%w (%s): set its pool_mode to transaction or session", ErrPoolMode, p.Message)
	}
	return err
}

// behindPooler reports whether a connection's backend differs from the one announced at login.
func behindPooler(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	var pid uint32
	err = conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid != conn.Conn().PgConn().PID(), err
}
