package commit

import (
	"errors"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// gated makes the command's batch wait at the gate after it is applied, before its first write.
func gated(pass func(p *Pipe), c *toyAdd) *toyAdd {
	c.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
	return c
}

// behind starts two calls. The first is applied and waits at a gate. The second is applied after it.
func (w *world) behind(e *toyEngine, a, b *toyAdd) (first, second <-chan answer, open func()) {
	w.t.Helper()
	pass, open := w.gate()
	first = e.start(within(w.t, 20*time.Second), submission(gated(pass, a)))
	w.waiting(1)
	applied := make(chan struct{})
	b.onApply = func(*toyTx) error { close(applied); return nil }
	second = e.start(within(w.t, 20*time.Second), submission(b))
	<-applied
	return first, second, open
}

func wantValue(t *testing.T, w *world, counter string, want int64) {
	t.Helper()
	if got := w.value(counter); got != want {
		t.Errorf("counter %s is %d, want %d", counter, got, want)
	}
}

func (e *toyEngine) wantMetric(t *testing.T, name string, want float64) {
	t.Helper()
	if got := e.metric(t, name); got != want {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

func (e *toyEngine) wantReruns(t *testing.T, want float64) {
	t.Helper()
	if got := pgtest.Counter(t, e.reg, pgtest.FailedAttempts); got != want {
		t.Errorf("%v attempts failed, want %v", got, want)
	}
}

// The second batch works with the uncommitted rows of the first, and is answered after it.
func TestBatchOverlapsTheOneBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(patient)
	first, second, open := w.behind(e, add("c0", -999_999), add("c0", -1))
	unanswered(t, first)
	unanswered(t, second)
	open()
	if r := <-first; r.err != nil || r.out.Answer != int64(1) {
		t.Errorf("the first: %+v", r)
	}
	if r := <-second; r.err != nil || r.out.Answer != int64(0) {
		t.Errorf("the second: %+v", r)
	}
	wantValue(t, w, "c0", 0)
	e.wantMetric(t, "overlaps_total", 1)
	e.wantMetric(t, "attempts_total/conflicted", 0)
	e.wantReruns(t, 0)
}

// A command may learn by discovery that it needs rows that are always locked.
func TestDiscoveryDecidesWhetherABatchOverlaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.exec("insert into toy_names values (1, 'x', 'c0', 0)")
	e := w.engine(patient)
	pass, open := w.gate()
	first := e.start(within(t, 20*time.Second), submission(gated(pass, add("c0", 1))))
	w.waiting(1)
	second := e.start(within(t, 20*time.Second), Submission[*toyTx]{Tenant: 1, Command: &toyVia{name: "x"}})
	select {
	case r := <-second:
		t.Fatalf("answered before the first was committed: %+v", r)
	case <-time.After(200 * time.Millisecond): // it has discovered the counter, and waits
	}
	open()
	for _, r := range []answer{<-first, <-second} {
		if r.err != nil {
			t.Error(r.err)
		}
	}
	e.wantMetric(t, "overlaps_total", 0)
}

// A rerun must not overtake its predecessor, which has not committed: it would be refused for lack of money that its
// first run has seen.
func TestRerunDoesNotOvertakeItsPredecessor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(patient)
	pass, open := w.gate()
	first := e.start(within(t, 20*time.Second), submission(gated(pass, add("c0", 1))))
	w.waiting(1)
	applied := make(chan struct{}, 9)
	runs := 0 // by one writer at a time
	c := add("c0", -1_000_001)
	c.onApply = func(*toyTx) error {
		applied <- struct{}{}
		if runs++; runs == 1 {
			return ErrMoreRows
		}
		return nil
	}
	second := e.start(within(t, 20*time.Second), submission(c))
	<-applied
	select {
	case r := <-second:
		t.Fatalf("answered before the first was committed: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	open()
	if r := <-first; r.err != nil {
		t.Errorf("the first: %+v", r)
	}
	if r := <-second; r.err != nil || r.out.Answer != int64(0) {
		t.Errorf("the second: %+v", r)
	}
	wantValue(t, w, "c0", 0)
	e.wantMetric(t, "attempts_total/conflicted", 0)
}

// The second batch saw rows of the first, which fails. Neither its result nor its refusal may survive.
func TestBatchThatOverlapsAFailedOneRunsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		first  int64 // fails
		second int64
		want   string
		value  int64
	}{
		{"refused in the first run", -1_000_000, -5, "ok", 999_995},
		{"accepted in the first run", +1, -1_000_001, "TOY_EMPTY", 1_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			e := w.engine(patient)
			pass, open := w.gate()
			first := e.start(within(t, 20*time.Second), submission(gated(pass, add("c0", c.first).labelled("poison"))))
			w.waiting(1)
			applied := make(chan struct{}, 9)
			command := &toyHooked{*add("c0", c.second), func() { applied <- struct{}{} }}
			second := e.start(within(t, 20*time.Second), keyed("k", command))
			<-applied
			open()
			if r := <-first; r.err == nil {
				t.Error("the first did not fail")
			}
			if r := <-second; reason(r.err) != c.want {
				t.Errorf("the second: %+v", r)
			}
			wantValue(t, w, "c0", c.value)
			e.wantMetric(t, "overlaps_total", 1)
		})
	}
}

// toyHooked calls applied after Apply, also after a refusal.
type toyHooked struct {
	toyAdd
	applied func()
}

func (c *toyHooked) Apply(tx *toyTx) (any, error) {
	answer, err := c.toyAdd.Apply(tx)
	c.applied()
	return answer, err
}

// A change of a row that was read without a lock forces a rerun, both for a written row and for a row that was only
// read for a refusal.
func TestRowsReadWithoutLocksAreConfirmed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		delta   int64
		outside string
		want    string
		value   int64
	}{
		{"written", -600_000, "n = n - 300000", "ok", 100_000},
		{"written, and now too much", -600_000, "n = n - 500000", "TOY_EMPTY", 500_000},
		{"refused", -1_000_001, "n = n + 5", "ok", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			e := w.engine(patient)
			pass, open := w.gate()
			// The other command writes, so that the batch reaches the gate.
			results := make(chan []Result, 1)
			go func() {
				results <- e.DoAll(within(t, 20*time.Second),
					[]Submission[*toyTx]{keyed("k", add("c0", c.delta)), submission(gated(pass, add("c1", 1)))})
			}()
			w.waiting(1)
			w.exec("update toy_counters set " + c.outside + " where id = 'c0'")
			open()
			if r := <-results; reason(r[0].Err) != c.want || r[1].Err != nil {
				t.Errorf("%+v", r)
			}
			wantValue(t, w, "c0", c.value)
			wantValue(t, w, "c1", 1_000_001)
			e.wantMetric(t, "attempts_total/conflicted", 1)
			if e.backoff.over() {
				t.Error("the backoff has not started")
			}
		})
	}
}

// A transaction that holds a row blocks pessimistic batches as well, so it is no reason for backoff.
func TestHeldRowDoesNotStartTheBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c0' for update")
	held := e.start(within(t, 20*time.Second), submission(add("c0", 1)))
	eventually(t, "the command is blocked", func() bool { return e.blocked.retrying.Load() })
	if !e.backoff.over() {
		t.Error("the backoff has started")
	}
	end()
	if r := <-held; r.err != nil {
		t.Error(r.err)
	}
}

// The first batch drains the counter, but has not locked it yet when the second reads it.
func TestDuplicateRacingWithoutLocksIsReplayed(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"key", "name"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			pass, open := w.gate()
			pass2, open2 := w.gateOf(8)
			call := func(pass func(*Pipe)) Submission[*toyTx] {
				c := gated(pass, add("c0", -1_000_000))
				if by == "name" {
					return submission(c.named("x"))
				}
				return keyed("x", c)
			}
			a := w.engine(patient).start(within(t, 20*time.Second), call(pass))
			w.waiting(1)
			b := w.engine(patient).start(within(t, 20*time.Second), call(pass2))
			w.waiting(2)
			open()
			if got := <-a; got.err != nil || got.out.Replayed || got.out.Existed {
				t.Errorf("the first: %+v", got)
			}
			open2()
			got := <-b
			if got.err != nil || got.out.Replayed != (by == "key") || got.out.Existed != (by == "name") {
				t.Errorf("the second: %+v", got)
			}
			if n := w.int("select count(*) from toy_log"); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// In the database the two would wait for each other: the second for the end of the first, the first for the name that
// the second has inserted.
func TestBatchesWithANameInCommonDoNotOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine(patient)
	pass, open := w.gate()
	first := e.start(within(t, 20*time.Second), submission(gated(pass, add("c0", 1).named("x"))))
	w.waiting(1)
	second := e.start(within(t, 20*time.Second), submission(add("c0", 1).named("x")))
	eventually(t, "the second waits at the latch", func() bool {
		if e.latches.entrance.TryLock() {
			e.latches.entrance.Unlock()
			return false
		}
		return true
	})
	open()
	if r := <-first; r.err != nil || r.out.Existed {
		t.Errorf("the first: %+v", r)
	}
	if r := <-second; r.err != nil || !r.out.Existed {
		t.Errorf("the second: %+v", r)
	}
	wantValue(t, w, "c0", 1_000_001)
	e.wantMetric(t, "attempts_total/conflicted", 0)
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	var c backoff
	if !c.over() {
		t.Fatal("the pause begins before start")
	}
	for _, want := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff} {
		c.start()
		c.start() // a conflict during the pause
		if c.over() || c.pause != want {
			t.Errorf("pause %v, want %v", c.pause, want)
		}
		c.until = time.Now()
	}
	c.until = time.Now().Add(-c.pause)
	if c.start(); c.pause != minBackoff {
		t.Errorf("after a long time without conflicts the pause is %v", c.pause)
	}
	for range 20 {
		c.until = time.Now()
		c.start()
	}
	if c.pause != maxBackoff {
		t.Errorf("the pause grew to %v", c.pause)
	}
}

func TestRefusedPipeFails(t *testing.T) {
	p := NewPipe(t.Context())
	p.Refuse(ErrConflict)
	p.Refuse(errors.New("another"))
	if err := p.Run(nil); !errors.Is(err, ErrConflict) {
		t.Errorf("%v", err)
	}
}
