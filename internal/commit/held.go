package commit

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// heldJobs are jobs whose rows or names somebody outside holds. They wait apart, so that nobody else
// waits with them, and one goroutine tries them again, all together, for as long as there are some.
type heldJobs[B any] struct {
	mu     sync.Mutex
	jobs   []*job[B]
	trying atomic.Bool // the goroutine is there; set under mu
}

// briefly is the part of LockTimeout that is waited where somebody is known to hold a lock: in the
// search for those who need it, and in all batches until it is gone.
const briefly = 10

// heldPause is waited between two tries, jittered by as much again.
const heldPause = 20 * time.Millisecond

func (e *Engine[B]) brief() time.Duration { return max(e.lockWait/briefly, time.Millisecond) }

// lockTimeout is how long the next batch waits for locks.
func (e *Engine[B]) lockTimeout() time.Duration {
	if e.held.trying.Load() {
		return e.brief()
	}
	return e.lockWait
}

// hold searches a batch that ran into somebody's lock, halves left to right, for the jobs that need
// it, and lets those wait apart. One that could not be tried again in time is answered.
func (e *Engine[B]) hold(jobs []*job[B], err error) {
	enough := time.Now().Add(2*heldPause + 2*e.brief())
	jobs = slices.DeleteFunc(jobs, func(j *job[B]) bool {
		over := (j.held.Load() || len(jobs) == 1) && j.end.Before(enough)
		if over {
			e.fail(j, rowsLocked(err))
		}
		return over
	})
	if len(jobs) != 1 {
		e.halves(jobs, e.brief())
		return
	}
	j := jobs[0]
	e.metrics.lockWaits.Inc()
	j.held.Store(true)
	handBack(jobs)
	e.held.mu.Lock()
	defer e.held.mu.Unlock()
	e.held.jobs = append(e.held.jobs, j)
	if e.held.trying.CompareAndSwap(false, true) {
		e.writers.Add(1)
		go e.tryHeld()
	}
}

func (e *Engine[B]) tryHeld() {
	defer e.writers.Done()
	for {
		time.Sleep(heldPause + rand.N(heldPause))
		for jobs := e.takeHeld(); len(jobs) > 0; {
			n := e.queue.prefix(jobs)
			e.settle(jobs[:n:n], manner{lockTimeout: e.brief()})
			jobs = jobs[n:]
		}
		if e.noneHeld() {
			return
		}
	}
}

func (e *Engine[B]) takeHeld() []*job[B] {
	e.held.mu.Lock()
	defer e.held.mu.Unlock()
	jobs := e.held.jobs
	e.held.jobs = nil
	return jobs
}

// noneHeld tells the goroutine to go, if nothing is left.
func (e *Engine[B]) noneHeld() bool {
	e.held.mu.Lock()
	defer e.held.mu.Unlock()
	if len(e.held.jobs) > 0 {
		return false
	}
	e.held.trying.Store(false)
	return true
}
