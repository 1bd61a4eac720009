package commit

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestCulpritsFailAloneAndTheOthersKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, culprits := range []int{1, 5, 20} {
		t.Run(fmt.Sprint(culprits), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			e := w.engine(func(c *Config[*toyTx]) { c.Writers = 1 })
			submissions := make([]Submission[*toyTx], 1000)
			for i := range submissions {
				submissions[i] = keyed(fmt.Sprintf("k%04d", i), add("c0", 1))
				submissions[i].Rows = 1
				if i%(1000/culprits) == 7 {
					submissions[i].Command.(*toyAdd).label = "poison"
				}
			}
			failed, last := 0, int64(0)
			for i, r := range e.DoAll(within(t, 60*time.Second), submissions) {
				if i%(1000/culprits) == 7 {
					failed++
					if !fault.Is(r.Err, fault.InternalError) {
						t.Errorf("culprit %d: %+v", i, r)
					}
					continue
				}
				if r.Err != nil {
					t.Fatalf("%d: %v", i, r.Err)
				}
				if n := r.Outcome.Answer.(int64); n <= last {
					t.Fatalf("command %d got %d after %d", i, n, last)
				} else {
					last = n
				}
			}
			if n := w.int("select count(*) from commit_keys"); int(n) != 1000-failed || failed != culprits {
				t.Errorf("%d keys are recorded, %d failed", n, failed)
			}
			e.queue.mu.Lock()
			defer e.queue.mu.Unlock()
			if got := e.queue.isolated(1, time.Now()); got != (culprits > maxCulprits) {
				t.Errorf("isolated: %v", got)
			}
		})
	}
}

func TestPanicFailsItsCommandAndLeavesNothing(t *testing.T) {
	t.Parallel()
	boom := func(*toyTx) { panic("boom") }
	places := map[string]func(w *Submission[*toyTx], a *toyAdd){
		"need":   func(_ *Submission[*toyTx], a *toyAdd) { a.onNeed = boom },
		"apply":  func(_ *Submission[*toyTx], a *toyAdd) { a.onApply = func(tx *toyTx) error { boom(tx); return nil } },
		"encode": func(w *Submission[*toyTx], _ *toyAdd) { w.Encode = func(any) ([]byte, error) { panic("boom") } },
		"encode error": func(w *Submission[*toyTx], _ *toyAdd) {
			w.Encode = func(any) ([]byte, error) { return nil, errors.New("cannot") }
		},
		"table": func(_ *Submission[*toyTx], a *toyAdd) {
			a.onApply = func(tx *toyTx) error { tx.onFlush = func(*Pipe) { panic("boom") }; return nil }
		},
		"table reading": func(_ *Submission[*toyTx], a *toyAdd) {
			a.onApply = func(tx *toyTx) error {
				tx.onFlush = func(p *Pipe) {
					p.Queue(func(d DB) error {
						if _, err := d.Exec(p.Context(), "select 1"); err != nil {
							return err
						}
						panic("boom")
					})
				}
				return nil
			}
		},
		"value that cannot be sent": func(_ *Submission[*toyTx], a *toyAdd) {
			a.onApply = func(tx *toyTx) error {
				tx.onFlush = func(p *Pipe) {
					p.Queue(func(d DB) error {
						_, err := d.Exec(p.Context(), "select $1::integer", struct{ a chan int }{})
						return err
					})
				}
				return nil
			}
		},
	}
	for place, prepare := range places {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			e := w.engine()
			submissions := make([]Submission[*toyTx], 9)
			for i := range submissions {
				submissions[i] = keyed(fmt.Sprint("k", i), add("c0", 1))
			}
			bad := add("c0", 1000).named("bad")
			submissions[4].Command = bad
			prepare(&submissions[4], bad)
			for i, r := range e.DoAll(within(t, 20*time.Second), submissions) {
				want := "ok"
				if i == 4 && place != "table reading" {
					want = "INTERNAL"
					if place == "encode error" {
						want = "cannot" // a plain error; internal/rpc converts it to INTERNAL
					}
				}
				if reason(r.Err) != want {
					t.Errorf("%d: %v", i, r.Err)
				}
			}
			if place == "table reading" { // COMMIT was sent: the outcome was resolved as committed
				if w.value("c0") != 1_001_008 || e.metric(t, "unknown_outcomes_total") != 1 {
					t.Errorf("value %d", w.value("c0"))
				}
				return
			}
			if w.value("c0") != 1_000_008 || w.int("select count(*) from toy_names") != 0 ||
				w.int("select count(*) from commit_keys") != 8 {
				t.Errorf("value %d", w.value("c0"))
			}
			if e.Ready() != nil {
				t.Errorf("not ready: %v", e.Ready())
			}
		})
	}
}

// The results of statements are read after COMMIT was sent, so the database must check row counts itself.
func TestStatementThatMissesARowCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine()
	ghost := add("c1", 5)
	ghost.onApply = func(tx *toyTx) error {
		c := tx.counter(1, "gone")
		c.found = true
		return tx.add(c, 1, "ghost")
	}
	r := e.DoAll(within(t, 20*time.Second),
		[]Submission[*toyTx]{submission(add("c0", 1)), keyed("k", ghost), submission(add("c0", 1))})
	if !fault.Is(r[1].Err, fault.RowsLocked) || r[0].Err != nil || r[2].Err != nil {
		t.Errorf("%+v", r)
	}
	if w.value("c0") != 1_000_002 || w.value("c1") != 1_000_000 || w.int("select count(*) from commit_keys") != 0 ||
		w.int("select count(*) from toy_log where label <> 'plain'") != 0 {
		t.Error("a part of the batch was committed")
	}
}

// The effect of Count survives once after every failure. The effect of Guard survives only a success or a refusal.
func TestEffectsThatSurviveAFailedCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	e := w.engine()
	for i, c := range []struct {
		fails error
		boom  bool
		stays int64
	}{
		{nil, false, 1}, {toyEmpty.New("no"), false, 1}, {toyStale.New("no"), false, 0}, {toyWrong.New("no"), false, 0},
		{errors.New("no"), false, 0}, {nil, true, 0}, {ErrMoreRows, false, 0},
	} {
		a := *add("c0", 1)
		a.onApply = func(*toyTx) error {
			if c.boom {
				panic("boom")
			}
			return c.fails
		}
		guarded, counted := &toyGuarded{toyAdd: a, tries: "c1"}, &toyCounted{toyAdd: a, tries: "c2"}
		both := &toyBoth{toyGuarded{toyAdd: a, tries: "c3"}, toyCounted{toyAdd: *add("c0", 0), tries: "c4"}}
		beside := add("c0", 0)
		values := func() (v [5]int64) {
			for i := range v {
				v[i] = w.value(fmt.Sprint("c", i))
			}
			return v
		}
		before := values()
		r := e.DoAll(within(t, 10*time.Second),
			[]Submission[*toyTx]{submission(beside), keyed(fmt.Sprint("guarded", i), guarded), submission(beside),
				keyed(fmt.Sprint("counted", i), counted), keyed(fmt.Sprint("both", i), both), submission(beside)})
		succeeds := int64(0)
		if c.fails == nil && !c.boom {
			succeeds = 1
		}
		for n, x := range r {
			if (x.Err == nil) != (n%2 == 0 && n < 4 || n == 5 || succeeds == 1) {
				t.Errorf("%d, command %d: %v", i, n, x.Err)
			}
		}
		after := values()
		for n := range after {
			after[n] -= before[n]
		}
		if want := [5]int64{3 * succeeds, c.stays, 1, c.stays, 1}; after != want {
			t.Errorf("%d: the counters grew by %v, want %v", i, after, want)
		}
	}
}

// toyVia adds to the counter of a name, which it must discover first.
type toyVia struct {
	name    string
	blind   bool // Discover does not find the counter
	wants   int  // further counters, each requested by another ErrMoreRows
	counter string
	learnt  string
	asked   int
}

func (v *toyVia) Need(tx *toyTx) {
	tx.name(1, v.name)
	if v.learnt != "" {
		tx.counter(1, v.learnt)
	} else if !v.blind {
		v.counter = ""
		tx.discover[toyKey{1, v.name}] = &v.counter
	}
	for i := range v.asked {
		tx.counter(1, fmt.Sprint("c", i))
	}
}

func (v *toyVia) Apply(tx *toyTx) (any, error) {
	n := tx.name(1, v.name)
	c := tx.counters[toyKey{1, n.counter}]
	if c == nil {
		v.learnt = n.counter
		return nil, ErrMoreRows
	}
	if v.asked < v.wants {
		v.asked++
		return nil, ErrMoreRows
	}
	return nil, tx.add(c, 1, "via")
}

func TestRowsFoundLateAreLockedInARerun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.exec("insert into toy_names values (1, 'x', 'c5', 0)")
	for _, c := range []struct {
		via          toyVia
		reason       string
		runs, result int64
	}{
		{toyVia{name: "x"}, "ok", 1, 1},
		{toyVia{name: "x", blind: true}, "ok", 2, 2},
		{toyVia{name: "x", blind: true, wants: 2}, "ok", 4, 3},
		{toyVia{name: "x", blind: true, wants: maxMore + 1}, "ok", maxMore + 3, 4}, // and its two further rows
		{toyVia{name: "x", blind: true, wants: maxMore + 2}, "ROWS_LOCKED", maxMore + 3, 4},
	} {
		e := w.engine()
		runs := int64(0)
		counts := add("c9", 1)
		counts.onApply = func(*toyTx) error { runs++; return nil }
		r := e.DoAll(within(t, 10*time.Second), []Submission[*toyTx]{submission(counts), submission(&c.via)})
		if reason(r[1].Err) != c.reason || r[0].Err != nil {
			t.Errorf("%+v: %v, %v", c.via, r[1].Err, r[0].Err)
		}
		if runs != c.runs || w.value("c5") != 1_000_000+c.result {
			t.Errorf("%+v: %d runs, result %d", c.via, runs, w.value("c5")-1_000_000)
		}
	}
}

func TestReplayIsCountedOnceDespiteReruns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.exec("insert into toy_names values (1, 'x', 'c5', 0)")
	first := w.engine()
	for _, r := range first.DoAll(within(t, 10*time.Second),
		[]Submission[*toyTx]{keyed("same", add("c0", 1)), keyed("other", add("c0", 1))}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	e := w.engine()
	other := keyed("other", add("c0", 1))
	other.Key.Fingerprint = bytes.Repeat([]byte{1}, FingerprintSize)
	r := e.DoAll(within(t, 10*time.Second), []Submission[*toyTx]{keyed("same", add("c0", 1)), other,
		submission(&toyVia{name: "x", blind: true, wants: 2})})
	if !r[0].Outcome.Replayed || reason(r[1].Err) != "IDEMPOTENCY_KEY_REUSED" || r[2].Err != nil {
		t.Errorf("%+v", r)
	}
	if n := e.metric(t, "keys_total"); n != 2 {
		t.Errorf("%v outcomes of two keys counted", n)
	}
}

func TestBatchWithoutRoomForIDsIsSplit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	many := func(n int) Submission[*toyTx] {
		c := add("c0", 1)
		c.onApply = func(tx *toyTx) error {
			for range n {
				tx.newID()
			}
			return nil
		}
		return submission(c)
	}
	got := map[string]int{}
	for _, r := range e.DoAll(within(t, 20*time.Second),
		[]Submission[*toyTx]{many(9000), many(9000), many(20_000), many(9000)}) {
		got[reason(r.Err)]++
	}
	wantReasons(t, got, "map[COMMAND_TOO_LARGE:1 ok:3]")
	if w.value("c0") != 1_000_003 {
		t.Errorf("value %d", w.value("c0"))
	}
}
