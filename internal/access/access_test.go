package access_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A statement that waited for a concurrent insert of the same name does not see the inserted row.
func TestConcurrentCreationsOfATenantGetTheSameOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pool := pgtest.Pool(t, db.AdminDSN)
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var first int32
	if err := tx.QueryRow(ctx, "insert into access_tenants (tenant_id, name) values (1000, 'both') "+
		"returning tenant_id").Scan(&first); err != nil {
		t.Fatal(err)
	}
	type made struct {
		id  int32
		err error
	}
	second := make(chan made, 1)
	go func() {
		id, err := access.EnsureTenant(ctx, pool, "both")
		second <- made{id, err}
	}()
	for waits := false; !waits; { // for the first insert
		if err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where datname = current_database() "+
			"and wait_event_type = 'Lock')").Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if m := <-second; m.err != nil || m.id != first {
		t.Errorf("%d, %v, not %d", m.id, m.err, first)
	}
}
