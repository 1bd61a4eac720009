package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A network that drops packets ends a connection soon: keepalives detect it while waiting for an answer,
// unacknowledged data while sending.
func TestANetworkThatDropsPacketsEndsAConnection(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Second // silence is 10 s to 11 s; the system's defaults are minutes
	for name, when := range map[string]func(cut func(), query func() error) error{
		"waiting": func(cut func(), query func() error) error {
			time.AfterFunc(time.Second, cut)
			return query()
		},
		"sending": func(cut func(), query func() error) error {
			cut()
			return query()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			cable := pgtest.NewCable(t, db.AppDSN)
			pool, err := pg.Open(t.Context(), cable.DSN, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			start := time.Now()
			err = when(cable.Cut, func() error {
				_, err := conn.Exec(ctx, "select pg_sleep(120)")
				return err
			})
			if err == nil || ctx.Err() != nil {
				t.Errorf("the connection was not closed within %v: %v", soon, err)
			}
			t.Logf("closed after %v: %v", time.Since(start).Round(time.Second/10), err)
		})
	}
}
