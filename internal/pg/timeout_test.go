package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

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
