package commit

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The second batch takes over rows of the first, which fails. The error of the second must not describe the first's
// uncommitted state.
func TestErrorsNeverDescribeUncommittedState(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "guarded"}[guarded]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			e := w.engine(patient)
			pass, open := w.gate()
			first := e.start(within(t, 20*time.Second), submission(gated(pass, add("c0", 5).labelled("poison"))))
			w.waiting(1)
			applied := make(chan int64, 99)
			g := &toyGuarded{toyAdd: *add("c0", 1), tries: "c1"}
			g.onApply = func(*toyTx) error {
				n := g.toyAdd.c.n - 1
				applied <- n
				if n != 1_000_000 { // a condition on the balance
					return toyStale.New("the counter has %d, not 1000000", n)
				}
				return nil
			}
			var c Command[*toyTx] = g
			if !guarded {
				c = &g.toyAdd
			}
			second := e.start(within(t, 20*time.Second), submission(c))
			<-applied
			open()
			if r := <-first; r.err == nil {
				t.Error("the first did not fail")
			}
			r := <-second
			if r.err != nil {
				t.Errorf("the counter always was 1000000, but the second got: %v", r.err)
			}
		})
	}
}

// A standby without the last WAL was promoted, or a backup restored, while a server keeps its block of numbers.
func TestDuplicateBatchNumbersFailNoCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e1 := w.engine(func(c *Config[*toyTx]) { c.Instance = "one" })
	failed := 0
	for range 30 { // uses numbers 1 to 30 of its block of 1,000
		if _, err := e1.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
			t.Fatal(err)
		}
	}
	w.exec("select setval('commit_batch_seq', 1, false)") // the database lost the fetch of the block
	e2 := w.engine(func(c *Config[*toyTx]) { c.Instance = "two" })
	for range 60 {
		if _, err := e2.Do(within(t, 10*time.Second), submission(add("c1", 1))); err != nil {
			if failed == 0 {
				t.Logf("first error: %v", err)
			}
			failed++
		}
	}
	if failed > 0 {
		t.Errorf("%d of 60 healthy commands failed", failed)
	}
}

// The database loses batches whose ids callers already have. Later batches must not reuse these ids.
func TestNumbersOfLostBatchesAreNotGivenOutAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	add30 := func(instance string) {
		e := w.engine(func(c *Config[*toyTx]) { c.Instance = instance })
		for range 30 {
			if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
				t.Fatal(err)
			}
		}
	}
	add30("one")
	last := w.int("select max(batch_id) from commit_batches")
	w.exec("alter table commit_batches disable trigger all")
	w.exec("delete from commit_batches where instance = 'one'")
	w.exec("select setval('commit_batch_seq', 1, false)")
	w.exec("alter table commit_epochs disable trigger commit_epochs_append_only")
	w.exec("update commit_epochs set history = 'the cluster before'")
	add30("two")
	if first := w.int("select min(batch_id) from commit_batches where instance = 'two'"); first < last+1<<33 {
		t.Errorf("after lost batches up to %d, number %d was given out: others up to it may be lost", last, first)
	}
	if n := w.int("select count(*) from commit_epochs where epoch = commit_epoch()"); n != 1 {
		t.Errorf("the present epoch is recorded %d times", n)
	}
}

// The outcome of a COMMIT is unknown. Meanwhile a standby was promoted, and another server used the same batch number.
func TestRowOfAnotherServerUnderOurNumberDoesNotSettleOurCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := pgtest.NewProxy(t, w.dsn)
	e1 := w.engine(w.through(p))
	p.Tap(pgtest.Requests, func(_ int, data []byte) (pass int, cut bool) {
		if p.IsDown() || !bytes.Contains(data, []byte("through-the-proxy")) {
			return len(data), false
		}
		p.SetDown(true) // the old primary fails while COMMIT is in transit
		return 0, true
	})
	a := e1.start(within(t, 30*time.Second), submission(add("c0", 10).labelled("mine")))
	eventually(t, "the connection is cut", p.IsDown)
	// The new primary lacks the record of the sequence.
	w.exec("select setval('commit_batch_seq', 1, false)")
	e2 := w.engine(func(c *Config[*toyTx]) { c.Instance = "two" })
	if _, err := e2.Do(within(t, 10*time.Second), submission(add("c1", 1).labelled("other"))); err != nil {
		t.Fatal(err)
	}
	p.Tap(pgtest.Requests, nil)
	p.SetDown(false)
	r := <-a
	n := w.int("select count(*) from toy_log where label = 'mine'")
	if r.err != nil || n != 1 || w.value("c0") != 1_000_010 {
		t.Errorf("answer %+v, %d effects, the counter is %d", r, n, w.value("c0"))
	}
}

// standby makes COMMITs wait for a synchronous standby that does not exist. An empty name ends that.
func (w *world) standby(name string) {
	w.t.Helper()
	w.exec("alter system set synchronous_standby_names = '" + name + "'")
	w.exec("select pg_reload_conf()")
	eventually(w.t, "the setting is effective", func() bool {
		var n string
		_ = w.super.QueryRow(context.Background(), "show synchronous_standby_names").Scan(&n)
		return n == name
	})
	if name == "" {
		return
	}
	eventually(w.t, "COMMITs wait for the standby", func() bool { // the checkpointer enables it with a delay
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := w.super.Exec(ctx, "set synchronous_commit = on; comment on table toy_counters is 'tried'")
		return err != nil
	})
	eventually(w.t, "the test commit has ended", func() bool {
		w.exec("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == 0
	})
}

// waitsForStandby polls until a COMMIT waits for the standby, and fails if the call is answered.
func (w *world) waitsForStandby(call <-chan answer) {
	w.t.Helper()
	eventually(w.t, "a COMMIT waits for the standby", func() bool {
		unanswered(w.t, call)
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query = 'commit'") > 0
	})
}

// The database's default is synchronous_commit = local. Void rows and probes raise it like batches. Otherwise a COMMIT
// that is interrupted while it waits for the standby would be acknowledged without the standby.
func TestVoidRowsWaitForTheStandbyAsBatchesDo(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	w := worldOn(t, d.DB, 2)
	w.exec("alter database " + d.Name + " set synchronous_commit = local")
	e := w.engine()
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	w.standby("missing")
	defer w.standby("")
	b := e.start(within(t, 60*time.Second), submission(add("c1", 100)))
	eventually(t, "a COMMIT waits for the standby", func() bool {
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == 1
	})
	unanswered(t, b)
	w.exec("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
	eventually(t, "a second row waits for the standby", func() bool {
		select {
		case r := <-b:
			t.Fatalf("acknowledged without the standby: %+v", r)
		default:
		}
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query = 'commit'") == 1
	})
	unanswered(t, b)
	w.standby("")
	if r := <-b; r.err != nil {
		t.Errorf("after the standby is disabled: %+v", r)
	}
}

// A refusal locks rows, so its COMMIT writes WAL. Nothing is lost if this WAL is not flushed, so the COMMIT does not
// wait for the disk, and its duration is not observed.
func TestRefusalsDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	d.RestartWith(t, map[string]string{"wal_writer_delay": "10000", "autovacuum": "off"})
	w := worldOn(t, d.DB, 1)
	e := w.engine()
	unflushed := func(label string, n int64, want string) (times int) {
		for range 10 {
			if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", n))); reason(err) != want {
				t.Fatalf("%s: %v, want %s", label, err, want)
			}
			times += int(w.int("select (pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn())::integer"))
		}
		return times
	}
	if n := unflushed("a change", 1, "ok"); n > 2 {
		t.Errorf("%d of 10 changes were answered before they were on the disk", n)
	}
	e.pace.average.Store(int64(time.Second))
	if n := unflushed("a refusal", -1<<40, "TOY_EMPTY"); n < 8 {
		t.Errorf("%d of 10 refusals were answered before the WAL was flushed", n)
	}
	if got := e.pace.commit(); got != time.Second {
		t.Errorf("refusals changed the duration of a COMMIT to %v", got)
	}
}

// With a synchronous standby the COMMIT of a refusal waits for the standby, so its duration is observed.
func TestRefusalsThatWaitForAStandbyAreMeasured(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	d.Standby(t)
	w := worldOn(t, d.DB, 1)
	e := w.engine()
	w.exec("alter system set synchronous_standby_names = '*'")
	w.exec("select pg_reload_conf()")
	eventually(t, "the standby is synchronous", func() bool {
		return w.int("select count(*) from pg_stat_replication where sync_state = 'sync'") == 1
	})
	defer w.standby("")
	e.pace.average.Store(int64(time.Second))
	if _, err := e.Do(within(t, 30*time.Second), submission(add("c0", -1<<40))); reason(err) != "TOY_EMPTY" {
		t.Fatal(err)
	}
	if e.pace.commit() == time.Second {
		t.Error("its COMMIT was not measured")
	}
}

// Batches set their isolation level themselves, also in transactions that follow DISCARD PLANS.
func TestDefaultIsolationOfTheDatabaseDoesNotMatter(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			var name string
			if err := w.super.QueryRow(context.Background(), "select current_database()").Scan(&name); err != nil {
				t.Fatal(err)
			}
			w.exec("alter database " + name + " set default_transaction_isolation = '" + level + "'")
			e := w.engine()
			failed := 0
			for i := range 300 {
				if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
					if failed == 0 {
						t.Logf("call %d: %v", i, err)
					}
					failed++
				}
			}
			if failed > 0 {
				t.Errorf("%d of 300 healthy commands failed", failed)
			}
		})
	}
}

// One row of one tenant is corrupt (XX001, as for a page with a wrong checksum). Only the commands that touch it fail.
func TestCorruptRowFailsItsCommandsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 40)
	w.exec(`create function rot() returns trigger language plpgsql as $$ begin raise exception 'invalid page in block 7'
		using errcode = 'XX001'; end $$;
		create trigger rot before insert on toy_log for each row when (new.label = 'rotten') execute function rot();`)
	e := w.engine()
	for range 5 {
		submissions := []Submission[*toyTx]{submission(add("c0", 1).labelled("rotten"))}
		for i := range 20 {
			submissions = append(submissions, submission(add(fmt.Sprint("c", i+1), 1)))
		}
		for i, r := range e.DoAll(within(t, 10*time.Second), submissions) {
			if want := map[bool]string{true: "INTERNAL", false: "ok"}[i == 0]; reason(r.Err) != want {
				t.Errorf("%d: %v, want %s", i, r.Err, want)
			}
		}
		if err := e.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
	}
}

// The database's default is synchronous_commit = off. The fetch of a block of numbers raises it too.
func TestBatchNumbersAreNotReusedAfterACrash(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	w := worldOn(t, d.DB, 2)
	w.exec("alter database " + d.Name + " set synchronous_commit = off")
	e := w.engine()
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	// Fetch 40 blocks: every 33rd nextval writes WAL.
	var last int64
	for range 40 {
		ids := batchIDs{}
		c, err := e.pool.Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		id, err := ids.next(c.Conn())
		c.Release()
		if err != nil {
			t.Fatal(err)
		}
		last = id
	}
	d.Server.Kill()
	d.Restart(t)
	eventually(t, "Postgres answers", func() bool { return w.super.Ping(context.Background()) == nil })
	next := w.int("select commit_base() + nextval('commit_batch_seq')")
	if next <= last {
		t.Errorf("numbers from %d to %d are handed out again", next, last+batchBlock-1)
	}
}

// On two servers, each batch writes one row and has a command that is refused because of the other row. If the written
// rows were locked before the confirmed ones, the two batches would lock in opposite order.
func TestConfirmLocksAllRowsInTheGlobalOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	var name string
	if err := w.super.QueryRow(context.Background(), "select current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	w.exec("alter database " + name + " set deadlock_timeout = '20ms'")
	w.exec(`create function slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(0.05); return null;
		end $$;
		create trigger slowly after update on toy_counters for each statement execute function slowly();`)
	e1, e2 := w.engine(patient), w.engine(patient)
	for i := range 15 {
		e1.backoff, e2.backoff = backoff{}, backoff{}
		pass, open := w.gate()
		both := func(e *toyEngine, writes, refused string) <-chan []Result {
			done := make(chan []Result, 1)
			c := gated(pass, add(writes, 1))
			go func() {
				done <- e.DoAll(within(t, 20*time.Second),
					[]Submission[*toyTx]{submission(add(refused, -9_000_000)), submission(c)})
			}()
			return done
		}
		a, b := both(e1, "c0", "c1"), both(e2, "c1", "c0")
		w.waiting(2)
		open()
		for _, rs := range [][]Result{<-a, <-b} {
			if reason(rs[0].Err) != "TOY_EMPTY" || rs[1].Err != nil {
				t.Errorf("%d: %+v", i, rs)
			}
		}
	}
	var n int64
	eventually(t, "the statistics are reported", func() bool {
		n = w.int("select deadlocks from pg_stat_database where datname = current_database()")
		return w.int("select xact_commit from pg_stat_database where datname = current_database()") > 30
	})
	if counted := e1.metric(t, "deadlocks_total") + e2.metric(t, "deadlocks_total"); n > 0 || counted > 0 {
		t.Errorf("%d deadlocks between batches, of which %v were counted", n, counted)
	}
}

// A proxy acknowledges packets that the network behind it drops. While a batch hangs, the server is not ready. Then it
// closes the connection, resolves the outcome of the COMMIT, and continues.
func TestSilentConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := pgtest.NewProxy(t, w.dsn)
	e := w.engine(w.through(p))
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	p.Silence(pgtest.Requests, pgtest.Answers)
	begun := time.Now()
	hanging := e.start(within(t, 60*time.Second), submission(add("c0", 10)))
	eventually(t, "the engine is not ready", func() bool { return e.Ready() != nil })
	if took := time.Since(begun); took < 4*time.Second || took > 8*time.Second { // a probe may have begun before
		t.Errorf("it was not ready after %v", took)
	}
	if r := <-hanging; r.err != nil || w.value("c0") != 1_000_011 {
		t.Errorf("%+v, the counter is %d", r, w.value("c0"))
	}
	if took := time.Since(begun); took > 2*roundTripTimeout {
		t.Errorf("it took %v", took)
	}
	eventually(t, "the engine is ready again", func() bool { return e.Ready() == nil })
}

// The last entry of a row was recorded while the clock was ahead. The batch is recorded no earlier, but the lives of
// other rows and keys do not depend on that time.
func TestRowFromTheFutureExpiresNothingEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine()
	if _, err := e.Do(within(t, 10*time.Second), keyed("k", add("c1", 1))); err != nil {
		t.Fatal(err)
	}
	if lead := e.ClockLead(); lead != 0 {
		t.Errorf("rows are %v ahead of the clock", lead)
	}
	w.exec("update toy_counters set last_at = now() + interval '2 h' where id = 'c0'")
	rs := e.DoAll(within(t, 10*time.Second),
		[]Submission[*toyTx]{submission(add("c0", 1)), keyed("k", add("c1", 1)), keyed("l", add("c1", 1))})
	if rs[0].Err != nil || !rs[1].Outcome.Replayed || rs[2].Err != nil {
		t.Errorf("%+v", rs)
	}
	if n := w.int("select count(*) from commit_keys where created_at > now() " +
		"or expires_at > now() + interval '61 min'"); n != 0 {
		t.Errorf("the lives of %d keys begin at the row's time", n)
	}
	if lead := e.ClockLead(); lead < 119*time.Minute {
		t.Errorf("rows are %v ahead of the clock", lead)
	}
}

// A COMMIT that waits for the standby is cancelled: its row is visible here, but perhaps not on the standby. A retry on
// another server and a repeat under the resource's own name wait for the standby too.
func TestReplayWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	w := worldOn(t, d.DB, 2)
	first, other := w.engine(), w.engine()
	for _, e := range []*toyEngine{first, other} {
		if _, err := e.Do(within(t, 10*time.Second), submission(add("c1", 1))); err != nil {
			t.Fatal(err)
		}
	}
	w.standby("missing")
	defer w.standby("")
	// A command that locks no row writes nothing when it is repeated.
	named := func() *toyAdd { return &toyAdd{tenant: 1, name: "x"} }
	call := func() Submission[*toyTx] { return keyed("k", named()) }
	a := first.start(within(t, 60*time.Second), call())
	w.waitsForStandby(a)
	w.exec("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
	if r := <-a; !fault.Is(r.err, fault.OutcomeUnknown) {
		t.Errorf("cancelled: %+v", r)
	}
	if w.int("select count(*) from toy_names") != 1 {
		t.Fatal("the row is not visible")
	}
	replay := other.start(within(t, 60*time.Second), call())
	w.waitsForStandby(replay)
	repeat := other.start(within(t, 60*time.Second), submission(named()))
	eventually(t, "both wait for the standby", func() bool {
		unanswered(t, replay)
		unanswered(t, repeat)
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query = 'commit'") == 2
	})
	w.standby("")
	if r := <-replay; r.err != nil || !r.out.Replayed {
		t.Errorf("retry: %+v", r)
	}
	if r := <-repeat; r.err != nil || !r.out.Existed {
		t.Errorf("repeat: %+v", r)
	}
}

// The lock table is full. One command may be the cause, so other commands must not fail.
func TestCommandThatNeedsTooManyLocksFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.exec(`create function full_table() returns trigger language plpgsql as $$ begin raise exception
		'out of shared memory' using errcode = '53200'; end $$;
		create trigger full_table before insert on toy_log for each row when (new.label = 'locks')
		execute function full_table();`)
	e := w.engine()
	rs := e.DoAll(within(t, 10*time.Second),
		[]Submission[*toyTx]{submission(add("c0", 1).labelled("locks")), submission(add("c1", 1))})
	if reason(rs[0].Err) != "INTERNAL" || rs[1].Err != nil || e.Ready() != nil {
		t.Errorf("%+v, ready: %v", rs, e.Ready())
	}
}

// The fetch of a block of batch numbers hangs. It occupies one writer, and the other continues.
func TestAHangingFetchOccupiesOneWriter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := pgtest.NewProxy(t, w.dsn)
	e := w.engine(w.through(p))
	var hung, conn atomic.Int64
	p.Tap(pgtest.Requests, func(n int, data []byte) (int, bool) {
		if conn.Load() == int64(n) ||
			bytes.Contains(data, []byte("nextval('commit_batch_seq')")) && hung.CompareAndSwap(0, 1) {
			conn.Store(int64(n))
			return 0, false // from now on the connection is silent
		}
		return len(data), false
	})
	first := e.start(within(t, 60*time.Second), submission(add("c0", 1)))
	eventually(t, "the fetch hangs", func() bool { return hung.Load() == 1 })
	for range 5 {
		if _, err := e.Do(within(t, 5*time.Second), submission(add("c1", 1))); err != nil {
			t.Error(err)
		}
	}
	unanswered(t, first)
	if r := <-first; r.err != nil {
		t.Error(r.err)
	}
}

// The transaction of a batch has all settings that the rules rely on, whatever the defaults of the database.
func TestSettingsOfABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	tx, err := w.super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing to keep
	if _, err := tx.Exec(t.Context(), "set local synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	a := attempt[*toyTx]{jobs: []*job[*toyTx]{{Submission: Submission[*toyTx]{Tenant: 7}}}}
	if err := q.SettingsApply(t.Context(), tx, a.settings(1500*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"ledgerd.tenants": "{[7,7]}", "lock_timeout": "1500ms",
		"statement_timeout": ms(statementTimeout), "idle_in_transaction_session_timeout": ms(idleTimeout),
		"client_connection_check_interval": "5s", "synchronous_commit": "on", "client_min_messages": "warning",
		"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "jit": "off"} {
		var got string
		if err := tx.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil ||
			!sameSetting(got, want) {
			t.Errorf("%s is %s, want %s: %v", name, got, want, err)
		}
	}
}

// sameSetting compares a setting with one that may be a number of milliseconds.
func sameSetting(got, want string) bool {
	if n, err := strconv.Atoi(want); err == nil {
		d, err := time.ParseDuration(strings.ReplaceAll(got, "min", "m"))
		return err == nil && d == time.Duration(n)*time.Millisecond
	}
	return got == want
}

// Every attempt of a command loses a race. The command is retried only until its caller's deadline.
func TestRacesEndAtTheDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.exec(`create function race() returns trigger language plpgsql as $$ begin raise exception 'race' using
		errcode = '40001'; end $$;
		create trigger race before update on toy_counters for each row execute function race();`)
	e := w.engine()
	var tries atomic.Int64
	ctx := within(t, 50*time.Millisecond)
	racing := add("c0", 1)
	racing.onApply = func(*toyTx) error {
		tries.Add(1)
		<-ctx.Done() // its time ends during the first attempt
		return nil
	}
	if _, err := e.Do(ctx, submission(racing)); reason(err) != "OUTCOME_UNKNOWN" && reason(err) != "ROWS_LOCKED" {
		t.Errorf("%v", err)
	}
	eventually(t, "the command has ended", func() bool { return e.queue.depth() == 0 })
	if n := tries.Load(); n > 3 { // of five
		t.Errorf("%d attempts", n)
	}
}

// Rows are locked in one order, so a deadlock is a defect: it is counted.
func TestDeadlocksAreCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.countAttempt(raced, &pgconn.PgError{Code: "40001"})
	m.countAttempt(raced, fmt.Errorf("flush: %w", &pgconn.PgError{Code: "40P01"}))
	if n := testutil.ToFloat64(m.deadlocks); n != 1 {
		t.Errorf("%v deadlocks", n)
	}
}
