package webhook_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// wanting looks up the subscribers of an event.
type wanting struct{ all *webhook.All }

func (w *wanting) Need(tx *webhook.Tx) { w.all = tx.All(1) }

func (w *wanting) Apply(*webhook.Tx) (any, error) {
	names, _ := w.all.Wanting("order.paid")
	return names, nil
}

// Cached plans from an empty table must stay good on a full table without statistics. Most endpoints are disabled, and
// sort before the active ones.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d := &fixture{TB: t, super: pgtest.Pool(t, db.SuperDSN)}
	exec := func(sql string) {
		t.Helper()
		if _, err := d.super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pg.Open(t.Context(), db.AllDSN, 1) // one connection, which caches its plans
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	pgtest.StopAutovacuum(t, d.super)
	exec("analyze")
	d.engines[0], d.reader = flow.NewEngine(pool, t.Name(), nil, nil), webhook.NewReader(pool)
	defer func() { _ = d.engines[0].Drain(context.Background()) }()

	const n = 20
	list := func(command func(i int) commit.Command[*webhook.Tx]) (commands []commit.Command[*webhook.Tx]) {
		for i := range n {
			commands = append(commands, command(i))
		}
		return commands
	}
	// Each call works on x<from>, x<from+1>, …
	kinds := func(from int) map[string]func() {
		name := func(i int) string { return fmt.Sprintf("x%06d", from+i) }
		change := func(command func(i int) commit.Command[*webhook.Tx]) func() {
			return func() { d.all(0, list(command)...) }
		}
		return map[string]func(){
			"1 create": change(func(i int) commit.Command[*webhook.Tx] {
				return create("new-"+name(i),
					"https://example.com/")
			}),
			"2 update": change(func(i int) commit.Command[*webhook.Tx] {
				return &webhook.UpdateCommand{Caller: caller, Name: name(i), URL: ptr("https://example.com/changed")}
			}),
			"3 wanting": func() { d.all(0, &wanting{}) }, // once: all in a batch share one read
			"4 delete": change(func(i int) commit.Command[*webhook.Tx] {
				return &webhook.DeleteCommand{Caller: caller, Name: name(i)}
			}),
			"5 get": func() {
				for i := range n {
					d.get(name(n + i))
				}
			},
			"6 list": func() {
				if _, _, err := d.reader.List(context.Background(), 1, n, ""); err != nil {
					t.Fatal(err)
				}
			},
		}
	}
	// A hundred endpoints for each tenant.
	fill := func(sql, tenant string, from, to int) {
		exec(fmt.Sprintf(`insert into notify_endpoints (tenant_id, name, endpoint_id, slot, url, types, description,
				state, disabled_for, disabled_at, secret_version, created_at, changed_at, principal, request_id)
			select %s, 'x' || to_char(i, 'fm000000'), 16777216, 1 + i %% 100, 'https://example.com/', '', '', %s, now(),
			now(), 'test', 'r'
			from generate_series(%d, %d) i`, tenant, sql, from, to))
	}
	const mine, others = "1", "2 + i / 100"
	exec("insert into commit_epochs default values")
	exec("insert into commit_batches (batch_id, recorded_at, commands, instance) " +
		"values (1024, '2026-01-01Z', 1, 'fill')")
	for round := range 12 { // until plans are cached
		exec("delete from notify_endpoints")
		fill("'active', null, null, 1", mine, round*100, round*100+2*n)
		all := kinds(round * 100)
		for _, kind := range slices.Sorted(maps.Keys(all)) {
			all[kind]()
		}
	}
	exec("delete from notify_endpoints")
	fill("'disabled', 'by_caller', now(), 1", others, 0, 99_899)
	fill("'active', null, null, 1", others, 99_900, 99_999)
	batches := func() (n int64) {
		if err := d.super.QueryRow(t.Context(), "select count(*) from commit_batches").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// measure returns the least blocks read per batch, because on a busy machine the commands of a call need several
	// batches. While a transaction is open in any database of the cluster, scans also visit the entries of rows deleted
	// since: measure then repeats for up to 20 s.
	measure := func(from int) map[string]int64 {
		got := map[string]int64{}
		most := func() int64 { return slices.Max(slices.Collect(maps.Values(got))) }
		for round, end := 0, time.Now().Add(20*time.Second); round < 3 || most() > 500 &&
			time.Now().Before(end); round++ {
			exec("delete from notify_endpoints where tenant_id = 1")
			at := from + 100*round
			fill("'active', null, null, 1", mine, at, at+2*n)
			all := kinds(at)
			// each kind also visits the dead rows that earlier kinds have left
			for _, kind := range slices.Sorted(maps.Keys(all)) {
				before, earlier := pgtest.Touched(t, "^notify_endpoints$", d.super, pool), batches()
				all[kind]()
				touched := pgtest.Touched(t, "^notify_endpoints$", d.super, pool) - before
				touched /= max(batches()-earlier, 1)
				if least, ok := got[kind]; !ok || touched < least {
					got[kind] = touched
				}
			}
		}
		return got
	}
	kinds(0)["3 wanting"]() // the first scan walks over index entries of deleted rows
	kept := measure(10_000)
	exec("analyze")
	if _, err := pool.Exec(t.Context(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	var table int64 // blocks: a bad plan reads them all
	if err := d.super.QueryRow(t.Context(), "select pg_relation_size('notify_endpoints') / 8192").
		Scan(&table); err != nil {
		t.Fatal(err)
	}
	for kind, good := range measure(500_000) {
		t.Logf("%-10s %5d blocks, %5d with statistics", kind, kept[kind], good)
		if kept[kind] > good+good/2+250 || good > table { // the first call also scans deleted rows
			t.Errorf("%s: %d blocks, %d with statistics, of %d", kind, kept[kind], good, table)
		}
	}
}
