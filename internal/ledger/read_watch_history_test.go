package ledger_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// on is a readWorld on a database that already has one.
func (w *readWorld) on(db *pgtest.DB) *readWorld {
	w.Helper()
	pool := pgtest.Pool(w.T, db.AllDSN)
	other := &readWorld{T: w.T, Reader: ledger.NewReader(pool), db: db, pool: pool, ctx: w.ctx, tenant: w.tenant}
	other.engine = other.newEngine()
	return other
}

func newReadWorldOn(t *testing.T, db *pgtest.DB) *readWorld {
	w := (&readWorld{T: t, ctx: t.Context(), tenant: 1}).on(db)
	w.setUp()
	return w
}

// reads follows until it has seen a number of entries.
func (w *watcher) reads(want int) {
	w.Helper()
	w.poll(fmt.Sprintf("%d entries from %q on", want, w.cursor), func() bool {
		if err := w.next(); err != nil {
			w.Fatal(err)
		}
		return w.seen >= want
	})
	if w.seen != want {
		w.Errorf("%d entries were seen, not %d", w.seen, want)
	}
}

// isRefused expects a cursor of an ended epoch to be refused.
func (w *readWorld) isRefused(cursor string) {
	w.Helper()
	_, next, err := w.EntriesAfter(w.ctx, 1, cursor, "", 100)
	if f := fault.Of(err); f == nil || f.Reason.Name != "CURSOR_EPOCH_ENDED" {
		w.Errorf("the cursor %q is accepted, the next is %q: %v", cursor, next, err)
	}
}

// spend consumes transaction ids.
func spend(t *testing.T, db *pgtest.DB, transactions int) {
	t.Helper()
	super := pgtest.Pool(t, db.SuperDSN)
	for range transactions {
		if _, err := super.Exec(context.Background(), "select pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchingContinuesInARestoredDatabase(t *testing.T) {
	t.Parallel()
	old := newReadWorld(t)
	old.accounts("CNY", "user:1")
	young := pgtest.NewDurable(t)
	spend(t, old.db, 3000)
	for i := range 5 {
		old.transfer(fmt.Sprint("before", i), "world", "user:1", "10")
	}
	follow := old.watch("0", "user:*", 100)
	follow.reads(5)

	w := old.on(young.Restore(t, old.db))
	w.isRefused(follow.cursor)
	now := w.watch("", "user:*", 100)
	_ = now.next()
	now.versions["user:1"] = 5
	late := w.watch("0", "user:*", 1)
	w.transfer("after0", "world", "user:1", "10")
	late.reads(6)
	for i := range 3 {
		w.transfer(fmt.Sprint("after", i+1), "world", "user:1", "10")
	}
	late.reads(9)
	now.reads(4)
	w.isRefused(follow.cursor)
	old.isRefused(late.cursor)
	fresh := w.watch("0", "user:*", 100)
	fresh.reads(9)

	// The old database and its watchers continue.
	old.transfer("elsewhere", "world", "user:1", "10")
	follow.reads(6)
}

func TestWatchingContinuesAfterAStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	primary := pgtest.NewDurable(t)
	old := newReadWorldOn(t, primary.DB)
	old.accounts("CNY", "user:1")
	old.transfer("before", "world", "user:1", "10")
	standby := primary.Standby(t)
	follow := old.watch("0", "user:*", 100)
	follow.reads(1)
	replicated := follow.cursor
	cut := pgtest.Pool(t, standby.SuperDSN)
	caught := func() (n int) {
		if err := cut.QueryRow(t.Context(), "select count(*) from ledger_transfers").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	old.poll("the standby follows", func() bool { return caught() == 1 })
	// Later commits do not reach the standby.
	for _, s := range []string{"alter system set primary_conninfo = ''", "select pg_reload_conf()"} {
		if _, err := cut.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	old.poll("the standby is cut off", func() (gone bool) {
		if err := pgtest.Pool(t, primary.SuperDSN).QueryRow(t.Context(),
			"select count(*) = 0 from pg_stat_replication").Scan(&gone); err != nil {
			t.Fatal(err)
		}
		return gone
	})
	for i := range 5 {
		old.transfer(fmt.Sprint("lost", i), "world", "user:1", "10")
	}
	follow.reads(6)

	standby.Promote(t)
	w := old.on(standby.DB)
	if n := caught(); n != 1 {
		t.Fatalf("the standby has %d transfers", n)
	}
	for i := range 12 { // more transfers, reusing the transaction ids of the lost ones
		w.transfer(fmt.Sprint("after", i), "world", "user:1", "10")
	}
	w.isRefused(follow.cursor)
	w.isRefused(replicated)
	again := w.watch("0", "user:*", 3)
	again.reads(13)
	w.transfer("last", "world", "user:1", "10")
	again.reads(14)
}
