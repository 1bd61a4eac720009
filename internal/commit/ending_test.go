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

// outcomes records the calls of Ended, in order.
type outcomes struct {
	flushes atomic.Int32
	mu      sync.Mutex
	seen    []bool
	also    func()
}

// outcomes records the calls of Ended in all engines of the world.
func (w *world) outcomes() *outcomes {
	e, books := new(outcomes), w.books
	w.books = func() *toyTx {
		b := books()
		b.outcomes = e
		return b
	}
	return e
}

func (e *outcomes) end(committed bool) {
	e.mu.Lock()
	e.seen = append(e.seen, committed)
	e.mu.Unlock()
	if e.also != nil {
		e.also()
	}
}

// wantSoFar checks the outcomes of all flushes that have ended, while others may still run.
func (e *outcomes) wantSoFar(t *testing.T, want ...bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.seen, want) {
		t.Errorf("flushes ended with %v, want %v", e.seen, want)
	}
}

// want checks the outcomes of all flushes: Ended was called once for each of them.
func (e *outcomes) want(t *testing.T, want ...bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.seen, want) || int(e.flushes.Load()) != len(want) {
		t.Errorf("%d flushes ended with %v, want %v", e.flushes.Load(), e.seen, want)
	}
}

func TestObserversLearnTheOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(w *world, e *toyEngine)
		want []bool
	}{
		"commit": {func(w *world, e *toyEngine) { mustDo(t, e, submission(add("c0", 1))) }, []bool{true}},
		"dry run": {func(w *world, e *toyEngine) {
			dry := submission(add("c0", 1))
			dry.DryRun = true
			mustDo(t, e, dry)
		}, []bool{false}},
		"nothing to write": {func(w *world, e *toyEngine) {
			mustDo(t, e, submission(add("c0", 1).named("n")))
			mustDo(t, e, submission(add("c0", 1).named("n")))
		}, []bool{true, false}},
		"lost race": {func(w *world, e *toyEngine) {
			first, c := true, add("c0", 1).named("n")
			c.onApply = func(tx *toyTx) error {
				if first {
					first = false
					tx.onFlush = func(*Pipe) {
						w.exec("insert into toy_names (tenant_id, name, counter, n) " +
							"values (1, 'n', 'c1', 7)")
					}
				}
				return nil
			}
			mustDo(t, e, submission(c))
		}, []bool{false, false}}, // the rerun has nothing to write
		"one of two rejected by the database": {func(w *world, e *toyEngine) {
			submissions := []Submission[*toyTx]{submission(add("c0", 1)), submission(add("c0", 1).labelled("poison"))}
			if r := e.DoAll(within(t, 10*time.Second), submissions); r[0].Err != nil ||
				!fault.Is(r[1].Err, fault.InternalError) {
				t.Errorf("%+v", r)
			}
		}, []bool{false, false, true, false, false}}, // an optimistic batch is rerun with locks
		"panic in Flush": {func(w *world, e *toyEngine) {
			c := add("c0", 1)
			c.onApply = func(tx *toyTx) error { tx.onFlush = func(*Pipe) { panic("boom") }; return nil }
			if _, err := e.Do(within(t, 10*time.Second), submission(c)); err == nil {
				t.Error("no error")
			}
		}, []bool{false, false}},
		"command fails": {func(w *world, e *toyEngine) {
			c := add("c0", 1)
			c.onApply = func(tx *toyTx) error { return ErrMoreRows }
			_, _ = e.Do(within(t, 10*time.Second), submission(c))
		}, []bool{false}}, // earlier attempts did not reach Flush
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			ends := w.outcomes()
			c.run(w, w.engine(func(c *Config[*toyTx]) { c.Writers = 1 }))
			ends.want(t, c.want...)
		})
	}
}

func mustDo(t *testing.T, e *toyEngine, w Submission[*toyTx]) {
	t.Helper()
	if _, err := e.Do(within(t, 10*time.Second), w); err != nil {
		t.Error(err)
	}
}

// The connection is cut during COMMIT. Observers are called once the outcome is known, not before.
func TestObserversLearnAResolvedOutcome(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint("done ", done), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := pgtest.NewProxy(t, w.dsn)
			ends := w.outcomes()
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

// Ended may use the engine, and may panic.
func TestObserversHoldNoLocksOfTheEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	ends := w.outcomes()
	e := w.engine()
	var again atomic.Bool
	ends.also = func() {
		if again.Swap(true) {
			return
		}
		// The other writer changes the same row.
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
