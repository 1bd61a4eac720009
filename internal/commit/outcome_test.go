package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func (w *world) through(p *pgtest.Proxy) func(*Config[*toyTx]) {
	return func(c *Config[*toyTx]) {
		pool, err := pg.Open(context.Background(), p.DSN, 5)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(pool.Close)
		c.Pool, c.Instance = pool, "through-the-proxy"
	}
}

// The connection is cut while COMMIT is in transit (not done), or its response (done). Callers get the actual outcome,
// and there is one effect.
func TestLostResponseOfCommitIsResolved(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint("done ", done), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := pgtest.NewProxy(t, w.dsn)
			e := w.engine(w.through(p))
			if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
				t.Fatal(err)
			}
			if done {
				p.Tap(pgtest.Answers, once("COMMIT\x00"))
			} else {
				p.Tap(pgtest.Requests, once("through-the-proxy"))
			}
			runs := 0
			c := add("c0", 10)
			c.onApply = func(*toyTx) error { runs++; return nil }
			out, err := e.Do(within(t, 20*time.Second), submission(c))
			if err != nil || out.Answer != int64(1_000_011) || w.value("c0") != 1_000_011 {
				t.Errorf("%+v, %v; value %d", out, err, w.value("c0"))
			}
			if want := map[bool]int{true: 1, false: 2}[done]; runs != want {
				t.Errorf("%d runs, want %d", runs, want)
			}
			if n := e.metric(t, "unknown_outcomes_total"); n != 1 {
				t.Errorf("%v unknown outcomes", n)
			}
		})
	}
}

// The backend is blocked in COMMIT when the connection is lost. It then continues or dies. No caller is answered
// before, and there is one effect.
func TestNoCallerIsAnsweredBeforeTheOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("dies ", dies), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.exec(`create function toy_gate() returns trigger language plpgsql as $$ begin
					perform set_config('lock_timeout', '0', true); perform pg_advisory_xact_lock_shared(7); return null;
					end $$;
				create constraint trigger toy_gate after insert on toy_log deferrable initially deferred
					for each row when (new.label = 'gated') execute function toy_gate();`)
			_, open := w.gate()
			p := pgtest.NewProxy(t, w.dsn)
			e := w.engine(w.through(p))
			a := e.start(within(t, 30*time.Second), submission(add("c0", 10).labelled("gated")))
			w.waiting(1)
			ghost := w.int("select max(pid) from pg_stat_activity where query ilike 'commit%' and state = 'active' " +
				"and datname = current_database()")
			p.SetDown(true)
			p.SetDown(false)
			eventually(t, "the outcome is being resolved", func() bool {
				return w.int(`select count(*) from pg_stat_activity where datname = current_database()
					and wait_event = 'transactionid'
					and query like '%BatchVoid%'`) == 1
			})
			unanswered(t, a)
			if dies {
				w.exec("select pg_terminate_backend($1)", ghost)
				w.waiting(1) // the rerun, in its COMMIT
				unanswered(t, a)
			}
			open()
			if got := <-a; got.err != nil || got.out.Answer != int64(1_000_010) {
				t.Errorf("%+v", got)
			}
			if n := w.int("select count(*) from toy_log"); n != 1 || w.value("c0") != 1_000_010 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

func TestOnlyTheTagCommitIsSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	conn, err := pgx.Connect(context.Background(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"begin", "select 1/0"} {
		_, _ = conn.Exec(context.Background(), sql)
	}
	p := NewPipe(context.Background())
	p.exec("commit", "COMMIT")
	if err := p.Run(conn); !errors.Is(err, errOtherTag) {
		t.Errorf("COMMIT of a failed transaction: %v", err)
	}
}

// Postgres is killed under load, twice. Every call is answered and takes effect once.
func TestCrashesLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	w := worldOn(t, d.DB, 10)
	engines := []*toyEngine{w.engine(), w.engine()}
	const callers, calls = 20, 40
	var answered atomic.Int32
	done := make(chan map[string]int, 1)
	go func() {
		done <- each(callers, func(i int) error {
			for n := range calls {
				label := fmt.Sprintf("%d-%d", i, n)
				c := submission(add(fmt.Sprint("c", (i+n)%10), 1).labelled(label))
				if i%2 == 0 {
					c = keyed(label, c.Command)
				}
				if _, err := engines[i%2].Do(within(t, 60*time.Second), c); err != nil {
					return err
				}
				answered.Add(1)
			}
			return nil
		})
	}()
	for crash := range 2 {
		eventually(t, "some calls are answered",
			func() bool { return int(answered.Load()) > (1+2*crash)*callers*calls/5 })
		d.Server.Kill()
		eventually(t, "an engine is not ready, unless no call is left", func() bool {
			return engines[0].Ready() != nil || engines[1].Ready() != nil || answered.Load() == callers*calls
		})
		acknowledged := answered.Load()
		d.Restart(t)
		eventually(t, "Postgres answers", func() bool { return w.super.Ping(context.Background()) == nil })
		if n := w.int("select count(*) from toy_log"); n < int64(acknowledged) {
			t.Errorf("%d effects of %d that were acknowledged", n, acknowledged)
		}
	}
	wantReasons(t, <-done, "map[ok:20]")
	if n, labels := w.int("select count(*) from toy_log"),
		w.int("select count(distinct label) from toy_log"); n != callers*calls || labels != n {
		t.Errorf("%d effects of %d calls, want %d", n, labels, callers*calls)
	}
	if sum := w.int("select sum(n) - 10000000 from toy_counters"); sum != callers*calls {
		t.Errorf("the counters grew by %d", sum)
	}
}

// The standby that COMMIT must wait for is missing, and an operator cancels the wait. The batch is committed here, but
// may be lost.
func TestWarningAtCommitIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	w := worldOn(t, d.DB, 2)
	standby := func(name string) {
		w.exec("alter system set synchronous_standby_names = '" + name + "'")
		w.exec("select pg_reload_conf()")
		eventually(t, "the setting is effective", func() bool {
			var n string
			_ = w.super.QueryRow(context.Background(), "show synchronous_standby_names").Scan(&n)
			return n == name
		})
		if name == "" {
			return
		}
		// The checkpointer enables the wait with a delay: poll.
		eventually(t, "COMMITs wait for the standby", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			_, err := w.super.Exec(ctx, "comment on table toy_counters is 'tried'")
			return err != nil
		})
		w.exec("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
		eventually(t, "the test commit has ended", func() bool {
			return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == 0
		})
	}
	waits := func(n int64) {
		eventually(t, "a COMMIT waits for the standby", func() bool {
			return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == n
		})
	}
	ends := w.outcomes()
	e := w.engine()
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	ends.want(t, true)
	standby("missing")
	defer standby("")
	a := e.start(within(t, 60*time.Second), keyed("k", add("c0", 10)))
	waits(1)
	same := e.start(within(t, 60*time.Second), keyed("k", add("c0", 10)))
	eventually(t, "the second follows", func() bool { return followersOf(e, "k") == 1 })
	w.exec("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
	if got := <-a; !fault.Is(got.err, fault.OutcomeUnknown) {
		t.Errorf("cancelled: %+v", got)
	}
	ends.wantSoFar(t, true, false) // the commit may be lost
	waits(1)                       // the repeat waits for the standby too
	unanswered(t, same)

	// If the connection ends during the wait, the COMMIT is resolved as done, but not as durable.
	b := e.start(within(t, 60*time.Second), submission(add("c1", 100)))
	waits(2)
	w.exec("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
	eventually(t, "the batch is committed", func() bool { return w.value("c1") == 1_000_100 })
	eventually(t, "a second row waits for the standby", func() bool {
		// and a row of the repeat
		return w.int("select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query = 'commit'") == 2
	})
	unanswered(t, b)
	unanswered(t, same)
	standby("")
	if got := <-b; got.err != nil {
		t.Errorf("after the standby is disabled: %+v", got)
	}
	if got := <-same; got.err != nil || !got.out.Replayed {
		t.Errorf("repeat: %+v", got)
	}
	if w.value("c0") != 1_000_011 || w.value("c1") != 1_000_100 {
		t.Errorf("values %d, %d", w.value("c0"), w.value("c1"))
	}
}

// once returns a tap that drops the first data with the text and cuts the connection.
func once(text string) pgtest.Tap {
	done := false
	return func(_ int, data []byte) (pass int, cut bool) {
		if done || !bytes.Contains(data, []byte(text)) {
			return len(data), false
		}
		done = true
		return 0, true
	}
}
