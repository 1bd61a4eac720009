package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// note is a command that has nothing to lock, and under a new key nothing to look up.
func note(key string) Work[*toyBook] { return keyed(key, &toyAdd{tenant: 1}) }

func (e *toyEngine) mustDo(t *testing.T, w Work[*toyBook]) {
	t.Helper()
	if out, err := e.Do(within(t, 20*time.Second), w); err != nil || out.Replayed {
		t.Fatalf("%+v, %v", out, err)
	}
}

// doInTime runs a command with a key, and holds the time of what is recorded under it against the database's.
func (w *world) doInTime(e *toyEngine, key string) {
	w.t.Helper()
	const clock = `select (extract(epoch from clock_timestamp()) * 1000)::bigint`
	before := w.int(clock)
	e.mustDo(w.t, note(key))
	at, after := w.int(`select (extract(epoch from created_at) * 1000)::bigint from commit_keys where key = $1`, key), w.int(clock)
	if at < before-1000 || at > after {
		w.t.Errorf("%s was recorded %d ms after it began, and %d ms before it had ended", key, at-before, after-at)
	}
}

func TestABatchThatLooksNothingUpTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	pool, trips := pgtest.CountingPool(t, w.dsn)
	e := w.engine(func(c *Config[*toyBook]) { c.Pool = pool })
	e.mustDo(t, note("first")) // the database says the time
	count := func(w Work[*toyBook]) int64 {
		before := trips.Load()
		e.mustDo(t, w)
		return trips.Load() - before
	}
	began := time.Now()
	for i := range 5 {
		if n := count(note(fmt.Sprint("k", i))); n != 1 {
			t.Errorf("%d round trips of what has nothing to look up", n)
		}
		if n := count(work(add("c0", 1))); n != 2 {
			t.Errorf("%d round trips of what has a row to read", n)
		}
	}
	if since := time.Since(e.clock.at); since > time.Since(began) {
		t.Errorf("the database said the time %v ago", since)
	}
	e.clock.at = time.Now().Add(-clockLife)
	if n := count(note("later")); n != 2 {
		t.Errorf("%d round trips, though nobody has said the time for long", n)
	}
	if n := count(note("after it")); n != 1 {
		t.Errorf("%d round trips, though the time is known again", n)
	}
	e.wantMetric(t, "wrong_guesses_total", 0)
}

// The database was replaced by one whose clock differs, or this machine was suspended.
func TestATimeThatIsReckonedWronglyIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, -3 * time.Second, 3 * time.Second, time.Hour} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			e := w.engine()
			e.mustDo(t, note("first"))
			e.clock.set(e.clock.said.Add(off))
			w.doInTime(e, "second")
			e.wantMetric(t, "wrong_guesses_total", 1)
			e.wantMetric(t, "reruns_total", 0)
			w.doInTime(e, "third")
			e.wantMetric(t, "wrong_guesses_total", 1)
			if now, known := e.clock.now(); !known || time.Since(now).Abs() > time.Second {
				t.Errorf("the time is taken for %v now", now)
			}
		})
	}
}

// One that guesses at nothing else, as it has neither key nor name.
func TestTheTimeAloneIsReckonedWrongly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	logs := toyAdd{tenant: 1, onApply: func(b *toyBook) error {
		b.log = append(b.log, toyLogged{b.newID(), 1, "none", "logged"})
		return nil
	}}
	for i := range 3 {
		if i == 1 {
			e.clock.set(time.Now().Add(time.Hour))
		}
		c := logs
		e.mustDo(t, work(&c))
	}
	if n := w.int("select count(*) from toy_log where label = 'logged' and at <= clock_timestamp()"); n != 3 {
		t.Errorf("%d of 3 have the right time", n)
	}
	e.wantMetric(t, "wrong_guesses_total", 1)
}

// One that had something to discover has sent what it begins with, and waits for its look-ups as ever.
func TestTheTimeIsNotReckonedWhereSomethingIsLookedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	e.mustDo(t, note("k"))
	for _, statements := range []int{1, 2, 3} { // that look up: the key, and others
		counter := ""
		again := toyAdd{tenant: 1, onNeed: func(b *toyBook) { b.discover[toyKey{1, "nobody's"}] = &counter },
			onApply: func(*toyBook) error { return toyStale.New("it is not there") }}
		if statements > 1 {
			again.name = "new"
		}
		if statements > 2 {
			again.counter = "nobody's"
		}
		if out, err := e.Do(within(t, 20*time.Second), keyed("k", &again)); err != nil || !out.Replayed {
			t.Errorf("%d statements: %+v, %v", statements, out, err)
		}
	}
}

// Rows have a history, which is read as of a time: it is the database's own, also of a batch that took all of them over and so has
// nothing to read.
func TestTheTimeOfRowsIsNotReckoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(patient)
	e.clock.set(time.Now().Add(500 * time.Millisecond)) // not so wrong that the database would mind
	first, second, open := w.behind(e, add("c0", 1), add("c0", 1).labelled("second"))
	open()
	<-first
	if r := <-second; r.err != nil {
		t.Fatal(r.err)
	}
	e.wantMetric(t, "overlaps_total", 1)
	if n := w.int("select count(*) from toy_log where label = 'second' and at <= clock_timestamp()"); n != 1 {
		t.Error("the time was reckoned")
	}
}
