package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestConnectionsOfReadsHaveATimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for want, open := range map[string]func(context.Context, string, int32) (*pgxpool.Pool, error){"65s": pg.OpenReads,
		"0": pg.Open} {
		pool, err := open(t.Context(), db.AppDSN, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		got := ""
		if err := pool.QueryRow(t.Context(), "show statement_timeout").Scan(&got); err != nil || got != want {
			t.Errorf("%q, not %q: %v", got, want, err)
		}
	}
}

func TestPostgresProbesItsConnections(t *testing.T) {
	t.Parallel()
	server, err := pgtest.StartServer(t.Context(), localpg.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pgtest.StopServer(server); err != nil {
			t.Error(err)
		}
	})
	var idle, interval, count, silence string
	err = pgtest.Pool(t, server.TCPDSN("postgres")).QueryRow(t.Context(), `select
		current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),
		current_setting('tcp_keepalives_count'),
		current_setting('tcp_user_timeout')`).Scan(&idle, &interval, &count, &silence)
	if err != nil || idle != "5" || interval != "2" || count != "3" || silence != "10000" {
		t.Errorf("keepalives after %s s, every %s s, %s times, user timeout %s, %v",
			idle, interval, count, silence, err)
	}
}
