package ids_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestLeaseSurvivesACrashOfTheDatabase kills Postgres right after the lease. The role has synchronous_commit
// off by default, but a mark must not be lost in a crash.
func TestLeaseSurvivesACrashOfTheDatabase(t *testing.T) {
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
	h.turn(29 * time.Second) // so that losing the renewal's mark would show
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
	if err := pgtest.Pool(t, d.SuperDSN).QueryRow(context.Background(),
		"select fence, high_water_at from ids_workers where worker = $1", made[0].Worker()).
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

// An operator cancels the wait for a missing standby. The lease is committed locally, but a promotion might
// lose it.
func TestLeaseNotReplicatedToTheStandbyIsNotUsed(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	super := pgtest.Pool(t, d.SuperDSN)
	standby := func(name string) {
		t.Helper()
		for _, sql := range []string{"alter system set synchronous_standby_names = '" + name + "'",
			"select pg_reload_conf()"} {
			if _, err := super.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	is := func(sql string) func() bool {
		return func() (yes bool) {
			if err := super.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
				t.Fatal(err)
			}
			return yes
		}
	}
	standby("missing")
	soon(t, "commits wait", func() bool { // another server process applies the setting with a delay
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := super.Exec(ctx, "comment on view audit.id_workers is 'tried'")
		return err != nil
	})
	soon(t, "the try is over", is("select count(pg_terminate_backend(pid)) = 0 from pg_stat_activity "+
		"where wait_event = 'SyncRep'"))
	b := &bench{t: t, db: d.DB, pool: pgtest.Pool(t, d.AllDSN)}
	g := b.generator(ids.Options{})
	done := make(chan error, 1)
	go func() {
		_, err := g.Next(context.Background(), 1)
		done <- err
	}()
	soon(t, "the lease waits, and no more",
		is("select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity "+
			"where wait_event = 'SyncRep'"))
	if err := <-done; !fault.Is(err, fault.DatabaseUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("%v", err)
	}
	standby("")
	if b.next(g, 1); !is("select count(*) = 2 from ids_workers where fence = 1")() {
		t.Error("the first lease was used")
	}
}
