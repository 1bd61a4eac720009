package pg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestTenantSets(t *testing.T) {
	t.Parallel()
	for want, tenants := range map[string][]int32{"{}": nil, "{[7,7]}": {7, 7},
		"{[-1,-1],[2,2],[10,10]}": {10, 2, -1, 2}} {
		if got := pg.TenantSet(tenants...); got != want {
			t.Errorf("%v: %s, not %s", tenants, got, want)
		}
	}
}

// The tenants of a context apply to its statements and transactions only, and cost no round trip.
func TestStatementsSeeTheTenantsOfTheirContext(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	if _, err := super.Exec(t.Context(), "insert into access_tenants (tenant_id, name) "+
		"values (1, 'a'), (2, 'b'), (3, 'c')"); err != nil {
		t.Fatal(err)
	}
	pool, trips := pgtest.CountingPool(t, db.AppDSN)
	const query = "select coalesce(string_agg(name, '' order by name), '') from access_tenants where $1"
	for range 3 { // on connections that were used for other tenants
		for _, c := range []struct {
			ctx  context.Context
			want string
		}{{t.Context(), ""}, {pg.ForTenants(t.Context(), 2), "b"}, {pg.ForTenants(t.Context(), 3, 1), "ac"},
			{pg.ForTenants(t.Context()), ""}, {pg.ForAllTenants(t.Context()), "abc"},
			{pg.ForTenants(pg.ForAllTenants(t.Context()), 1), "a"}} {
			var one, many string
			if err := (pg.Planned{DB: pool}).QueryRow(c.ctx, query, true).Scan(&one); err != nil {
				t.Fatal(err)
			}
			err := pgx.BeginTxFunc(c.ctx, pool, pg.Begin(c.ctx, pg.ReadCommitted), func(tx pgx.Tx) error {
				return pg.Planned{DB: tx}.QueryRow(c.ctx, query, true).Scan(&many)
			})
			if err != nil || one != c.want || many != c.want {
				t.Errorf("%q: a statement sees %q, a transaction %q, %v", c.want, one, many, err)
			}
		}
	}
	ctx, before := pg.ForTenants(t.Context(), 1), trips.Load()
	tag, err := pg.Planned{DB: pool}.Exec(ctx, "update access_api_keys set used_at = now() where $1", true)
	if err != nil || tag.String() != "UPDATE 0" || trips.Load() != before+1 {
		t.Errorf("%v after %d round trips, %v", tag, trips.Load()-before, err)
	}
	if _, err = (pg.Planned{DB: pool}).Exec(ctx, "insert into access_tenants (tenant_id, name) values ($1, 'd')",
		4); err == nil {
		t.Error("a row of another tenant was inserted")
	}
}

// A result returns its connection to the pool, however the result ends.
func TestResultsGiveTheirConnectionBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.New(t).AppDSN)
	ctx, d := pg.ForAllTenants(t.Context()), pg.Planned{DB: pool}
	for _, query := range []string{"select generate_series(1, $1::integer)", "select 1 / ($1::integer - 2)",
		"selec $1"} {
		rows, err := d.Query(ctx, query, 2)
		if err == nil {
			rows.Next()
			rows.Close()
			rows.Close()
		}
		var n int
		err = d.QueryRow(ctx, query, 2).Scan(&n)
		_, second := d.Exec(ctx, query, 2)
		if (err == nil) != (n == 1) || (err == nil) != (second == nil) {
			t.Errorf("%s: %d, %v, %v", query, n, err, second)
		}
	}
	var n int
	if err := d.QueryRow(ctx, "select 1 where $1", false).Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("a result without rows: %v", err)
	}
	var wrong bool
	if err := d.QueryRow(ctx, "select 'x' where $1", true).Scan(&wrong); err == nil {
		t.Error("text was read as a truth value")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.QueryRow(ended, "select 1 where $1", true).Scan(&n); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that has ended: %v", err)
	}
	if used := pool.Stat().AcquiredConns(); used != 0 {
		t.Errorf("%d connections were not given back", used)
	}
}
