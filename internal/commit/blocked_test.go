package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// A plain connection holds the row or key of one of many commands. The time limit is far below that of a bisection with
// the full lock timeout at every level.
func TestOnlyTheCommandThatNeedsAHeldRowWaits(t *testing.T) {
	t.Parallel()
	const n = 200
	holds := map[string]string{
		"row": "select from toy_counters where id = 'c77' for update",
		"key": `insert into commit_keys values (1, 'p', 'toy.add', 'k77', false, '\x0000000000000000000000000000000000',
			'', 'other', now(), now())`,
	}
	for what, sql := range holds {
		for _, released := range []bool{false, true} {
			t.Run(fmt.Sprint(what, " released ", released), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, n)
				e := w.engine(func(c *Config[*toyTx]) { c.LockTimeout = 500 * time.Millisecond })
				end := w.holder(sql)
				submissions := make([]Submission[*toyTx], n)
				for i := range submissions {
					submissions[i] = keyed(fmt.Sprint("k", i), add(fmt.Sprint("c", i), 1))
				}
				deadline := 20 * time.Second
				if released {
					deadline = time.Minute
				}
				ctx := within(t, deadline)
				done := make(chan []Result, 1)
				start := time.Now()
				go func() { done <- e.DoAll(ctx, submissions) }()
				eventually(t, "the others are committed",
					func() bool { return w.int("select count(*) from toy_log") == n-1 })
				if len(done) > 0 {
					t.Error("the others waited as long as the culprit")
				}
				if released {
					end()
				}
				results := <-done
				if released && results[77].Err != nil {
					t.Errorf("released in time: %v", results[77].Err)
				}
				// On a busy machine the time may end during an attempt, whose outcome is then unknown.
				if !released && !fault.Is(results[77].Err, fault.RowsLocked) &&
					!fault.Is(results[77].Err, fault.OutcomeUnknown) {
					t.Errorf("never released: %v", results[77].Err)
				}
				for i, r := range results {
					if i != 77 && r.Err != nil {
						t.Errorf("%d: %v", i, r.Err)
					}
				}
				if took := time.Since(start); took > deadline+3*time.Second {
					t.Errorf("the answers took %v", took)
				}
				end()
				if e.metric(t, "lock_waits_total") == 0 {
					t.Error("no lock wait was counted")
				}
			})
		}
	}
}

// Later commands that need the same row do not delay others for long either, and all of them run once the row is free.
func TestAllCommandsThatNeedAHeldRowRunAfterItsRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c0' for update")
	ctx := within(t, time.Minute)
	var culprits []<-chan answer
	for range 40 {
		culprits = append(culprits, e.start(ctx, submission(add("c0", 1))))
	}
	eventually(t, "a command is blocked", func() bool { return e.blocked.retrying.Load() })
	got := each(200, func(i int) error {
		_, err := e.Do(within(t, 30*time.Second), submission(add(fmt.Sprint("c", 1+i%49), 1)))
		return err
	})
	wantReasons(t, got, "map[ok:200]")
	for _, c := range culprits {
		unanswered(t, c)
	}
	end()
	for _, c := range culprits {
		if a := <-c; a.err != nil {
			t.Error(a.err)
		}
	}
	if w.value("c0") != 1_000_040 {
		t.Errorf("value %d", w.value("c0"))
	}
}

func TestCallCancelledInALockWaitDidNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c0' for update")
	errs := make([]error, 20)
	var got map[string]int
	for range 3 { // on a slow machine the deadline may pass before the first attempt, or during one
		got = each(len(errs), func(i int) error {
			c := keyed(fmt.Sprint("k", i), add("c0", 1).labelled(fmt.Sprint(i)))
			_, errs[i] = e.Do(within(t, 6*time.Second), c)
			return errs[i]
		})
		if got["ROWS_LOCKED"]+got["NOT_RUN"]+got["OUTCOME_UNKNOWN"] != len(errs) {
			t.Errorf("outcomes %v", got)
		}
		if got["ROWS_LOCKED"] > 0 {
			break
		}
	}
	if got["ROWS_LOCKED"] == 0 {
		t.Errorf("outcomes %v", got)
	}
	end()
	if _, err := e.Do(within(t, 30*time.Second), submission(add("c0", 1))); err != nil {
		t.Error(err)
	}
	e.mustBeEmpty(t)
	for i, err := range errs {
		if n := w.int("select count(*) from toy_log where label = $1", fmt.Sprint(i)); n > 0 &&
			(fault.Is(err, fault.RowsLocked) || fault.Is(err, fault.NotRun)) {
			t.Errorf("%d ran, but its caller got %v", i, err)
		}
	}
}

// Many commands need a held row, all in one batch. The search for them must not try each of them alone, or commands of
// others wait for two lock timeouts for each.
func TestOneOfManyCommandsForAHeldRowIsSearched(t *testing.T) {
	t.Parallel()
	const n = 64
	w := newWorld(t, n)
	e := w.engine(func(c *Config[*toyTx]) { c.LockTimeout = 500 * time.Millisecond })
	end := w.holder("select from toy_counters where id = 'c0' for update")
	submissions := make([]Submission[*toyTx], 2*n)
	for i := range n {
		submissions[2*i], submissions[2*i+1] = submission(add("c0", 1)), submission(add(fmt.Sprint("c", i), 1))
	}
	done := make(chan []Result, 1)
	go func() { done <- e.DoAll(within(t, time.Minute), submissions) }()
	eventually(t, "the others are committed", func() bool { return w.int("select count(*) from toy_log") == n-1 })
	blocked := e.attempts(blocked)
	// Three of the whole batch, then one a level, and a few of the retries; 127 if each of the 65 is searched.
	if blocked > 40 {
		t.Errorf("%v attempts were blocked", blocked)
	}
	// While the row is held, further commands that need it are set aside at once, and no batch waits for them.
	before := e.attempts(conflicted)
	var late []<-chan answer
	for range n {
		late = append(late, e.start(within(t, time.Minute), submission(add("c0", 1))))
		if _, err := e.Do(within(t, 30*time.Second), submission(add("c5", 1))); err != nil {
			t.Error(err)
		}
	}
	if n := e.attempts(conflicted) - before; n > 8 {
		t.Errorf("%v batches met the held row", n)
	}
	end()
	for i, r := range <-done {
		if r.Err != nil {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
	for _, c := range late {
		if a := <-c; a.err != nil {
			t.Error(a.err)
		}
	}
}

// Another transaction holds very many rows. The only writer finds some of the commands that need one, and leaves the
// others to the goroutine that retries blocked commands.
func TestAWriterDoesNotSearchForManyHeldRows(t *testing.T) {
	t.Parallel()
	const n = 200
	w := newWorld(t, n+1)
	e := w.engine(func(c *Config[*toyTx]) { c.Writers = 1 })
	end := w.holder(fmt.Sprintf("select from toy_counters where id <> 'c%d' for update", n))
	submissions := make([]Submission[*toyTx], n)
	for i := range submissions {
		submissions[i] = submission(add(fmt.Sprint("c", i), 1))
	}
	done := make(chan []Result, 1)
	go func() { done <- e.DoAll(within(t, 5*time.Minute), submissions) }()
	eventually(t, "the batch is blocked", func() bool { return e.blocked.retrying.Load() })
	if _, err := e.Do(within(t, time.Minute), submission(add(fmt.Sprint("c", n), 1))); err != nil {
		t.Error(err)
	}
	if blocked := e.attempts(blocked); blocked > n {
		t.Errorf("a call waited for %v attempts", blocked)
	}
	end()
	for i, r := range <-done {
		if r.Err != nil {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
}

// A row that many commands share is not held, though one of them needs a held row too.
func TestCommandsThatShareAFreeRowWithABlockedOneRun(t *testing.T) {
	t.Parallel()
	const n = 40
	w := newWorld(t, n+1)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c0' for update")
	both := func(i int) Submission[*toyTx] {
		return submission(&toyPair{add(fmt.Sprint("c", i), 1), add(fmt.Sprint("c", n), 1)})
	}
	first := e.start(within(t, time.Minute), both(0))
	eventually(t, "a command is blocked", func() bool { return e.blocked.retrying.Load() })
	got := each(8*(n-1), func(i int) error {
		_, err := e.Do(within(t, 30*time.Second), both(1+i%(n-1)))
		return err
	})
	wantReasons(t, got, fmt.Sprintf("map[ok:%d]", 8*(n-1)))
	unanswered(t, first)
	// Now the shared row is held, too: all of them wait, and run after its release.
	endShared := w.holder("select from toy_counters where id = $1 for update", fmt.Sprint("c", n))
	var others []<-chan answer
	for i := range n - 1 {
		others = append(others, e.start(within(t, time.Minute), both(1+i)))
	}
	eventually(t, "all are blocked", func() bool {
		e.blocked.mu.Lock()
		defer e.blocked.mu.Unlock()
		return len(e.blocked.found)+len(e.blocked.untried) == n
	})
	endShared()
	for _, c := range others {
		if a := <-c; a.err != nil {
			t.Error(a.err)
		}
	}
	unanswered(t, first)
	end()
	if a := <-first; a.err != nil {
		t.Error(a.err)
	}
}

// toyPair adds to two counters.
type toyPair struct{ one, other *toyAdd }

func (p *toyPair) Need(tx *toyTx) {
	p.one.Need(tx)
	p.other.Need(tx)
}

func (p *toyPair) Apply(tx *toyTx) (any, error) {
	if _, err := p.one.Apply(tx); err != nil {
		return nil, err
	}
	return p.other.Apply(tx)
}

// A blocked job whose attempt has asked for more rows is still running when its time is nearly over.
func TestALateJobIsAnsweredInAnyState(t *testing.T) {
	t.Parallel()
	e := newWorld(t, 1).engine()
	for state, answered := range map[int32]bool{waiting: true, running: true, abandoned: false} {
		j, wait := new(job[*toyTx]), newWaiter(1)
		j.start(submission(add("c0", 1)), wait, time.Now())
		if e.queue.admit([]*job[*toyTx]{j}) != admitted {
			t.Fatal("not admitted")
		}
		j.awaitsRows.Store(true)
		j.state.Store(state)
		if left := e.failLate([]*job[*toyTx]{j}, nil); len(left) > 0 {
			t.Errorf("state %d: not late", state)
		}
		if got := j.state.Load() == finished; got != answered {
			t.Errorf("state %d: answered %v", state, got)
		}
		if !answered {
			e.queue.end(j)
		}
	}
}

// Another server's batches hold a row, and their COMMITs are slow, as with a distant standby. A batch waits for the row
// three times, each time for as long as four COMMITs, before it sets commands aside. Setting them aside earlier would
// fail commands with short deadlines.
func TestABatchWaitsForTheCommitsOfAnotherServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	e.pace.average.Store(int64(400 * time.Millisecond))
	end := w.holder("select from toy_counters where id = 'c0' for update")
	call := e.start(within(t, 30*time.Second), submission(add("c0", 1)))
	eventually(t, "the batch waits", func() bool {
		return w.int("select count(*) from pg_stat_activity where wait_event_type = 'Lock' "+
			"and datname = current_database()") == 1
	})
	// 0.8 s while it is optimistic and 3 times 1.6 s. One of these waits, or three of 0.8 s, would not do.
	time.AfterFunc(3600*time.Millisecond, end)
	if a := <-call; a.err != nil {
		t.Error(a.err)
	}
	if n := e.metric(t, "lock_waits_total"); n > 0 {
		t.Errorf("%v commands were set aside", n)
	}
}
