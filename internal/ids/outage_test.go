package ids_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestLeaseOutlivesThePowerOfTheDatabase kills Postgres at once after the lease, with a role that does not wait
// for the disk otherwise: a mark that could be lost would be none.
func TestLeaseOutlivesThePowerOfTheDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	config, err := pgxpool.ParseConfig(d.AppDSN)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var h hands
	o := h.options()
	o.Pool, o.Holder = pool, "before"
	g := ids.New(o)
	b := &bench{t: t, db: d.DB, pool: pool}
	b.next(g, 1)
	h.turn(29 * time.Second) // so that a mark that was lost with the renewal would be felt
	if err := g.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Server.Kill()
	made := b.next(g, 1000) // without the database
	h.turn(29 * time.Second)
	made = append(made, b.next(g, 1000)...)
	h.turn(2 * time.Second)
	if _, err := g.Next(t.Context(), 1); !fault.Is(err, ids.WorkerLost) {
		t.Errorf("past the mark: %v", err)
	}
	d.Restart(t)
	var fence int64
	var mark time.Time
	if err := pgtest.Pool(t, d.SuperDSN).QueryRow(context.Background(), "select fence, high_water_at from ids_workers where worker = $1", made[0].Worker()).
		Scan(&fence, &mark); err != nil {
		t.Fatal(err)
	}
	if last := made[len(made)-1].Time(); fence != 1 || !last.Before(mark) {
		t.Errorf("after the restart fence %d and mark %v, and ids were made up to %v", fence, mark, last)
	}
	soon(t, "ids again", func() bool {
		more, err := g.Next(t.Context(), 10)
		made = append(made, more...)
		return err == nil
	})
	growing(t, made)
}
