package commit

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// blockedJobs need rows or names that another transaction holds, or share one with such a job. They wait apart, so that
// they delay no other job. One goroutine retries all of them together as long as there are any.
type blockedJobs[T any] struct {
	mu       sync.Mutex
	found    []*job[T]            // found blocked, each in an attempt of its own
	untried  []*job[T]            // set aside without an attempt
	turns    int64                // jobs that joined one of the lists
	locked   map[uint64]time.Time // rows and names of found jobs, except free ones, with the time of the last find
	free     map[uint64]time.Time // rows and names of batches that committed while jobs were blocked
	retrying atomic.Bool          // the goroutine runs; set under mu
}

// search is a bisection for the jobs that need a lock of another transaction. Once it has found one, it sets aside the
// remaining jobs that share a row or name with it: bisecting all jobs that need one locked row would take two lock
// timeouts for each of them.
type search struct {
	locked  map[uint64]time.Time
	found   int
	tenants map[int32]bool // whose jobs it has found
	until   time.Time      // see over
}

func newSearch() *search {
	return &search{locked: map[uint64]time.Time{}, tenants: map[int32]bool{}, until: time.Now().Add(searchTime)}
}

const (
	// minFound and searchTime bound the search of a writer, and a round of retries, because another transaction may
	// hold a thousand rows. After that many blocked jobs and that time, further jobs of the same tenants are set aside
	// without a search.
	minFound   = 4
	searchTime = 500 * time.Millisecond
	// lockedLife is how long a row stays marked as locked after the last find, unless a batch with it commits. Callers
	// with short deadlines retry within this time.
	lockedLife = 10 * time.Second
	// freeLife is the time after a batch's commit in which its rows are not marked as locked, even if a blocked job
	// needs them too.
	freeLife = time.Second
)

// blockedPause is the pause between retries, plus a jitter of up to the same length.
const blockedPause = 20 * time.Millisecond

// runSearch bisects a batch, left to right, to find the jobs that need a lock of another transaction, and blocks these.
// s is nil at the start of a search.
func (w *writer[T]) runSearch(jobs []*job[T], err error, s *search) {
	if s == nil {
		s = newSearch()
	}
	if len(jobs) != 1 {
		w.runHalves(jobs, s)
		return
	}
	setWaiting(jobs)
	w.markLocked(jobs[0], s)
	jobs[0].awaitsRows.Store(true)
	if jobs = w.failLate(jobs, err); len(jobs) > 0 {
		w.block(jobs[0])
	}
}

// late reports whether the deadline of a job leaves no time for another attempt. One that passes during an attempt is
// answered with OUTCOME_UNKNOWN.
func late[T any](j *job[T], lockTimeout time.Duration) bool {
	return time.Until(j.deadline) < 2*blockedPause+2*lockTimeout
}

// anyLate reports whether a job would be late for another attempt that waits for as long as the first.
func (e *Engine[T]) anyLate(jobs []*job[T]) bool {
	whole := e.lockTimeout(false)
	return slices.ContainsFunc(jobs, func(j *job[T]) bool { return late(j, whole) })
}

// failLate fails the blocked jobs that are late for an attempt of a search, and returns the others.
func (e *Engine[T]) failLate(jobs []*job[T], err error) []*job[T] {
	brief := e.lockTimeout(true)
	return slices.DeleteFunc(jobs, func(j *job[T]) bool {
		isLate := j.awaitsRows.Load() && late(j, brief)
		if isLate && len(setRunning([]*job[T]{j})) > 0 { // else it is abandoned
			e.fail(j, rowsLocked(err))
		}
		return isLate
	})
}

// blockHeld blocks jobs of ErrHeld, without marking their rows: other jobs need not wait.
func (e *Engine[T]) blockHeld(jobs []*job[T]) {
	setWaiting(jobs)
	for _, j := range jobs {
		j.awaitsRows.Store(true)
	}
	for _, j := range e.failLate(jobs, ErrHeld) {
		e.block(j)
	}
}

// block moves a job without effect to the blocked jobs.
func (e *Engine[T]) block(j *job[T]) {
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	j.turn = 0
	e.blocked.found = append(e.blocked.found, j)
	e.startRetry(j)
}

// markLocked marks the rows and names of a blocked job as locked, except those of batches that committed within
// freeLife.
func (e *Engine[T]) markLocked(j *job[T], s *search) {
	rows := e.rowsOf(j)
	s.found++
	s.tenants[j.Tenant] = true
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	for _, h := range rows {
		if time.Since(e.blocked.free[h]) > freeLife {
			s.locked[h] = time.Now()
			e.blocked.locked[h] = time.Now()
		}
	}
}

// setAside moves jobs to the blocked ones if they need a row or name that the search found locked, and returns the
// others. Once the search is over (see over), it moves all jobs of the tenants for which the search has found jobs. No
// job may have taken effect yet. s may be nil.
func (e *Engine[T]) setAside(jobs []*job[T], s *search) (others []*job[T]) {
	if s == nil || len(s.locked) == 0 && len(s.tenants) == 0 {
		return jobs
	}
	var aside []*job[T]
	for _, j := range jobs {
		if s.over() && s.tenants[j.Tenant] || slices.ContainsFunc(e.rowsOf(j), s.isLocked) {
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

// over reports whether the search has taken so long that it sets aside all further jobs of the tenants whose jobs it
// has found: others wait for it.
func (s *search) over() bool { return s.found >= minFound && time.Now().After(s.until) }

func (s *search) isLocked(hash uint64) bool { return !s.locked[hash].IsZero() }

// rowsOf returns the hashes of the rows and names that a command needs, except those that Discover finds.
func (e *Engine[T]) rowsOf(j *job[T]) []uint64 {
	defer func() { _ = recover() }() // the job's attempt reports it
	tx := e.newTx(false)
	j.Command.Need(tx)
	var l LatchKeys
	for _, x := range tx.Participants() {
		x.Latch(&l)
	}
	return slices.Concat(l.shared, l.owned)
}

// active reports whether rows are marked as locked, or jobs are blocked.
func (b *blockedJobs[T]) active() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locked) > 0 || b.retrying.Load()
}

// known returns a search that begins with the rows marked as locked, or nil if there are none.
func (b *blockedJobs[T]) known() *search {
	b.mu.Lock()
	defer b.mu.Unlock()
	prune(b.locked, lockedLife)
	if len(b.locked) == 0 {
		return nil
	}
	return &search{locked: maps.Clone(b.locked)}
}

// release records that a batch committed, so that no row or name of it is locked.
func (b *blockedJobs[T]) release(l *LatchKeys) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range slices.Concat(l.shared, l.owned) {
		delete(b.locked, h)
		if b.retrying.Load() {
			b.free[h] = time.Now()
		}
	}
}

func prune(times map[uint64]time.Time, life time.Duration) {
	maps.DeleteFunc(times, func(_ uint64, at time.Time) bool { return time.Since(at) > life })
}

// startRetry is called under e.blocked.mu.
func (e *Engine[T]) startRetry(jobs ...*job[T]) {
	for _, j := range jobs {
		e.metrics.lockWaits.Inc()
		j.awaitsRows.Store(true)
		if j.turn == 0 {
			e.blocked.turns++
			j.turn = e.blocked.turns
		}
		if e.blocked.retrying.CompareAndSwap(false, true) {
			e.writers.Add(1)
			go e.retryBlocked()
		}
	}
}

// retryBlocked retries blocked jobs in rounds, each with a search that begins without marked rows. The rows of batches
// that just committed are not marked: otherwise a job that needs a locked row and a popular one would set aside all
// jobs of the popular row again and again.
func (e *Engine[T]) retryBlocked() {
	defer e.writers.Done()
	for {
		time.Sleep(blockedPause + rand.N(blockedPause))
		s := newSearch()
		for jobs := remaining(e.failLate(e.takeBlocked(), nil)); len(jobs) > 0; {
			n := e.queue.prefix(jobs)
			w := writer[T]{Engine: e}
			w.run(jobs[:n:n], mode{search: s})
			w.putBack()
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
	slices.SortFunc(e.blocked.untried, func(j, k *job[T]) int { return cmp.Compare(j.turn, k.turn) })
	jobs := append(e.blocked.untried, e.blocked.found...)
	e.blocked.untried, e.blocked.found = nil, nil
	return jobs
}

// stopRetry ends a round, and reports whether the goroutine may end: no job is blocked.
func (e *Engine[T]) stopRetry() bool {
	b := &e.blocked
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.found)+len(b.untried) > 0 {
		prune(b.free, freeLife)
		return false
	}
	clear(b.free)
	b.retrying.Store(false)
	return true
}
