package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// roomy gives an engine the connections of direct commands.
func (w *world) roomy() func(*Config[*toyTx]) {
	return func(c *Config[*toyTx]) {
		pool, err := pg.Open(w.t.Context(), w.dsn, 4+MaxDirect)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(pool.Close)
		c.Pool = pool
	}
}

func directly(w Submission[*toyTx]) Submission[*toyTx] {
	w.Direct = &Direct{Tries: 3, Pause: time.Millisecond}
	return w
}

// A tenant's direct commands that wait for a row delay neither those of another tenant nor batches.
func TestDirectCommandsLeaveRoomForOtherTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.exec("insert into toy_counters (tenant_id, id, n) values (2, 'other', 0)")
	e := w.engine(w.roomy())
	end := w.holder("select from toy_counters where id = 'c0' for update")
	ctx := within(t, time.Minute)
	var waiting []<-chan answer
	for range 40 {
		waiting = append(waiting, e.start(ctx, directly(submission(add("c0", 1)))))
	}
	eventually(t, "eight of them wait", func() bool {
		return w.int("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == MaxDirect/2
	})
	other := directly(submission(&toyAdd{tenant: 2, counter: "other", delta: 1}))
	other.Tenant = 2
	if _, err := e.Do(within(t, 30*time.Second), other); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := e.Do(within(t, 30*time.Second), submission(add("c1", 1))); err != nil {
		t.Errorf("a batch: %v", err)
	}
	end()
	for _, a := range waiting {
		if got := <-a; got.err != nil {
			t.Errorf("after the release: %v", got.err)
		}
	}
	if n := w.value("c0"); n != 1_000_040 {
		t.Errorf("value %d", n)
	}
}

// A direct command whose lock does not come free is refused when its tries are over, and has no effect.
func TestDirectCommandTriesAsOftenAsItSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	tries := 0
	c := add("c0", 1)
	c.onApply = func(*toyTx) error { tries++; return ErrMoreRows }
	_, err := e.Do(within(t, 20*time.Second), directly(submission(c)))
	if !fault.Is(err, fault.RowsLocked) || tries != maxMore+1 {
		t.Errorf("%d tries, then %v", tries, err)
	}
	end := w.holder("select from toy_counters where id = 'c0' for update")
	defer end()
	_, err = e.Do(within(t, 2*time.Second), directly(submission(add("c0", 1))))
	if !fault.Is(err, fault.RowsLocked) && !fault.Is(err, fault.OutcomeUnknown) { // the latter if its time ended during the last try
		t.Errorf("behind a lock: %v", err)
	}
	if n := w.value("c0"); n != 1_000_000 {
		t.Errorf("value %d", n)
	}
}

// The same key at the same time runs once, whether the commands are direct or not, and its record answers the others.
func TestDirectCommandsWithOneKeyRunOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(w.roomy())
	got := each(60, func(i int) error {
		s := keyed(fmt.Sprint("k", i%3), add("c0", 1))
		if i%2 == 0 {
			s = directly(s)
		}
		_, err := e.Do(within(t, 30*time.Second), s)
		return err
	})
	if got["ok"] != 60 {
		t.Error(got)
	}
	if n := w.value("c0"); n != 1_000_003 {
		t.Errorf("value %d", n)
	}
}

// The outcome of a direct command whose COMMIT got no answer is found, as that of a batch is.
func TestLostResponseOfADirectCommitIsResolved(t *testing.T) {
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
			out, err := e.Do(within(t, 20*time.Second), directly(submission(add("c0", 10))))
			if err != nil || out.Answer != int64(1_000_011) || w.value("c0") != 1_000_011 {
				t.Errorf("%+v, %v; value %d", out, err, w.value("c0"))
			}
			if n := e.metric(t, "unknown_outcomes_total"); n != 1 {
				t.Errorf("%v unknown outcomes", n)
			}
		})
	}
}
