package commit

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Direct in a Submission makes its command run alone, in a transaction of its own, concurrently with the batches, and
// limits its attempts. A direct command takes no latches: the database alone orders it among other direct commands and
// batches, by the participant's statements. Admission, request keys, the batch's row and unknown outcomes are those of
// batches. Each direct command costs a transaction and holds a connection: use it only where the database itself should
// make calls wait, or refuse them.
type Direct struct {
	// Attempts is the number of attempts at rows that other transactions change or hold, at least 1.
	Attempts int
	// Pause is the pause between attempts. A random part of up to the same length is added.
	Pause time.Duration
}

// MaxDirect bounds the direct commands that run at a time, each on a connection.
const MaxDirect = 16

// maxTenantDirect bounds the direct commands of one tenant: three tenants with long lock waits leave a slot to others.
const maxTenantDirect = 5

// maxDirectWait bounds one wait for a lock. It is far below stuckAfter and the time to drain, so that a row that is
// held for long neither makes the server unready nor delays its stop.
const maxDirectWait = 1500 * time.Millisecond

// startDirect runs a direct command as soon as there is a slot.
func (e *Engine[T]) startDirect(j *job[T]) {
	if next := e.slots.put(j); next != nil {
		e.writers.Add(1)
		go e.writeDirect(next)
	}
}

// writeDirect runs a direct command, and then each next command that gets its slot. A pause between attempts holds no
// slot.
func (e *Engine[T]) writeDirect(j *job[T]) {
	defer e.writers.Done()
	for next := j; next != nil; {
		j := next
		if e.runDirect(j) {
			time.AfterFunc(j.Direct.Pause+rand.N(j.Direct.Pause+1), func() { e.startDirect(j) })
		}
		next = e.slots.next(j.Tenant)
	}
}

// runDirect runs a job alone, and reports whether to try again. After a failure that is not about its rows the job runs
// here as a batch of one, with latches.
func (e *Engine[T]) runDirect(j *job[T]) (again bool) {
	jobs := []*job[T]{j}
	w := writer[T]{Engine: e}
	defer w.putBack()
	err := w.connect()
	for err == nil {
		left := time.Until(j.deadline)
		wait := min(left-left/8, maxDirectWait) // an eighth is left to answer ROWS_LOCKED
		if wait < time.Millisecond {
			break
		}
		var end ending
		jobs, end, err = w.try(jobs, mode{directWait: wait})
		switch {
		case end == done: // or abandoned
			jobs = e.answer(jobs)
		case end == incomplete: // try again at once; maxMore bounds it
			err = nil
		case end == blocked, end == raced && e.aboutRows(err):
			j.awaitsRows.Store(end == blocked)
			if j.attempts++; j.attempts < j.Direct.Attempts && !j.callerLeft.Load() && !e.queue.isClosed() {
				setWaiting(jobs)
				return true
			}
			e.fail(j, rowsLocked(err))
			return false
		case end == lost:
			e.batchIDs.discardBlock() // the next connection may lead to another database
		}
		if len(jobs) == 0 {
			return false
		}
	}
	w.run(jobs, mode{})
	return false
}

// slots limits the running direct commands. Further ones wait for a slot, and tenants get slots in turn.
type slots[T any] struct {
	mu      sync.Mutex
	used    int
	tenants map[int32]*tenantSlots[T]
	turns   []int32 // tenants with waiting jobs, once each
	lastEnd time.Time
}

type tenantSlots[T any] struct {
	used    int
	waiting []*job[T] // abandoned ones too
	sweepAt int       // length of waiting at which abandoned jobs are dropped
}

// put adds a job, and returns the job that gets a slot, or nil.
func (s *slots[T]) put(j *job[T]) *job[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[j.Tenant]
	if t == nil {
		t = &tenantSlots[T]{sweepAt: 64}
		s.tenants[j.Tenant] = t
	}
	if len(t.waiting) >= t.sweepAt {
		t.waiting = remaining(t.waiting)
		t.sweepAt = 2*len(t.waiting) + 64
	}
	if t.waiting = append(t.waiting, j); !slices.Contains(s.turns, j.Tenant) {
		s.turns = append(s.turns, j.Tenant)
	}
	return s.pick()
}

// next frees a slot of a tenant, and returns the job that gets it, or nil.
func (s *slots[T]) next(tenant int32) *job[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.lastEnd = time.Now()
	s.tenants[tenant].used--
	s.forget(tenant)
	return s.pick()
}

// active reports whether direct commands run, or ran within the last second.
func (s *slots[T]) active() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used > 0 || time.Since(s.lastEnd) < time.Second
}

func (s *slots[T]) pick() *job[T] {
	for n := 0; s.used < MaxDirect && n < len(s.turns); {
		tenant := s.turns[n]
		t := s.tenants[tenant]
		if t.used == maxTenantDirect {
			n++
			continue
		}
		j := t.waiting[0]
		s.turns = slices.Delete(s.turns, n, n+1)
		if t.waiting = t.waiting[1:]; len(t.waiting) > 0 {
			s.turns = append(s.turns, tenant)
		}
		if j.state.Load() == abandoned {
			s.forget(tenant)
			continue
		}
		t.used++
		s.used++
		return j
	}
	return nil
}

func (s *slots[T]) forget(tenant int32) {
	if t := s.tenants[tenant]; t.used == 0 && len(t.waiting) == 0 {
		delete(s.tenants, tenant)
	}
}
