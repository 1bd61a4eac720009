package commit

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// toldEndings are what tables were told, in the order in which it came.
type toldEndings struct {
	flushes atomic.Int32
	mu      sync.Mutex
	told    []bool
	also    func()
}

// toldEndings has all books of the world's engines tell.
func (w *world) toldEndings() *toldEndings {
	e, books := new(toldEndings), w.books
	w.books = func() *toyTx {
		b := books()
		b.told = e
		return b
	}
	return e
}

func (e *toldEndings) end(committed bool) {
	e.mu.Lock()
	e.told = append(e.told, committed)
	e.mu.Unlock()
	if e.also != nil {
		e.also()
	}
}

// wantTold: so the flushes that have ended did, whatever still runs.
func (e *toldEndings) wantTold(t *testing.T, told ...bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.told, told) {
		t.Errorf("flushes ended as %v, not as %v", e.told, told)
	}
}

// want: so every flush ended, each of which was told once.
func (e *toldEndings) want(t *testing.T, told ...bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.told, told) || int(e.flushes.Load()) != len(told) {
		t.Errorf("%d flushes ended as %v, not as %v", e.flushes.Load(), e.told, told)
	}
}

func TestTablesAreToldHowTheirBatchesEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(w *world, e *toyEngine)
		told []bool
	}{
		"it committed": {func(w *world, e *toyEngine) { mustDo(t, e, submission(add("c0", 1))) }, []bool{true}},
		"a dry run": {func(w *world, e *toyEngine) {
			dry := submission(add("c0", 1))
			dry.DryRun = true
			mustDo(t, e, dry)
		}, []bool{false}},
		"nothing to write": {func(w *world, e *toyEngine) {
			mustDo(t, e, submission(add("c0", 1).named("n")))
			mustDo(t, e, submission(add("c0", 1).named("n")))
		}, []bool{true, false}},
		"a lost race": {func(w *world, e *toyEngine) {
			first, c := true, add("c0", 1).named("n")
			c.onApply = func(tx *toyTx) error {
				if first {
					first = false
					tx.onFlush = func(*Pipe) { w.exec("insert into toy_names (tenant_id, name, counter, n) values (1, 'n', 'c1', 7)") }
				}
				return nil
			}
			mustDo(t, e, submission(c))
		}, []bool{false, false}}, // and then there was nothing to write
		"one of two is refused by the database": {func(w *world, e *toyEngine) {
			submissions := []Submission[*toyTx]{submission(add("c0", 1)), submission(add("c0", 1).labelled("poison"))}
			if r := e.DoAll(within(t, 10*time.Second), submissions); r[0].Err != nil ||
				!fault.Is(r[1].Err, fault.InternalError) {
				t.Errorf("%+v", r)
			}
		}, []bool{false, false, true, false, false}}, // a batch that overlaps runs again with locks
		"a table panics in Flush": {func(w *world, e *toyEngine) {
			c := add("c0", 1)
			c.onApply = func(tx *toyTx) error { tx.onFlush = func(*Pipe) { panic("boom") }; return nil }
			if _, err := e.Do(within(t, 10*time.Second), submission(c)); err == nil {
				t.Error("it went well")
			}
		}, []bool{false, false}},
		"the command fails": {func(w *world, e *toyEngine) {
			c := add("c0", 1)
			c.onApply = func(tx *toyTx) error { return ErrMoreRows }
			_, _ = e.Do(within(t, 10*time.Second), submission(c))
		}, []bool{false}}, // the attempts before never came to Flush
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			ends := w.toldEndings()
			c.run(w, w.engine(func(c *Config[*toyTx]) { c.Writers = 1 }))
			ends.want(t, c.told...)
		})
	}
}

func mustDo(t *testing.T, e *toyEngine, w Submission[*toyTx]) {
	t.Helper()
	if _, err := e.Do(within(t, 10*time.Second), w); err != nil {
		t.Error(err)
	}
}

// The connection is cut in COMMIT: tables are told what came out in the end, and not before.
func TestTablesAreToldOfAnOutcomeThatWasUnknown(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint("done ", done), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := pgtest.NewProxy(t, w.dsn)
			ends := w.toldEndings()
			e := w.engine(w.through(p))
			if done {
				p.Tap(pgtest.Answers, once("COMMIT\x00"))
			} else {
				p.Tap(pgtest.Requests, once("through-the-proxy"))
			}
			mustDo(t, e, submission(add("c0", 10)))
			if done {
				ends.want(t, true)
			} else {
				ends.want(t, false, true)
			}
		})
	}
}

// What is told may panic, or use the engine: it holds nothing of it.
func TestWhoIsToldHoldsNothingOfTheEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	ends := w.toldEndings()
	e := w.engine()
	var again atomic.Bool
	ends.also = func() {
		if again.Swap(true) {
			return
		}
		// the same row, by the other writer
		if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
			t.Error(err)
		}
		panic("boom")
	}
	mustDo(t, e, submission(add("c0", 1)))
	ends.want(t, true, true)
	if w.value("c0") != 1_000_002 || e.metric(t, "panics_total") != 1 {
		t.Errorf("value %d, %v panics", w.value("c0"), e.metric(t, "panics_total"))
	}
}
