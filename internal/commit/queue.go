package commit

import (
	"sync"
	"time"
)

// Limits of what the engine holds, waiting or running. A tenant may hold half of it.
type Limits struct {
	BatchRows int // rows of small commands in one batch
	Rows      int
	Bytes     int
}

// queue counts all jobs in the engine, holds those that wait, first in first out a tenant, and hands
// out batches by deficit round robin (Shreedhar and Varghese, 1995), counted in rows, so that a
// tenant that floods delays only itself.
type queue[T any] struct {
	limits  Limits
	writers int

	mu       sync.Mutex
	ready    sync.Cond
	tenants  map[int32]*lane[T]
	ring     []*lane[T] // tenants with waiting jobs, the next one first
	jobs     int        // in the engine, from admit to end; so are rows and bytes
	rows     int
	bytes    int
	bigOut   bool  // a command that runs alone is with a writer: one at a time
	allOut   int64 // ticket of the batch of all that waited which a writer has, and for which the others wait; 0: none
	closed   bool
	tickets  int64                 // batches handed out
	culprits map[int32][]time.Time // when a tenant's commands had to be cut out of batches
}

type lane[T any] struct {
	tenant  int32
	waiting []*job[T]
	queued  bool // it is in the ring
	jobs    int  // in the engine; so are rows and bytes
	rows    int
	bytes   int
	deficit int
}

// quantum is what a tenant may put into a batch before the next one's turn, in rows.
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

// admit counts jobs of one tenant in, all or none. Each is counted out by end.
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
	switch { // size first: a retry of a call that is too large never helps
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

// end releases the job's share of the limits, after its answer or when its caller left before it ran.
func (q *queue[T]) end(j *job[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := j.lane
	q.count(l, -1, -j.Rows, -j.Bytes)
	if len(l.waiting) > 2*l.jobs+64 { // most of what waits was abandoned
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

// forget drops a lane with nothing in it, unless it is in the ring: then its turn drops it.
func (q *queue[T]) forget(l *lane[T]) {
	if l.jobs == 0 && !l.queued && q.tenants[l.tenant] == l {
		delete(q.tenants, l.tenant)
	}
}

// put lets admitted jobs of one tenant wait for a batch.
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
	if q.allOut == 0 { // else its end wakes all
		q.ready.Signal()
	}
}

// runsAlone tells whether a job gets a batch of its own.
func (q *queue[T]) runsAlone(j *job[T]) bool { return j.DryRun || j.Rows > q.limits.BatchRows }

// prefix tells how many of the jobs, from the first, may make a batch.
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

// await waits until there is work, and reports false when the queue is closed and every job has ended.
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
	if q.allOut != 0 {
		return false
	}
	for _, l := range q.ring {
		if j := l.head(); j != nil && !(q.bigOut && q.runsAlone(j)) {
			return true
		}
	}
	return false
}

// allPatience bounds the wait for a batch of all that waited: its connection may be silent.
const allPatience = time.Second

// take hands out a batch with its ticket, from 1; nil if there is none to hand out now. all ignores the writer's
// share, and no other batch is handed out until this one is done. big: the batch is one command that runs alone.
// Call done after the batch.
func (q *queue[T]) take(all bool) (batch []*job[T], ticket int64, big bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.hasWork() {
		return nil, 0, false
	}
	batch, big = q.gather(all)
	if len(batch) == 0 {
		return nil, 0, false
	}
	q.tickets++
	if ticket = q.tickets; all && !big && !q.isolated(batch[0].Tenant, time.Now()) {
		q.allOut = ticket
		time.AfterFunc(allPatience, func() { q.done(ticket, false) })
	} else if len(q.ring) > 0 {
		q.ready.Signal()
	}
	return batch, ticket, big
}

// open lets other batches be taken beside one of all that waited: that one is taken apart, which may take long.
func (q *queue[T]) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.allOut != 0 {
		q.allOut = 0
		q.ready.Broadcast()
	}
}

// done ends the batch of a ticket, for take.
func (q *queue[T]) done(ticket int64, big bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.allOut == ticket
	if all {
		q.allOut = 0
	}
	if big {
		q.bigOut = false
	}
	if all || big {
		q.ready.Broadcast()
	}
}

// draft is a batch that is being gathered.
type draft[T any] struct {
	jobs  []*job[T]
	rows  int
	share int
	full  bool
}

// leastShare is what a writer takes without looking at the others, in rows: splitting less gains
// nothing, as every batch costs something by itself.
const leastShare = 16

// share is how many rows one of the writers takes: an equal part of all that is waiting or running.
// If each took all that it found, callers who ask again when they have their answers would all
// come back with one batch and go into the next one together, and the other writers would have none.
// While batches do not overlap the other writer would only wait: then one takes all, and the other none.
func (q *queue[T]) share(all bool) int {
	if all {
		return q.limits.BatchRows
	}
	return min(q.limits.BatchRows, max(leastShare, (q.rows+q.writers-1)/q.writers))
}

// gather makes a batch of what is there now. A lane whose next job has to run alone begins the next
// batch, so that it cannot be passed over for ever.
func (q *queue[T]) gather(all bool) (batch []*job[T], big bool) {
	d := draft[T]{share: q.share(all)}
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
		big = q.runsAlone(j)
		solo := big || q.isolated(l.tenant, now)
		if big && q.bigOut || solo && len(d.jobs) > 0 {
			idle++
			l.deficit += min(quantum, max(0, -l.deficit)) // repay a negative deficit, but accumulate no credit
			if next == nil && !(big && q.bigOut) {
				next = l
			}
			continue
		}
		idle = 0 // it gets something, or saves up for it
		if l.deficit < j.Rows {
			l.deficit += quantum
		}
		q.serve(l, &d)
		if d.full && len(l.waiting) > 0 && l.deficit >= l.waiting[0].Rows {
			q.moveToFront(l) // its turn is not over
		}
		if len(d.jobs) > 0 { // by what was taken: a job may have been abandoned since the look at it
			if big = q.runsAlone(d.jobs[0]); big || solo {
				q.bigOut = q.bigOut || big
				return d.jobs, big
			}
		}
	}
	if next != nil {
		q.moveToFront(next)
	}
	return d.jobs, false
}

// serve moves from a lane into the batch what its turn and the batch allow. A command that runs alone
// is paid for afterwards.
func (q *queue[T]) serve(l *lane[T], d *draft[T]) {
	for !d.full {
		j := l.head()
		if j == nil {
			return
		}
		big := q.runsAlone(j)
		switch {
		case big && (len(d.jobs) > 0 || l.deficit <= 0 || q.bigOut), !big && l.deficit < j.Rows:
			return
		case len(d.jobs) > 0 && !q.fits(j, d):
			d.full = true
			return
		}
		l.pop()
		d.jobs = append(d.jobs, j)
		d.rows += j.Rows
		d.full = d.rows >= q.limits.BatchRows
		l.deficit -= j.Rows
		if big {
			return
		}
	}
}

// fits tells whether a batch that is begun takes a job: up to its share, and what belongs to one call
// as far as possible together.
func (q *queue[T]) fits(j *job[T], d *draft[T]) bool {
	rows := d.rows + j.Rows
	return rows <= d.share || rows <= q.limits.BatchRows && j.wait == d.jobs[len(d.jobs)-1].wait
}

// moveToFront puts a lane of the ring to its beginning.
func (q *queue[T]) moveToFront(l *lane[T]) {
	for i, x := range q.ring {
		if x == l {
			copy(q.ring[1:i+1], q.ring[:i])
			q.ring[0] = l
			return
		}
	}
}

// head is the first job whose caller still waits, or nil.
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

// close lets nothing more in.
func (q *queue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.ready.Broadcast()
	q.mu.Unlock()
}

// More than maxCulprits commands of a tenant cut out of batches within culpritMemory, and its
// commands go into batches of their own.
const (
	maxCulprits   = 8
	culpritMemory = time.Minute
)

// culprit notes that a tenant's command had to be cut out of a batch.
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

// depth is what is in the engine, in rows.
func (q *queue[T]) depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows
}
