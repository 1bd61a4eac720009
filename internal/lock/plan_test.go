package lock_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A connection that planned its statements on empty tables still uses the indexes once the tables are full.
func TestPlansMadeOnEmptyTablesUseIndexesOnFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // of 100,000 locks
	super := pgtest.Pool(t, db.SuperDSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.StopAutovacuum(t, super)
	exec("analyze")
	open := func() *pgxpool.Pool {
		pool, err := pg.Open(context.Background(), db.AllDSN, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	pool, reads := open(), open() // the engine discards stale plans; the read pool does not
	p := &process{t: t, pool: pool, engine: flow.NewEngine(pool, "plans", nil, nil), reader: lock.NewReader(reads),
		closing: make(chan struct{})}
	defer p.engine.Drain(context.Background()) //nolint:errcheck // no batch is left
	p.waiting = lock.NewWaitQueue(lock.WaitQueueConfig{Do: p.do, Reads: reads, Instance: "plans", Closing: p.closing,
		Metrics: lock.NewMetrics(nil)})
	everything := func(name string) {
		t.Helper()
		l := p.must(p.acquire(name, "one", time.Minute))
		if err := p.renew(name, l.Fence); err != nil {
			t.Fatal(err)
		}
		lock.WaitOnce(t, p.waiting, lock.Key{Tenant: 1, Name: name}, caller(1))
		if _, err := p.acquire(name, "two", time.Minute); !fault.Is(err, lock.Held) {
			t.Fatal(err)
		}
		if _, err := p.reader.Get(context.Background(), lock.Key{Tenant: 1, Name: name}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.reader.List(context.Background(), 1, name, 2, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := p.release(name, l.Fence); err != nil {
			t.Fatal(err)
		}
	}
	for range 12 {
		everything("warm")
		if _, err := lock.Clean(context.Background(), reads, 0); err != nil {
			t.Fatal(err)
		}
	}
	exec(`insert into lock_locks (tenant_id, name, state, principal, holder, fence, holds, lease_ms, acquired_at,
		expires_at, request_id)
		select 1, 'lock' || i, 'held', 'p', 'h', i, 1, 3600000, now(), now() + interval '1 h', 'r'
		from generate_series(1, 100000) i`)
	exec(`insert into lock_waiters (tenant_id, name, ticket, principal, holder, instance, queued_at, alive_until,
		request_id)
		select 1, 'lock' || i / 10 + 1, 1000000 + i, 'p', 'h', 'i', now(), now() + interval '1 h', 'r'
		from generate_series(1, 20000) i`)
	before := pgtest.Touched(t, "^lock_", super, pool, reads)
	for i := range 10 { // reads get no time to replan
		name := fmt.Sprint("lock", 50_000+i)
		lock.PollOnce(t, p.waiting, lock.Key{Tenant: 1, Name: name})
		if _, err := p.reader.Get(context.Background(), lock.Key{Tenant: 1, Name: name}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.reader.List(context.Background(), 1, name, 2, ""); err != nil {
			t.Fatal(err)
		}
	}
	if n := (pgtest.Touched(t, "^lock_", super, pool, reads) - before) / 10; n > 60 {
		t.Errorf("reads: %d blocks a round", n)
	}
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		before := pgtest.Touched(t, "^lock_", super, pool, reads)
		everything(fmt.Sprint("new", i))
		n := pgtest.Touched(t, "^lock_", super, pool, reads) - before
		if n < 150 {
			t.Logf("%d blocks in round %d", n, i)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the plans made on empty tables are still in use: %d blocks", n)
		}
	}
	ran(t, pool, reads)
}

// ran checks that the connections have prepared every query of the package.
func ran(t *testing.T, pools ...*pgxpool.Pool) {
	t.Helper()
	prepared := []string{"Hint", "CleanSettings", "CleanEnter", "BatchEnter", // touch no table
		"LockGet", "LockPage", "QueueHeads", "LockStalePage", "WaiterCount"} // planned on every execution
	for _, pool := range pools {
		rows, _ := pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
			from pg_prepared_statements`)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, names...)
	}
	header := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	for _, file := range []string{"lock.sql", "read.sql"} {
		text, err := os.ReadFile(filepath.Join("../../db/queries/lock", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range header.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(prepared, m[1]) {
				t.Errorf("%s was not run: the test does not cover it", m[1])
			}
		}
	}
}
