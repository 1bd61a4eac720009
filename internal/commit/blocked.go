package commit

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// blockedJobs need rows or names that another transaction holds. They wait apart, so that no other job
// waits with them, and one goroutine tries them again, all together, for as long as there are some.
type blockedJobs[T any] struct {
	mu     sync.Mutex
	jobs   []*job[T]
	trying atomic.Bool // the goroutine is there; set under mu
}

// blockedPause is waited between two tries, jittered by as much again.
const blockedPause = 20 * time.Millisecond

// lockTimeout is how long a batch waits for each lock: some time, and as long as several servers on one
// database take that commit the same rows one behind the other.
func (e *Engine[T]) lockTimeout() time.Duration { return max(e.lockWait, 8*e.pace.commit()) }

// brief is how long a batch waits that is known to need a lock which another transaction holds: about as long
// as another server's commit.
func (e *Engine[T]) brief() time.Duration {
	return max(e.lockWait/10, time.Millisecond, min(2*e.pace.commit(), e.lockWait-1))
}

// pace is how long COMMIT takes, as a moving average.
type pace struct{ average atomic.Int64 }

func (p *pace) note(took time.Duration) {
	old := p.average.Load()
	p.average.Store(old + (int64(took)-old)/8)
}

func (p *pace) commit() time.Duration { return time.Duration(p.average.Load()) }

// block puts a job of which nothing was kept apart.
func (e *Engine[T]) block(j *job[T]) {
	e.metrics.lockWaits.Inc()
	j.blocked.Store(true)
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	e.blocked.jobs = append(e.blocked.jobs, j)
	if e.blocked.trying.CompareAndSwap(false, true) {
		e.writers.Add(1)
		go e.tryBlocked()
	}
}

func (e *Engine[T]) tryBlocked() {
	defer e.writers.Done()
	for {
		time.Sleep(blockedPause + rand.N(blockedPause))
		for jobs := e.takeBlocked(); len(jobs) > 0; {
			n := e.queue.prefix(jobs)
			release(e.run(nil, jobs[:n:n], mode{lockTimeout: e.brief()}))
			jobs = jobs[n:]
		}
		if e.noneBlocked() {
			return
		}
	}
}

func (e *Engine[T]) takeBlocked() []*job[T] {
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	jobs := e.blocked.jobs
	e.blocked.jobs = nil
	return jobs
}

// noneBlocked ends the goroutine, if nothing is left.
func (e *Engine[T]) noneBlocked() bool {
	e.blocked.mu.Lock()
	defer e.blocked.mu.Unlock()
	if len(e.blocked.jobs) > 0 {
		return false
	}
	e.blocked.trying.Store(false)
	return true
}
