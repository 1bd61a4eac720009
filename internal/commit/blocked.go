package commit

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// blockedJobs need rows or names that another transaction holds, or share one with such a job. They wait apart, so that
// they delay no other job. One goroutine retries all of them together as long as there are any.
type blockedJobs[T any] struct {
	mu       sync.Mutex
	found    []*job[T]   // found blocked, each in an attempt of its own
	untried  []*job[T]   // set aside without an attempt
	held     hashes      // rows and names of the found jobs, except free ones: each of these jobs has one that is held
	free     hashes      // of batches that searches committed since the goroutine began
	retrying atomic.Bool // the goroutine runs; set under mu
}

// hashes identify rows and names, see Latches.
type hashes map[uint64]struct{}

// search is a bisection for the jobs that need a lock of another transaction. Once it has found one, it sets aside the
// remaining jobs that share a row or name with it: bisecting all jobs that need one held row would take two lock
// timeouts for each of them.
type search struct {
	held hashes
	most int // jobs that it may still find: then it sets all others aside
}

// maxFound bounds the search of a writer: another transaction may hold a thousand rows, and other callers wait for the
// writer.
const maxFound = 4

// blockedPause is the pause between retries, plus a jitter of up to the same length.
const blockedPause = 20 * time.Millisecond

// runSearch bisects a batch, left to right, to find the jobs that need a lock of another transaction, and blocks these.
// s is nil at the start of a search.
func (e *Engine[T]) runSearch(conn *pgxpool.Conn, jobs []*job[T], err error, s *search) *pgxpool.Conn {
	if s == nil {
		s = &search{held: hashes{}, most: maxFound}
	}
	if len(jobs) != 1 {
		e.queue.endExclusive()
		return e.runHalves(conn, jobs, s)
	}
	unclaim(jobs)
	jobs[0].blocked.Store(true)
	if jobs = e.failLate(jobs, err); len(jobs) > 0 {
		e.block(jobs[0], s)
	}
	return conn
}

// failLate fails the blocked jobs whose deadline leaves no time for another attempt, and returns the others. One that
// ended during an attempt would be answered with OUTCOME_UNKNOWN.
func (e *Engine[T]) failLate(jobs []*job[T], err error) []*job[T] {
	enough := time.Now().Add(2*blockedPause + 2*e.lockTimeout(true))
	return slices.DeleteFunc(jobs, func(j *job[T]) bool {
		late := j.blocked.Load() && j.deadline.Before(enough)
		if late && len(claim([]*job[T]{j})) > 0 { // else it is abandoned
			e.fail(j, rowsLocked(err))
		}
		return late
	})
}

// block moves a job without effect to the blocked jobs.
func (e *Engine[T]) block(j *job[T], s *search) {
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	s.most--
	e.hold(j, s.held)
	e.hold(j, e.blocked.held)
	e.blocked.found = append(e.blocked.found, j)
	e.startRetry(j)
}

// hold adds what a blocked job needs and is not known to be free. It is called under e.blocked.mu.
func (e *Engine[T]) hold(j *job[T], held hashes) {
	for _, h := range e.rowsOf(j) {
		if _, ok := e.blocked.free[h]; !ok {
			held[h] = struct{}{}
		}
	}
}

// setAside moves the jobs that need what a search found held to the blocked jobs, or all if it has found enough, and
// returns the others. The jobs have no effect. s may be nil.
func (e *Engine[T]) setAside(jobs []*job[T], s *search) (others []*job[T]) {
	if s == nil || len(s.held) == 0 && s.most > 0 {
		return jobs
	}
	var aside []*job[T]
	for _, j := range jobs {
		if s.most <= 0 || slices.ContainsFunc(e.rowsOf(j), s.holds) {
			aside = append(aside, j)
		} else {
			others = append(others, j)
		}
	}
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	e.blocked.untried = append(e.blocked.untried, aside...)
	e.startRetry(aside...)
	return others
}

func (s *search) holds(hash uint64) bool { _, ok := s.held[hash]; return ok }

// rowsOf returns the hashes of the rows and names that a command needs, except those that Discover finds.
func (e *Engine[T]) rowsOf(j *job[T]) []uint64 {
	defer func() { _ = recover() }() // the job's attempt reports it
	tx := e.newTx()
	j.Command.Need(tx)
	var l Latches
	for _, x := range tx.Participants() {
		x.Latch(&l)
	}
	return slices.Concat(l.shared, l.owned)
}

// known returns a search that begins with what is known to be held, or nil if no job is blocked.
func (b *blockedJobs[T]) known() *search {
	if !b.retrying.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &search{held: maps.Clone(b.held), most: 1}
}

// release records that a batch of a search committed, so that no row or name of it is held.
func (b *blockedJobs[T]) release(l *Latches) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.retrying.Load() {
		return
	}
	for _, h := range slices.Concat(l.shared, l.owned) {
		b.free[h] = struct{}{}
		delete(b.held, h)
	}
}

// startRetry is called under e.blocked.mu.
func (e *Engine[T]) startRetry(jobs ...*job[T]) {
	for _, j := range jobs {
		e.metrics.lockWaits.Inc()
		j.blocked.Store(true)
		if e.blocked.retrying.CompareAndSwap(false, true) {
			e.writers.Add(1)
			go e.retryBlocked()
		}
	}
}

// retryBlocked tries all blocked jobs again in each round, by a search that knows nothing yet. What was free once is
// not taken for held again while there are blocked jobs: a job that needs both a held row and one that many share would
// otherwise set these aside again and again.
func (e *Engine[T]) retryBlocked() {
	defer e.writers.Done()
	for {
		time.Sleep(blockedPause + rand.N(blockedPause))
		s := &search{held: hashes{}, most: math.MaxInt}
		for jobs := e.takeBlocked(); len(jobs) > 0; {
			n := e.queue.prefix(jobs)
			putBack(e.run(nil, jobs[:n:n], mode{search: s}))
			jobs = e.setAside(jobs[n:], s)
		}
		if e.stopRetry() {
			return
		}
	}
}

// takeBlocked returns the blocked jobs. The untried ones come first, so that each round tries one at least.
func (e *Engine[T]) takeBlocked() []*job[T] {
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	jobs := append(e.blocked.untried, e.blocked.found...)
	e.blocked.untried, e.blocked.found = nil, nil
	return jobs
}

// stopRetry ends a round, and reports whether the goroutine may end: no job is blocked.
func (e *Engine[T]) stopRetry() bool {
	b := &e.blocked
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = hashes{}
	if len(b.found)+len(b.untried) > 0 {
		for _, j := range b.found {
			e.hold(j, b.held)
		}
		return false
	}
	b.free = hashes{}
	b.retrying.Store(false)
	return true
}
