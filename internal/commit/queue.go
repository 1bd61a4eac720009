package commit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// job is a Work in the engine. state goes from waiting to claimed (its batch will run it, whatever
// its caller does) or to abandoned (its caller went away first: it never runs).
type job[B any] struct {
	Work[B]
	ctx      context.Context
	state    atomic.Int32
	wait     *waiter
	parked   []*job[B] // same key, behind this one; guarded by flights.mu
	give     time.Time // a lock wait is retried until then
	more     int       // times it asked for more rows
	out      Outcome
	err      error
	answer   []byte // what was recorded
	recorded bool
}

const (
	waiting int32 = iota
	claimed
	abandoned
)

// waiter counts jobs down and then wakes the one who waits for them.
type waiter struct {
	left atomic.Int32
	done chan struct{}
}

func newWaiter(n int) *waiter {
	w := &waiter{done: make(chan struct{})}
	w.left.Store(int32(n))
	return w
}

func (w *waiter) finish() {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}

// Limits of the queue. A tenant may fill half of what waits.
type Limits struct {
	BatchRows int // rows of small commands in one batch
	Rows      int // rows waiting
	Bytes     int // bytes waiting
}

// queue holds what waits, first in first out a tenant, and hands out batches by deficit round robin
// (Shreedhar and Varghese, 1995), counted in rows, so that a tenant that floods delays only itself.
type queue[B any] struct {
	limits Limits

	mu      sync.Mutex
	ready   sync.Cond
	tenants map[int32]*lane[B]
	ring    []*lane[B] // tenants with work, the next one first
	rows    int
	bytes   int
	bigOut  bool // a big command is with a writer: one at a time
	closed  bool
}

type lane[B any] struct {
	tenant   int32
	jobs     []*job[B]
	rows     int
	bytes    int
	deficit  int
	culprits []time.Time // when its commands had to be cut out of batches, for a minute
}

// quantum is what a tenant may put into a batch before the next one's turn, in rows.
const quantum = 64

func newQueue[B any](limits Limits) *queue[B] {
	q := &queue[B]{limits: limits, tenants: make(map[int32]*lane[B])}
	q.ready.L = &q.mu
	return q
}

type admission int

const (
	admitted admission = iota
	refusedBusy
	refusedClosed
)

// put adds jobs of one tenant, all or none. again: they were admitted before.
func (q *queue[B]) put(jobs []*job[B], again bool) admission {
	if len(jobs) == 0 {
		return admitted
	}
	rows, bytes := 0, 0
	for _, j := range jobs {
		rows += j.Rows
		bytes += j.Bytes
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed && !again {
		return refusedClosed
	}
	l := q.tenants[jobs[0].Tenant]
	if l == nil {
		l = &lane[B]{tenant: jobs[0].Tenant}
		q.tenants[l.tenant] = l
	}
	full := q.rows+rows > q.limits.Rows || q.bytes+bytes > q.limits.Bytes ||
		l.rows+rows > q.limits.Rows/2 || l.bytes+bytes > q.limits.Bytes/2
	if full && !again && q.rows > 0 {
		return refusedBusy
	}
	if len(l.jobs) == 0 {
		q.ring = append(q.ring, l)
	}
	l.jobs = append(l.jobs, jobs...)
	l.rows, q.rows = l.rows+rows, q.rows+rows
	l.bytes, q.bytes = l.bytes+bytes, q.bytes+bytes
	q.ready.Signal()
	return admitted
}

// alone tells whether a job gets a batch of its own.
func (q *queue[B]) alone(j *job[B]) bool { return j.DryRun || j.Rows > q.limits.BatchRows }

// take waits for work and claims a batch of it; nil when the queue is closed and empty. big tells
// that the batch is one command of more than the usual size: give it back with bigDone.
func (q *queue[B]) take() (batch []*job[B], big bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		batch, big = q.gather()
		if len(batch) > 0 {
			if len(q.ring) > 0 {
				q.ready.Signal()
			}
			return batch, big
		}
		if q.closed && q.rows == 0 && len(q.ring) == 0 {
			q.ready.Broadcast()
			return nil, false
		}
		q.ready.Wait()
	}
}

func (q *queue[B]) bigDone() {
	q.mu.Lock()
	q.bigOut = false
	q.ready.Broadcast()
	q.mu.Unlock()
}

// gather makes a batch of what is there now.
func (q *queue[B]) gather() (batch []*job[B], big bool) {
	rows := 0
	now := time.Now()
	for turns := len(q.ring); turns > 0 && len(q.ring) > 0 && rows < q.limits.BatchRows; turns-- {
		l := q.ring[0]
		q.ring = q.ring[1:]
		isolated := l.isolated(now)
		if isolated && len(batch) > 0 {
			q.ring = append(q.ring, l)
			continue
		}
		l.deficit += quantum
		moved := false
		for len(l.jobs) > 0 && rows < q.limits.BatchRows {
			j := l.jobs[0]
			if q.alone(j) {
				if len(batch) > 0 || q.bigOut {
					break
				}
			} else if l.deficit < j.Rows {
				moved = true // in some turns it can
				break
			}
			moved = true
			q.pop(l)
			if !j.state.CompareAndSwap(waiting, claimed) {
				continue // its caller went away
			}
			batch = append(batch, j)
			rows += j.Rows
			l.deficit -= j.Rows
			if q.alone(j) {
				q.bigOut = true
				q.keep(l)
				return batch, true
			}
		}
		q.keep(l)
		if isolated && len(batch) > 0 {
			return batch, false
		}
		if moved {
			turns = len(q.ring) + 1 // everybody gets another turn
		}
	}
	return batch, false
}

// keep puts a lane back to the end of the ring, or forgets it when it is empty.
func (q *queue[B]) keep(l *lane[B]) {
	if len(l.jobs) > 0 {
		q.ring = append(q.ring, l)
		return
	}
	l.deficit = 0
	if len(l.culprits) == 0 {
		delete(q.tenants, l.tenant)
	}
}

func (q *queue[B]) pop(l *lane[B]) {
	j := l.jobs[0]
	l.jobs[0] = nil
	l.jobs = l.jobs[1:]
	l.rows, q.rows = l.rows-j.Rows, q.rows-j.Rows
	l.bytes, q.bytes = l.bytes-j.Bytes, q.bytes-j.Bytes
}

func (q *queue[B]) close() {
	q.mu.Lock()
	q.closed = true
	q.ready.Broadcast()
	q.mu.Unlock()
}

// culprit notes that a tenant's command had to be cut out of a batch. More than maxCulprits of them
// within culpritMemory, and the tenant's commands go into batches of their own.
func (q *queue[B]) culprit(tenant int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.tenants[tenant]
	if l == nil {
		l = &lane[B]{tenant: tenant}
		q.tenants[tenant] = l
	}
	l.culprits = append(l.culprits, time.Now())
}

const (
	maxCulprits   = 8
	culpritMemory = time.Minute
)

func (l *lane[B]) isolated(now time.Time) bool {
	for len(l.culprits) > 0 && now.Sub(l.culprits[0]) > culpritMemory {
		l.culprits = l.culprits[1:]
	}
	return len(l.culprits) > maxCulprits
}

// depth is what waits, in rows.
func (q *queue[B]) depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows
}
