package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shiftedClock shadows Postgres' clock functions in sessions that begin afterwards.
const shiftedClock = `
	create table shifted_clock (ahead interval not null);
	insert into shifted_clock values ('0');
	grant select on shifted_clock to public;
	create function clock_timestamp() returns timestamptz language sql volatile parallel restricted
		as 'select pg_catalog.clock_timestamp() + ahead from public.shifted_clock';
	create function statement_timestamp() returns timestamptz language sql stable parallel restricted
		as 'select pg_catalog.statement_timestamp() + ahead from public.shifted_clock';
	create function now() returns timestamptz language sql stable parallel restricted
		as 'select pg_catalog.now() + ahead from public.shifted_clock';`

// ShiftedClock is the database's clock as seen by statements.
type ShiftedClock struct{ db *DB }

// ShiftClock must be called before the servers connect. libfaketime is no alternative: with a clock ahead,
// Postgres' timers do not fire, and lock waits never end.
func ShiftClock(t testing.TB, db *DB) ShiftedClock {
	t.Helper()
	c := ShiftedClock{db}
	c.execute(t, shiftedClock)
	c.execute(t, "alter database "+pgx.Identifier{db.Name}.Sanitize()+" set search_path = public, pg_catalog")
	return c
}

// Set sets the clock ahead of the machine's; 0 resets it.
func (c ShiftedClock) Set(t testing.TB, ahead time.Duration) {
	t.Helper()
	c.execute(t, "update shifted_clock set ahead = $1", ahead)
}

func (c ShiftedClock) execute(t testing.TB, sql string, args ...any) {
	t.Helper()
	within(t, "the clock", func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, c.db.SuperDSN)
		if err == nil {
			defer conn.Close(ctx)
			_, err = conn.Exec(ctx, sql, args...)
		}
		return err
	})
}
