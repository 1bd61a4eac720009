package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func patient(c *Config[*toyTx]) { c.LockTimeout = 10 * time.Second }

// The first batch drains the counter. A second one that looked up names before it locked the row would find neither the
// name nor the money, and be refused.
func TestDuplicateRacingFromAnotherProcessIsReplayed(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"key", "name"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.books = newLockingToyTx
			pass, open := w.gate()
			first, second := w.engine(patient), w.engine(patient)
			call := func(gated bool) Submission[*toyTx] {
				c := add("c0", -1_000_000)
				if gated {
					c.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
				}
				if by == "name" {
					return submission(c.named("x"))
				}
				return keyed("x", c)
			}
			a := first.start(within(t, 20*time.Second), call(true))
			w.waiting(1)
			b := second.start(within(t, 20*time.Second), call(false))
			w.waiting(2)
			open()
			if got := <-a; got.err != nil || got.out.Replayed || got.out.Existed {
				t.Errorf("the first: %+v", got)
			}
			got := <-b
			if got.err != nil || got.out.Replayed != (by == "key") || got.out.Existed != (by == "name") {
				t.Errorf("the second: %+v", got)
			}
			if by == "key" && string(got.out.Recorded) != "0" {
				t.Errorf("replayed %q", got.out.Recorded)
			}
			if n := w.int("select count(*) from toy_log"); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

func TestRefusedCommandTakesNoName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	refused := add("c0", 1).named("x")
	refused.onApply = func(*toyTx) error { return toyEmpty.New("after all changes") }
	r := e.DoAll(within(t, 10*time.Second), []Submission[*toyTx]{
		submission(refused), submission(add("c0", -5).named("x")), submission(add("c0", -7).named("x")),
	})
	if !fault.Is(r[0].Err, toyEmpty) {
		t.Errorf("first: %v", r[0].Err)
	}
	if r[1].Err != nil || r[1].Outcome.Existed || r[1].Outcome.Answer != int64(999_995) {
		t.Errorf("second: %+v", r[1])
	}
	if r[2].Err != nil || !r[2].Outcome.Existed || r[2].Outcome.Answer != int64(999_995) {
		t.Errorf("third: %+v", r[2])
	}
	if w.value("c0") != 999_995 {
		t.Errorf("value %d", w.value("c0"))
	}
}

// All processes insert the same names or keys concurrently, submitted in different orders.
func TestCollidingNamesAndKeysNeverDeadlock(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"name", "key"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			engines := []*toyEngine{w.engine(patient), w.engine(patient), w.engine(patient), w.engine(patient)}
			const size = 150
			// Slow inserts, so that they run at the same time.
			w.exec(`create function toy_slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.001);
				return new; end $$;
				create trigger toy_slow before insert on toy_names for each row execute function toy_slow();
				create trigger toy_slow before insert on commit_keys for each row execute function toy_slow()`)
			pass, open := w.gate()
			done := make(chan map[string]int, 1)
			go func() {
				done <- each(len(engines), func(i int) error {
					var submissions []Submission[*toyTx]
					for _, n := range rand.Perm(size) {
						c := &toyAdd{tenant: 1, onApply: func(tx *toyTx) error { tx.onFlush = pass; return nil }}
						call := submission(c)
						if what == "key" {
							call = keyed(fmt.Sprint(n), c)
						} else {
							c.name = fmt.Sprint(n)
						}
						call.Rows = 1
						submissions = append(submissions, call)
					}
					for _, r := range engines[i].DoAll(within(t, 60*time.Second), submissions) {
						if r.Err != nil {
							return r.Err
						}
					}
					return nil
				})
			}()
			w.waiting(int64(len(engines))) // all are about to insert
			open()
			got := <-done
			wantReasons(t, got, "map[ok:4]")
			races := 0.0
			for _, e := range engines {
				if n := e.metric(t, "deadlocks_total"); n != 0 {
					t.Errorf("%v deadlocks", n)
				}
				races += pgtest.Counter(t, e.reg, pgtest.FailedAttempts) + e.metric(t, "attempts_total/conflicted")
			}
			if races == 0 {
				t.Error("no race took place, so the test checks nothing")
			}
			if n := w.int("select (select count(*) from toy_names) + (select count(*) from commit_keys)"); n != size {
				t.Errorf("%d rows", n)
			}
		})
	}
}

func TestThousandCallersOfOneKeyHaveOneEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	engines := []*toyEngine{w.engine(), w.engine()}
	got := each(1000, func(i int) error {
		out, err := engines[i%2].Do(within(t, 30*time.Second), keyed("k", add("c0", 1)))
		if err != nil {
			return err
		}
		if text := fmt.Sprintf("%s%v", out.Recorded, out.Answer); text != "1000001<nil>" && text != "1000001" {
			return fmt.Errorf("answer %s", text)
		}
		return nil
	})
	wantReasons(t, got, "map[ok:1000]")
	if n := w.int("select count(*) from commit_keys"); n != 1 || w.value("c0") != 1_000_001 {
		t.Errorf("%d keys, value %d", n, w.value("c0"))
	}
	if n := w.int("select count(*) from commit_batches"); n != 1 {
		t.Errorf("%d batches wrote", n)
	}
	first := engines[0].metric(t, "keys_total") + engines[1].metric(t, "keys_total")
	if first != 1000 {
		t.Errorf("%v outcomes counted", first)
	}
}

func TestReplayAnswersAllParkedCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if _, err := w.engine().Do(within(t, 10*time.Second), keyed("k", add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	var submissions []Submission[*toyTx]
	for range 200 {
		submissions = append(submissions, keyed("k", add("c0", 1)))
	}
	for _, r := range e.DoAll(within(t, 10*time.Second), submissions) {
		if r.Err != nil || !r.Outcome.Replayed || string(r.Outcome.Recorded) != "1000001" {
			t.Fatalf("%+v", r)
		}
	}
	if n := sampleCount(t, e, "batch_commands"); n != 1 {
		t.Errorf("%d batches, want 1", n)
	}
}

func sampleCount(t *testing.T, e *toyEngine, name string) uint64 {
	t.Helper()
	families, err := e.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ledgerd_commit_"+name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}

func TestParkedCallsRunInTurnIfNothingWasRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(func(c *Config[*toyTx]) { c.Writers = 1 })
	runs := 0 // accessed by the only writer
	got := each(20, func(int) error {
		c := add("c0", 1)
		c.onApply = func(*toyTx) error {
			if runs++; runs < 10 {
				return toyStale.New("read again")
			}
			return nil
		}
		_, err := e.Do(within(t, 20*time.Second), keyed("k", c))
		return err
	})
	wantReasons(t, got, "map[TOY_STALE:9 ok:11]")
	if w.value("c0") != 1_000_001 {
		t.Errorf("value %d", w.value("c0"))
	}
}

func TestCancelledFollowerBlocksNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	pass, open := w.gate()
	e := w.engine(patient)
	gated := add("c0", 1)
	gated.onApply = func(tx *toyTx) error { tx.onFlush = pass; return toyStale.New("not recorded") }
	first := e.start(within(t, 20*time.Second), keyed("k", gated))
	w.waiting(1)
	ctx, cancel := context.WithCancel(context.Background())
	left := e.start(ctx, keyed("k", add("c0", 10)))
	others := make([]<-chan answer, 3)
	eventually(t, "the second follows", func() bool { return followersOf(e, "k") == 1 })
	for i := range others {
		others[i] = e.start(within(t, 20*time.Second), keyed("k", add("c0", 100)))
	}
	eventually(t, "all follow", func() bool { return followersOf(e, "k") == 4 })
	cancel()
	if a := <-left; !fault.Is(a.err, fault.NotRun) {
		t.Errorf("cancelled call: %v", a.err)
	}
	open()
	if a := <-first; !fault.Is(a.err, toyStale) {
		t.Errorf("first: %v", a.err)
	}
	for _, s := range others {
		if a := <-s; a.err != nil {
			t.Errorf("follower: %v", a.err)
		}
	}
	if w.value("c0") != 1_000_100 {
		t.Errorf("value %d", w.value("c0"))
	}
}

func followersOf(e *toyEngine, key string) int {
	e.inflight.mu.Lock()
	defer e.inflight.mu.Unlock()
	for k, j := range e.inflight.jobs {
		if k.key == key {
			return len(j.followers)
		}
	}
	return 0
}

func TestKeyWithOtherContentIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	if _, err := e.Do(within(t, 10*time.Second), keyed("k", add("c0", 1))); err != nil {
		t.Fatal(err)
	}
	other := keyed("k", add("c0", 2))
	other.Key.Fingerprint[3] = 1
	if _, err := e.Do(within(t, 10*time.Second), other); !fault.Is(err, KeyReused) {
		t.Error(err)
	}
}

func TestRefusalIsRecordedAndReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	for i := range 2 {
		call := keyed("k", add("c0", -2_000_000))
		call.RequestID = fmt.Sprint("r", i)
		out, err := e.Do(within(t, 10*time.Second), call)
		f := fault.Of(err)
		if !fault.Is(err, toyEmpty) || f.Metadata["n"] != "1000000" || f.RequestID != "r0" || out.Replayed != (i == 1) {
			t.Errorf("call %d: %+v, %v", i, out, err)
		}
		w.exec("update toy_counters set n = 9000000")
	}
}

func (w *world) expiredKey(key string) {
	w.exec(`insert into commit_keys (tenant_id, principal, operation, key, refused, fingerprint, answer, request_id,
		created_at, expires_at)
		values (1, 'p', 'toy.add', $1, false, $2, 'old', 'r-old', now() - interval '2 h', now() - interval
		'1 h')`, key, make([]byte, 17))
}

// Both processes read the expired row before either renews it.
func TestExpiredKeyIsRenewedOnceByRacingProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.expiredKey("k")
	pass, open := w.gate()
	engines := []*toyEngine{w.engine(patient), w.engine(patient)}
	var done [2]<-chan answer
	for i, e := range engines {
		c := add(fmt.Sprint("c", i), 1)
		c.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
		done[i] = e.start(within(t, 20*time.Second), keyed("k", c))
	}
	w.waiting(2)
	open()
	replayed := 0
	for _, d := range done {
		a := <-d
		if a.err != nil {
			t.Fatal(a.err)
		}
		if a.out.Replayed {
			replayed++
			if string(a.out.Recorded) != "1000001" {
				t.Errorf("replayed %q", a.out.Recorded)
			}
		}
	}
	if n := w.int("select count(*) from toy_log"); n != 1 || replayed != 1 {
		t.Errorf("%d effects, %d replayed", n, replayed)
	}
	if n := w.int("select count(*) from commit_keys where expires_at > now() and request_id = 'r'"); n != 1 {
		t.Errorf("%d renewed keys", n)
	}
}

func TestKeyCleanerSkipsLockedAndUnexpiredRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for _, life := range []string{"-1 h", "1 h"} {
		w.exec(`insert into commit_keys
			select 1, 'p', 'toy.add', $1::text || i, false, $2, '', 'r', now(), now() + $1::interval
			from generate_series(1, 2500) i`, life, make([]byte, 17))
	}
	end := w.holder("select from commit_keys where key in ('-1 h7', '-1 h8') for no key update")
	keys, c := Keys(), clean.Cleaner{Pool: pgtest.Pool(t, w.dsn), Metrics: clean.NewMetrics(nil)}
	n, err := c.Clean(within(t, 10*time.Second), &keys)
	if err != nil || n != 2498 {
		t.Errorf("deleted %d, %v", n, err)
	}
	end()
	if n, err = c.Clean(within(t, 10*time.Second), &keys); err != nil || n != 2 {
		t.Errorf("second run: deleted %d, %v", n, err)
	}
	if n := w.int("select count(*) from commit_keys"); n != 2500 {
		t.Errorf("%d keys are left", n)
	}
}

func TestOutcomesAreCountedByTheHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine()
	call := func(key, content string, n int64, life time.Duration) {
		c := add("c0", n)
		c.name = key + content
		x := submission(c)
		x.Key = &Key{Principal: "p", Operation: "toy.add", Key: key, Life: life,
			Fingerprint: append([]byte(content), make([]byte, FingerprintSize-len(content))...)}
		x.Encode = func(any) ([]byte, error) { return []byte("answer"), nil }
		_, _ = e.Do(within(t, 10*time.Second), x)
	}
	call("a", "1", 1, time.Hour)
	call("a", "1", 1, time.Hour)
	call("a", "1", 1, time.Hour)
	call("a", "2", 1, time.Hour)
	call("b", "1", -1_000_000_000, time.Hour) // more than there is
	w.exec("update commit_keys set expires_at = now() - interval '1 s' where key = 'a'")
	call("a", "3", 1, time.Hour)
	saved := func() string {
		t.Helper()
		if err := e.SaveCounts(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		var s string
		if err := w.super.QueryRow(t.Context(), `select string_agg(concat_ws(' ', tenant_id, operation, outcome, n),
			', ' order by outcome)
			from (select tenant_id, operation, outcome, sum(count) as n from commit_counts
			group by 1, 2, 3) x`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := "1 toy.add expired 1, 1 toy.add first 1, 1 toy.add mismatch 1, 1 toy.add refused 1, 1 toy.add replayed 2"
	if got := saved(); got != want {
		t.Errorf("counted %s", got)
	}
	call("a", "3", 1, time.Hour)
	if got := saved(); got != strings.Replace(want, "replayed 2", "replayed 3", 1) {
		t.Errorf("after another replay: %s", got)
	}
	// Counts that cannot be saved are kept for the next call.
	w.exec("revoke insert on commit_counts from ledgerd_app")
	call("c", "1", 1, time.Hour)
	if err := e.SaveCounts(within(t, 10*time.Second)); err == nil {
		t.Error("counts were saved without the privilege")
	}
	w.exec("grant insert on commit_counts to ledgerd_app")
	if got := saved(); !strings.Contains(got, "first 2") {
		t.Errorf("after the grant: %s", got)
	}
	w.exec("update commit_counts set hour = hour - interval '91 days'")
	old, c := Counts(), clean.Cleaner{Pool: pgtest.Pool(t, w.dsn), Metrics: clean.NewMetrics(nil)}
	if n, err := c.Clean(within(t, 10*time.Second), &old); n != 5 || err != nil {
		t.Errorf("deleted %d old counts, %v", n, err)
	}
}

// The submissions of one call take effect in their order, even though two writers share them.
func TestSubmissionsOfACallRunInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(patient, func(c *Config[*toyTx]) { c.Limits = Limits{BatchRows: 30, Rows: 100_000, Bytes: 1 << 30} })
	submissions := make([]Submission[*toyTx], 3000)
	for i := range submissions {
		c := add("c0", 1)
		c.name = fmt.Sprint(i)
		if i%60 == 0 {
			c.onNeed = func(*toyTx) { spin(300 * time.Microsecond) } // the load of this batch is slow
		}
		submissions[i] = submission(c)
		submissions[i].Rows = 1
	}
	for i, r := range e.DoAll(within(t, 60*time.Second), submissions) {
		if r.Err != nil {
			t.Fatal(i, r.Err)
		}
	}
	if n := w.int("select count(*) from toy_names where n <> 1000001 + name::bigint"); n != 0 {
		t.Errorf("%d of 3,000 ran out of order", n)
	}
}

// spin keeps the goroutine busy, without a timer.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}
