package crash_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func withStandby(w *world) {
	w.db = pgtest.NewDurable(w.t)
	w.next = w.db.Standby(w.t)
}

func withSynchronousStandby(w *world) {
	withStandby(w)
	w.db.System(w.t, "synchronous_standby_names", "*")
	w.until("synchronous", func() bool {
		return query[bool](w, w.db, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'")
	})
	primary := w.db
	w.t.Cleanup(func() { // the final checks and the drop run without a standby
		primary.Restart(w.t)
		primary.System(w.t, "synchronous_standby_names", "")
	})
}

func withNewCluster(w *world) {
	shared(w)
	w.next = pgtest.NewDurable(w.t)
}

// promoteSynchronous disconnects the standby, so that COMMITs wait for it, and cancels their waits: their
// writes are visible and will be lost. Then it promotes the standby. No acknowledged result is lost.
func promoteSynchronous(w *world) {
	w.progress(30)
	cutOff(w)
	for i := range 10 {
		w.until("waiting", func() bool {
			return query[bool](w, w.db, "select count(*) > 0 from pg_stat_activity where wait_event = 'SyncRep'")
		})
		end := []string{"pg_cancel_backend", "pg_terminate_backend"}[i%2]
		query[int64](w, w.db, "select count("+end+"(pid)) from pg_stat_activity where wait_event = 'SyncRep'")
	}
	w.move(promoted)
}

// promoteAsynchronous promotes a standby that lacks the last answers. It has everything from before the
// disconnect.
func promoteAsynchronous(w *world) {
	w.progress(30)
	w.era.Store(atRisk)
	end := query[string](w, w.db, "select pg_current_wal_lsn()::text")
	w.until("there", func() bool { return query[bool](w, w.next, "select pg_last_wal_receive_lsn() >= '"+end+"'") })
	cutOff(w)
	w.progress(30)
	w.move(promoted)
}

// restore dumps the database and restores it in another cluster while the servers run, then switches the
// servers over.
func restore(w *world) {
	w.progress(30)
	w.era.Store(atRisk)
	restored := w.next.Restore(w.t, w.db.DB)
	w.progress(30)
	w.move(func(w *world) *pgtest.Durable { return &pgtest.Durable{DB: restored} })
}

// cutOff stops the replication.
func cutOff(w *world) {
	w.next.System(w.t, "primary_conninfo", "")
	w.until("cut off", func() bool { return query[bool](w, w.db, "select count(*) = 0 from pg_stat_replication") })
}

func promoted(w *world) *pgtest.Durable {
	w.db.Server.Kill()
	w.next.Promote(w.t)
	return w.next
}

// move redirects both servers to another copy of the database. The first server has a COMMIT in flight and
// finds another server's batch under its number. Cursors of the old copy are refused with the reason; new ones
// work.
func (w *world) move(to func(*world) *pgtest.Durable) {
	cursor := w.cursor()
	var doubtful int64
	if w.loses {
		<-w.lines[0].cutNext(atAnswer, "caller-0-", func() { w.lines[0].SetDown(true) })
		doubtful = query[int64](w, w.db,
			"select max(batch_id) from commit_batches where instance like '%/"+w.servers[0].pid()+"'")
	}
	for _, l := range w.lines {
		l.SetDown(true)
	}
	// wait for answers in flight
	for last := int32(-1); last != w.decided.Load(); <-time.After(500 * time.Millisecond) {
		last = w.decided.Load()
	}
	w.db = to(w)
	w.pairsAreWhole()
	for _, l := range w.lines {
		l.Lead(w.t, w.db.AppDSN)
	}
	w.era.Store(afterwards)
	if w.loses { // a third server overtakes both: its batch gets the number, and its next block too
		query[int](w, w.db, "insert into commit_epochs default values returning epoch")
		query[int64](w, w.db, `insert into commit_batches (batch_id, recorded_at, commands, instance, nonce)
			values ($1, clock_timestamp(), 1, 'third', 1) returning batch_id`, doubtful)
		query[int64](w, w.db, "select setval('commit_batch_seq', $1, false)", doubtful-1)
	}
	w.lines[1].SetDown(false)
	w.progress(5)
	w.lines[0].SetDown(false)
	w.progress(40)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if message, err := w.watch(ctx, cursor); client.ReasonOf(err) != client.ReasonCursorEpochEnded {
		w.t.Errorf("old cursor: %v, %v", message, err)
	}
	if message, err := w.watch(ctx, w.cursor()); err != nil {
		w.t.Errorf("new cursor: %v, %v", message, err)
	}
}

// pairsAreWhole looks, before any retry, for transfers without their sibling, token or message.
func (w *world) pairsAreWhole() {
	const pair = "biz_no ~ '^caller-.*[02468]$'"
	if n := query[string](w, w.db, `select format('%s %s %s %s', count(*) filter (where `+pair+
		`), count(*) filter (where biz_no like 'second-%'),
		(select count(*) from token_submit_tokens where state = 'spent'),
		(select count(*) from inbox_messages where state = 'succeeded'))
		from ledger_transfers`); len(slices.Compact(strings.Fields(n))) != 1 {
		w.t.Errorf("pairs have first, second, token and message %s times", n)
	}
}

// query runs a query as superuser.
func query[T any](w *world, db *pgtest.Durable, sql string, args ...any) (answer T) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.SuperDSN)
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx))
		err = conn.QueryRow(ctx, sql, args...).Scan(&answer)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return answer
}
