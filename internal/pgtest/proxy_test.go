package pgtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// briefly is longer than the closing of a connection takes to propagate.
const briefly = 300 * time.Millisecond

// A silenced connection drops the closing of its peer too, like a network that drops packets.
func TestSilentConnectionsHideTheirEnd(t *testing.T) {
	t.Parallel()
	db := New(t)
	super, err := pgx.Connect(t.Context(), db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer super.Close(context.Background())
	const gone = "select not exists (select from pg_stat_activity where pid = $1)"
	for name, end := range map[string]func(*testing.T, *Proxy, *pgx.Conn){
		"of the database": func(t *testing.T, p *Proxy, c *pgx.Conn) {
			p.Silence(Answers)
			if _, err := super.Exec(t.Context(), "select pg_terminate_backend($1, 60000)",
				c.PgConn().PID()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), briefly)
			defer cancel()
			if _, err := c.Exec(ctx, "select 1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the client was told: %v", err)
			}
			var ended bool
			if err := super.QueryRow(t.Context(), gone, c.PgConn().PID()).Scan(&ended); err != nil || !ended {
				t.Errorf("the database still has the connection, %v", err)
			}
		},
		"of the client": func(t *testing.T, p *Proxy, c *pgx.Conn) {
			p.Silence(Requests)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_ = c.Close(over)
			var ended bool
			for begun := time.Now(); time.Since(begun) < briefly; {
				if err := super.QueryRow(t.Context(), gone, c.PgConn().PID()).Scan(&ended); err != nil || ended {
					t.Fatalf("the database was told: %v", err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewProxy(t, db.AppDSN)
			c, err := pgx.Connect(t.Context(), p.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			end(t, p, c)
		})
	}
}
