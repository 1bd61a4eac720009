package commit

import (
	"sync"
	"time"
)

// Limits bound the jobs in the engine, by their estimates (Submission.Rows and Bytes). One tenant may have half of Rows
// and Bytes.
type Limits struct {
	BatchRows int // in one batch; half as many while several tenants have jobs; a larger command runs alone
	Rows      int // of all queued and running jobs
	Bytes     int // of all queued and running jobs
}

// queue counts all jobs in the engine and queues waiting ones, first in first out within a tenant. It hands out batches
// by deficit round robin (Shreedhar and Varghese, 1995), counted in rows, so that a flood delays only its own tenant.
type queue[T any] struct {
	limits  Limits
	writers int

	mu           sync.Mutex
	ready        sync.Cond
	tenants      map[int32]*lane[T]
	ring         []*lane[T] // tenants with waiting jobs, the next one first
	jobs         int        // in the engine, from admit to end; also rows and bytes
	rows         int
	bytes        int
	aloneRunning bool  // a writer has a command that runs alone; at most one at a time
	exclusive    int64 // sequence number of the running exclusive batch (see take); 0: none
	closed       bool
	taken        int64                 // batches handed out
	culprits     map[int32][]time.Time // times at which the database rejected a command of the tenant
}

type lane[T any] struct {
	tenant  int32
	waiting []*job[T]
	queued  bool // in the ring
	jobs    int  // in the engine; also rows and bytes
	rows    int
	bytes   int
	deficit int
}

// quantum is the number of rows that a tenant may add to a batch per turn.
const quantum = 64

func newQueue[T any](limits Limits, writers int) *queue[T] {
	q := &queue[T]{limits: limits, writers: writers, tenants: make(map[int32]*lane[T]),
		culprits: make(map[int32][]time.Time)}
	q.ready.L = &q.mu
	return q
}

type admission int

const (
	admitted admission = iota
	refusedBusy
	refusedLarge
	refusedClosed
)

// admit counts jobs of one tenant against the limits, all or none. end releases each of them.
func (q *queue[T]) admit(jobs []*job[T]) admission {
	rows, bytes := 0, 0
	for _, j := range jobs {
		rows += j.Rows
		bytes += j.Bytes
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return refusedClosed
	}
	l := q.tenants[jobs[0].Tenant]
	if l == nil {
		l = &lane[T]{tenant: jobs[0].Tenant}
	}
	switch { // size first: a retry never helps a call that is too large
	case rows > q.limits.Rows/2 || bytes > q.limits.Bytes/2:
		return refusedLarge
	case q.rows+rows > q.limits.Rows || q.bytes+bytes > q.limits.Bytes ||
		l.rows+rows > q.limits.Rows/2 || l.bytes+bytes > q.limits.Bytes/2:
		return refusedBusy
	}
	q.tenants[l.tenant] = l
	for _, j := range jobs {
		j.lane = l
	}
	q.count(l, len(jobs), rows, bytes)
	return admitted
}

// end releases the job's share of the limits, after its answer or if it was abandoned.
func (q *queue[T]) end(j *job[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := j.lane
	q.count(l, -1, -j.Rows, -j.Bytes)
	if len(l.waiting) > 2*l.jobs+64 { // most waiting jobs were abandoned
		l.waiting = remaining(l.waiting)
	}
	q.forget(l)
	if q.closed && q.jobs == 0 {
		q.ready.Broadcast()
	}
}

func (q *queue[T]) count(l *lane[T], jobs, rows, bytes int) {
	l.jobs, q.jobs = l.jobs+jobs, q.jobs+jobs
	l.rows, q.rows = l.rows+rows, q.rows+rows
	l.bytes, q.bytes = l.bytes+bytes, q.bytes+bytes
}

// forget drops an empty lane. A lane in the ring is dropped at its next turn.
func (q *queue[T]) forget(l *lane[T]) {
	if l.jobs == 0 && !l.queued && q.tenants[l.tenant] == l {
		delete(q.tenants, l.tenant)
	}
}

// put queues admitted jobs of one tenant.
func (q *queue[T]) put(jobs []*job[T]) {
	if len(jobs) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := jobs[0].lane
	if !l.queued {
		l.queued = true
		q.ring = append(q.ring, l)
	}
	l.waiting = append(l.waiting, jobs...)
	if q.exclusive == 0 { // otherwise the end of the exclusive batch wakes all writers
		q.ready.Signal()
	}
}

// runsAlone reports whether a job needs a batch of its own.
func (q *queue[T]) runsAlone(j *job[T]) bool { return j.DryRun || j.Rows > q.limits.BatchRows }

// prefix returns how many of the jobs, from the first, fit into one batch.
func (q *queue[T]) prefix(jobs []*job[T]) int {
	if q.runsAlone(jobs[0]) {
		return 1
	}
	n, rows := 1, jobs[0].Rows
	for n < len(jobs) && !q.runsAlone(jobs[n]) && rows+jobs[n].Rows <= q.limits.BatchRows {
		rows += jobs[n].Rows
		n++
	}
	return n
}

// await waits for work. It returns false if the queue is closed and every job has ended.
func (q *queue[T]) await() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.hasWork() {
		if q.closed && q.jobs == 0 {
			return false
		}
		q.ready.Wait()
	}
	return true
}

// hasWork reports whether a batch can be gathered.
func (q *queue[T]) hasWork() bool {
	if q.exclusive != 0 {
		return false
	}
	for _, l := range q.ring {
		if j := l.head(); j != nil && !(q.aloneRunning && q.runsAlone(j)) {
			return true
		}
	}
	return false
}

// maxExclusiveWait bounds the wait for an exclusive batch: its connection may be silent.
const maxExclusiveWait = time.Second

// take hands out a batch and its sequence number, from 1, or nil if there is none. An exclusive batch ignores the
// writer's share and takes all waiting jobs that fit. No other batch is handed out until it is done, or has run for
// maxExclusiveWait, or is bisected. alone: the batch is one command that runs alone. Call done after the batch.
func (q *queue[T]) take(exclusive bool) (batch []*job[T], seq int64, alone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.hasWork() {
		return nil, 0, false
	}
	batch, alone = q.gather(exclusive)
	if len(batch) == 0 {
		return nil, 0, false
	}
	q.taken++
	if seq = q.taken; exclusive && !alone && !q.isolated(batch[0].Tenant, time.Now()) {
		q.exclusive = seq
		time.AfterFunc(maxExclusiveWait, func() { q.done(seq, false) })
	} else if len(q.ring) > 0 {
		q.ready.Signal()
	}
	return batch, seq, alone
}

// endExclusive lets other batches run beside the batch with a sequence number, if that is exclusive.
func (q *queue[T]) endExclusive(seq int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq != 0 && q.exclusive == seq {
		q.exclusive = 0
		q.ready.Broadcast()
	}
}

// done ends the batch with a sequence number.
func (q *queue[T]) done(seq int64, alone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	exclusive := q.exclusive == seq
	if exclusive {
		q.exclusive = 0
	}
	if alone {
		q.aloneRunning = false
	}
	if exclusive || alone {
		q.ready.Broadcast()
	}
}

// draft is a batch while it is gathered.
type draft[T any] struct {
	jobs  []*job[T]
	rows  int
	share int
	full  bool
}

// minShare is the least share of a writer, in rows. Splitting fewer rows gains nothing, because every batch has a fixed
// cost.
const minShare = 16

// share returns how many rows a writer takes: an equal part of all waiting and running rows. If each writer took all
// waiting rows, callers that call again after their answers would end up in one writer's batch, and leave the other
// writers idle. An exclusive batch has no share: while batches do not overlap, the other writer would only wait.
func (q *queue[T]) share(exclusive bool) int {
	if exclusive {
		return q.batchRows()
	}
	return min(q.batchRows(), max(minShare, (q.rows+q.writers-1)/q.writers))
}

// batchRows bounds a batch. While several tenants have jobs, batches are half as large, so that a call waits half as
// long for the batch of another tenant.
func (q *queue[T]) batchRows() int {
	if len(q.tenants) > 1 {
		return q.limits.BatchRows / 2
	}
	return q.limits.BatchRows
}

// gather makes a batch from the waiting jobs. A lane whose next job must run alone goes first in the next batch, so
// that it does not starve.
func (q *queue[T]) gather(exclusive bool) (batch []*job[T], alone bool) {
	d := draft[T]{share: q.share(exclusive)}
	var next *lane[T]
	now := time.Now()
	for idle := 0; idle < len(q.ring) && !d.full; {
		l := q.ring[0]
		q.ring = q.ring[1:]
		j := l.head()
		if j == nil {
			l.queued, l.deficit = false, 0
			q.forget(l)
			continue
		}
		q.ring = append(q.ring, l)
		alone = q.runsAlone(j)
		solo := alone || q.isolated(l.tenant, now)
		if alone && q.aloneRunning || solo && len(d.jobs) > 0 {
			idle++
			l.deficit += min(quantum, max(0, -l.deficit)) // repay a negative deficit, but accumulate no credit
			if next == nil && !(alone && q.aloneRunning) {
				next = l
			}
			continue
		}
		idle = 0 // the lane adds jobs or earns credit for one
		if l.deficit < j.Rows {
			l.deficit += quantum
		}
		q.serve(l, &d)
		if d.full && len(l.waiting) > 0 && l.deficit >= l.waiting[0].Rows {
			q.moveToFront(l) // continue its turn in the next batch
		}
		if len(d.jobs) > 0 { // look at the job taken: j may have been abandoned meanwhile
			if alone = q.runsAlone(d.jobs[0]); alone || solo {
				q.aloneRunning = q.aloneRunning || alone
				return d.jobs, alone
			}
		}
	}
	if next != nil {
		q.moveToFront(next)
	}
	return d.jobs, false
}

// serve moves jobs from a lane into the batch as far as its credit and the batch allow. A command that runs alone may
// overdraw the credit.
func (q *queue[T]) serve(l *lane[T], d *draft[T]) {
	for !d.full {
		j := l.head()
		if j == nil {
			return
		}
		alone := q.runsAlone(j)
		switch {
		case alone && (len(d.jobs) > 0 || l.deficit <= 0 || q.aloneRunning), !alone && l.deficit < j.Rows:
			return
		case len(d.jobs) > 0 && !q.fits(j, d):
			d.full = true
			return
		}
		l.pop()
		d.jobs = append(d.jobs, j)
		d.rows += j.Rows
		d.full = d.rows >= q.batchRows()
		l.deficit -= j.Rows
		if alone {
			return
		}
	}
}

// fits reports whether a non-empty batch has room for a job: up to its share, or beyond it for jobs of the same call,
// to keep a call in one batch.
func (q *queue[T]) fits(j *job[T], d *draft[T]) bool {
	rows := d.rows + j.Rows
	return rows <= d.share || rows <= q.batchRows() && j.wait == d.jobs[len(d.jobs)-1].wait
}

// moveToFront moves a lane to the front of the ring.
func (q *queue[T]) moveToFront(l *lane[T]) {
	for i, x := range q.ring {
		if x == l {
			copy(q.ring[1:i+1], q.ring[:i])
			q.ring[0] = l
			return
		}
	}
}

// head returns the first job that is not abandoned, or nil.
func (l *lane[T]) head() *job[T] {
	for len(l.waiting) > 0 {
		if j := l.waiting[0]; j.state.Load() != abandoned {
			return j
		}
		l.pop()
	}
	return nil
}

func (l *lane[T]) pop() {
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
}

func (q *queue[T]) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// close refuses further jobs.
func (q *queue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.ready.Broadcast()
	q.mu.Unlock()
}

// A tenant with more than maxCulprits rejected commands within culpritMemory is isolated: it gets batches of its own.
const (
	maxCulprits   = 8
	culpritMemory = time.Minute
)

// culprit records that the database rejected a command of a tenant.
func (q *queue[T]) culprit(tenant int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for t, times := range q.culprits {
		if now.Sub(times[len(times)-1]) > culpritMemory {
			delete(q.culprits, t)
		}
	}
	times := append(q.culprits[tenant], now)
	q.culprits[tenant] = times[max(0, len(times)-maxCulprits-1):]
}

func (q *queue[T]) isolated(tenant int32, now time.Time) bool {
	times := q.culprits[tenant]
	return len(times) > maxCulprits && now.Sub(times[0]) <= culpritMemory
}

// depth returns the number of rows in the engine.
func (q *queue[T]) depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows
}
