package commit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func toyQueue() *queue[*toyTx] {
	return newQueue[*toyTx](Limits{BatchRows: 1000, Rows: 1_000_000, Bytes: 1 << 40}, 1)
}

func (q *queue[B]) fill(t *testing.T, tenant int32, n, rows int) []*job[B] {
	t.Helper()
	jobs := make([]*job[B], n)
	for i := range jobs {
		jobs[i] = &job[B]{Submission: Submission[B]{Tenant: tenant, Rows: rows, Bytes: 10}}
	}
	if a := q.admit(jobs); a != admitted {
		t.Fatalf("tenant %d: %d", tenant, a)
	}
	q.put(jobs)
	return jobs
}

// next gathers a batch without waiting, and ends its jobs.
func (q *queue[B]) next() (batch []*job[B], big bool) {
	q.mu.Lock()
	batch, big = q.gather(false)
	q.mu.Unlock()
	for _, j := range batch {
		q.end(j)
	}
	return batch, big
}

func rowsOf[B any](batch []*job[B], tenant int32) (rows int) {
	for _, j := range batch {
		if j.Tenant == tenant {
			rows += j.Rows
		}
	}
	return rows
}

func TestFloodDelaysOnlyItsTenant(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.fill(t, 1, 100_000, 1)
	if b, _ := q.next(); len(b) != 1000 {
		t.Errorf("a lone tenant gets %d rows", len(b))
	}
	q.fill(t, 2, 1, 4)
	if b, _ := q.next(); rowsOf(b, 2) != 4 || rowsOf(b, 1) != 496 {
		t.Errorf("the command of tenant 2 is not in the next batch: %d and %d rows", rowsOf(b, 1), rowsOf(b, 2))
	}
	q.fill(t, 3, 5000, 2)
	q.fill(t, 4, 5000, 10)
	got := map[int32]int{}
	for range 10 {
		b, _ := q.next()
		for _, j := range b {
			got[j.Tenant] += j.Rows
		}
	}
	for tenant, rows := range got {
		if rows < 1500 || rows > 1850 {
			t.Errorf("tenant %d got %d of 5,000 rows", tenant, rows)
		}
	}
}

func TestTenantKeepsItsOrder(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	want := map[int32][]*job[*toyTx]{}
	for range 300 {
		tenant := int32(rand.IntN(5))
		want[tenant] = append(want[tenant], q.fill(t, tenant, 1+rand.IntN(9), 1+rand.IntN(400))...)
	}
	for {
		b, big := q.next()
		if len(b) == 0 {
			break
		}
		if rows := 0; !big {
			for _, j := range b {
				rows += j.Rows
			}
			if rows > 1000 {
				t.Errorf("a batch of %d rows", rows)
			}
		}
		for _, j := range b {
			if want[j.Tenant][0] != j {
				t.Fatalf("tenant %d is served out of order", j.Tenant)
			}
			want[j.Tenant] = want[j.Tenant][1:]
		}
	}
	for tenant, left := range want {
		if len(left) > 0 {
			t.Errorf("tenant %d lost %d jobs", tenant, len(left))
		}
	}
	if len(q.tenants) != 0 || q.jobs != 0 || q.rows != 0 || q.bytes != 0 {
		t.Errorf("left: %d tenants, %d jobs, %d rows, %d bytes", len(q.tenants), q.jobs, q.rows, q.bytes)
	}
}

func TestBigCommandRunsAloneOneAtATimeAndInItsTurn(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	// The turns of the two floods divide a batch evenly, so the third lane would never be first.
	q.limits.BatchRows = 16 * quantum
	q.fill(t, 1, 50_000, 1)
	q.fill(t, 2, 2, 10_000)
	q.fill(t, 3, 50_000, 1)
	before := 0
	for {
		b, big := q.next()
		if big {
			if len(b) != 1 || rowsOf(b, 2) != 10_000 {
				t.Fatalf("a big batch of %d", len(b))
			}
			break
		}
		if before++; before > 3 {
			t.Fatal("the big command starves")
		}
	}
	q.fill(t, 4, 1, 10_000)
	for range 5 {
		if b, big := q.next(); big || len(b) != q.limits.BatchRows/2 {
			t.Fatalf("beside a running big command: big %v, %d jobs", big, len(b))
		}
	}
	q.done(0, true)
	for before = 0; before < 4; before++ {
		if b, big := q.next(); big {
			if b[0].Tenant != 4 {
				t.Error("the second big command of tenant 2 precedes the first of tenant 4")
			}
			break
		}
	}
	if q.done(0, true); before == 4 {
		t.Fatal("the other tenant's big command starves")
	}
	others := 0
	for {
		b, big := q.next()
		if big {
			break
		}
		if others += len(b); len(b) == 0 {
			t.Fatal("the second big command is lost")
		}
	}
	// The first one has overdrawn the credit: the two floods get 10,000 rows each, less the 5,000 taken meanwhile.
	if others < 10_000 || others > 25_000 {
		t.Errorf("the other tenants got %d rows before the second big command", others)
	}
}

func TestDryRunsRunAlone(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	for i := range 6 {
		j := &job[*toyTx]{Submission: Submission[*toyTx]{Tenant: 1, Rows: 1, DryRun: i%2 == 1}}
		q.admit([]*job[*toyTx]{j})
		q.put([]*job[*toyTx]{j})
	}
	for i := range 6 {
		b, big := q.next()
		if len(b) != 1 || b[0].DryRun != (i%2 == 1) || big != b[0].DryRun {
			t.Fatalf("batch %d: %d jobs, big %v", i, len(b), big)
		}
		if big {
			q.done(0, true)
		}
	}
}

func TestTenantWithManyCulpritsIsIsolated(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	for range maxCulprits + 1 {
		q.culprit(1)
	}
	q.fill(t, 1, 500, 1)
	q.fill(t, 2, 5000, 1)
	seen := 0
	for range 10 {
		b, _ := q.next()
		one, two := rowsOf(b, 1), rowsOf(b, 2)
		if one > 0 && two > 0 {
			t.Fatalf("%d and %d rows in one batch", one, two)
		}
		seen += one
	}
	if seen == 0 || len(b2(q)) == 0 {
		t.Errorf("the isolated tenant got %d rows", seen)
	}
	if q.isolated(1, time.Now().Add(culpritMemory+time.Second)) {
		t.Error("the isolation does not end")
	}
}

func b2(q *queue[*toyTx]) []*job[*toyTx] { b, _ := q.next(); return b }

func TestBusyAtTheLimitsLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	pass, open := w.gate()
	e := w.engine(patient, func(c *Config[*toyTx]) {
		c.Writers, c.Limits = 1, Limits{BatchRows: 10, Rows: 100, Bytes: 10_000}
	})
	gated := add("c0", 1)
	gated.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
	first := e.start(within(t, 20*time.Second), submission(gated))
	w.waiting(1)
	calls := make(chan map[string]int, 1)
	go func() {
		calls <- each(60, func(int) error { // 3 rows each; the tenant's limit is 50 rows
			_, err := e.Do(within(t, 20*time.Second), submission(add("c0", 1)))
			return err
		})
	}()
	eventually(t, "the tenant's share is full", func() bool { return e.metric(t, "busy_total") == 60-15 })
	for _, r := range e.DoAll(within(t, 20*time.Second),
		[]Submission[*toyTx]{submission(add("c0", 1)), submission(add("c0", 1))}) {
		if !fault.Is(r.Err, fault.Busy) {
			t.Error(r.Err)
		}
	}
	if n := e.metric(t, "busy_total"); n != 60-15+2 {
		t.Errorf("%v commands refused", n)
	}
	other := submission(&toyAdd{tenant: 2, name: "x"})
	other.Tenant = 2
	another := e.start(within(t, 20*time.Second), other)
	eventually(t, "the other tenant is admitted", func() bool { return e.queue.depth() == 17*3 })
	open()
	wantReasons(t, <-calls, "map[BUSY:45 ok:15]")
	if a, b := <-first, <-another; a.err != nil || b.err != nil {
		t.Error(a.err, b.err)
	}
	if w.value("c0") != 1_000_016 {
		t.Errorf("value %d", w.value("c0"))
	}
}

// During a long outage of the database, cancelled calls must not fill the queue.
func TestAbandonedJobsReleaseTheirShare(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	jobs := q.fill(t, 1, 10_000, 1)
	for _, j := range jobs[1:] {
		j.state.Store(abandoned)
		q.end(j)
	}
	if q.rows != 1 || len(q.tenants[1].waiting) > 100 {
		t.Errorf("%d rows are counted, %d jobs kept", q.rows, len(q.tenants[1].waiting))
	}
	if b, _ := q.next(); len(b) != 1 || b[0] != jobs[0] {
		t.Errorf("next batch: %d jobs", len(b))
	}
	if len(b2(q)) != 0 || len(q.tenants) != 0 {
		t.Error("the queue is not empty")
	}
	if q.close(); q.admit(jobs[:1]) != refusedClosed {
		t.Error("admitted after close")
	}
}

// call queues a call of n submissions.
func (q *queue[B]) call(n int) {
	w := newWaiter(n)
	jobs := make([]*job[B], n)
	for i := range jobs {
		jobs[i] = &job[B]{Submission: Submission[B]{Tenant: 1, Rows: 1}, wait: w}
	}
	q.admit(jobs)
	q.put(jobs)
}

// Callers that call again after their answers must not all end up in one writer's batch.
func TestWritersShareTheQueue(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.writers = 2
	take := func() []*job[*toyTx] {
		t.Helper()
		q.mu.Lock()
		defer q.mu.Unlock()
		b, _ := q.gather(false)
		return b
	}
	ask := func(n int) {
		for range n {
			q.call(1)
		}
	}
	answer := func(batch []*job[*toyTx]) {
		for _, j := range batch {
			q.end(j)
		}
		ask(len(batch))
	}
	ask(1)
	small := take()
	ask(99)
	for range 5 {
		large := take()
		answer(small)
		small = large
	}
	if n := len(small); n < 40 || n > 60 {
		t.Errorf("one batch has %d of 100 callers", n)
	}
	few := toyQueue()
	few.writers = 2
	few.fill(t, 1, minShare, 1)
	if b, _ := few.next(); len(b) != minShare {
		t.Errorf("%d rows are split after %d", minShare, len(b))
	}
}

func TestSubmissionsOfACallShareABatch(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.writers = 2
	for _, calls := range [][]int{{900}, {400, 400}} {
		for _, n := range calls {
			q.call(n)
		}
		for _, n := range calls {
			if b, _ := q.next(); len(b) != n {
				t.Errorf("calls of %v rows: a batch of %d", calls, len(b))
			}
		}
	}
}

// A lane whose turn is interrupted by a full batch continues its turn, and earns no credit.
func TestInterruptedTurnAccumulatesNoCredit(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.limits.BatchRows = quantum / 2
	q.fill(t, 1, 100_000, 1)
	for range 1000 {
		q.next()
	}
	q.fill(t, 2, 1000, 1)
	one, two := 0, 0
	for range 40 {
		b, _ := q.next()
		one, two = one+rowsOf(b, 1), two+rowsOf(b, 2)
	}
	if one != two {
		t.Errorf("tenant 1 got %d rows, tenant 2 %d", one, two)
	}
}

// A call larger than the tenant's share would get BUSY for ever.
func TestCallThatNeverFitsIsTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine(func(c *Config[*toyTx]) { c.Limits = Limits{BatchRows: 10, Rows: 100, Bytes: 10_000} })
	for _, c := range []struct {
		rows, bytes int
		want        string
	}{{50, 100, "ok"}, {51, 100, "COMMAND_TOO_LARGE"}, {1, 5000, "ok"}, {1, 5001, "COMMAND_TOO_LARGE"}} {
		call := submission(add("c0", 1))
		call.Rows, call.Bytes = c.rows, c.bytes
		if _, err := e.Do(within(t, 10*time.Second), call); reason(err) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// While batches do not overlap, one batch takes all waiting jobs. A second batch would only wait for the same rows.
func TestExclusiveBatchRunsAlone(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.writers = 2
	jobs := q.fill(t, 1, 100, 1)
	batch, seq, _ := q.take(true)
	if len(batch) != len(jobs) {
		t.Errorf("it takes %d of %d jobs", len(batch), len(jobs))
	}
	q.fill(t, 1, 10, 1)
	if batch, _, _ := q.take(true); batch != nil {
		t.Errorf("%d jobs are taken beside it", len(batch))
	}
	q.done(seq, false)
	if batch, _, _ := q.take(true); len(batch) != 10 {
		t.Errorf("%d jobs are taken after it", len(batch))
	}
}

// A writer waits only for maxExclusiveWait for an exclusive batch that hangs.
func TestWaitForAnExclusiveBatchIsBounded(t *testing.T) {
	t.Parallel()
	q := toyQueue()
	q.fill(t, 1, 100, 1)
	_, hanging, _ := q.take(true)
	q.fill(t, 1, 20, 1)
	woken := make(chan bool)
	go func() { woken <- q.await() }()
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		t.Fatal("the writer was not woken")
	}
	batch, _, _ := q.take(true)
	if len(batch) != 20 {
		t.Errorf("%d jobs are taken while it hangs", len(batch))
	}
	q.fill(t, 1, 5, 1)
	q.done(hanging, false)
	if batch, _, _ := q.take(true); batch != nil {
		t.Error("done of the hanging batch ends the next exclusive batch")
	}
}
