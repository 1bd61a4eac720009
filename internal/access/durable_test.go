package access_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// With a database whose default is less durable, changes of administration are as durable as batches; if a standby does
// not confirm one, its caller is told.
func TestChangesAreAsDurableAsBatches(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	super := pgtest.Pool(t, d.SuperDSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tenant, _, err := access.Administer(super).CreateTenant(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	exec("alter system set synchronous_commit = local")
	exec("alter system set synchronous_standby_names = 'missing'")
	exec("select pg_reload_conf()")
	pool := pgtest.Pool(t, d.SuperDSN)
	done := make(chan error, 1)
	go func() {
		_, err := access.Administer(pool).CreateKey(context.Background(), tenant, access.NewKey{Principal: "late",
			Rights: access.Rights{Role: access.Read}})
		done <- err
	}()
	waiting := 0
	for begin := time.Now(); waiting == 0 && time.Since(begin) < 20*time.Second; {
		if err := super.QueryRow(t.Context(), `select count(pg_cancel_backend(pid)) from pg_stat_activity
			where wait_event = 'SyncRep'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; waiting == 0 || !fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("%d commits waited for the standby; the change ended with %v", waiting, err)
	}
	exec("alter system reset synchronous_standby_names")
	exec("select pg_reload_conf()")
	keys := 0
	if err := super.QueryRow(t.Context(), "select count(*) from access_api_keys").Scan(&keys); err != nil || keys != 1 {
		t.Errorf("%d keys, %v", keys, err)
	}
}
