package commit

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Direct runs a command alone, in a transaction of its own, beside the batches. It takes no latches: direct commands,
// batches, and those of other processes meet only in the database, where the participant's statements decide which goes
// first. Admission, request keys, the batch's row and unknown outcomes are those of batches. Each command costs a
// transaction and holds a connection, so this pays only where the database shall wait, or refuse, row by row.
type Direct struct {
	// Tries is the number of attempts at rows that other transactions change or hold, at least 1.
	Tries int
	// Pause is the pause between attempts. A random part of up to the same length is added.
	Pause time.Duration
}

// DirectTx is a Tx whose commands can do more when they run alone.
type DirectTx interface {
	Tx
	// RunDirect is called before Need in the transaction of a direct command. One that runs in a batch after all finds
	// a Tx like any other.
	RunDirect()
}

// MaxDirect bounds the direct commands that run at a time, each on a connection. A tenant may have half of them.
const MaxDirect = 16

// maxDirectWait bounds the wait for a lock, so that it ends by the lock timeout and not by the statement timeout.
const maxDirectWait = statementTimeout - time.Second

// start queues jobs for batches, and runs the direct ones.
func (e *Engine[T]) start(jobs []*job[T]) {
	batched := jobs[:0:0]
	for _, j := range jobs {
		if j.Direct == nil || j.DryRun {
			batched = append(batched, j)
			continue
		}
		e.writers.Add(1)
		go func() {
			defer e.writers.Done()
			e.slots.acquire(j.Tenant)
			defer e.slots.release(j.Tenant)
			e.runDirect(j)
		}()
	}
	e.queue.put(batched)
}

// runDirect runs a job alone until it has an answer. After a failure that is not about its rows it runs in a batch.
func (e *Engine[T]) runDirect(j *job[T]) {
	jobs := []*job[T]{j}
	conn, err := e.connect()
	for tries := 0; err == nil; {
		left := time.Until(j.deadline)
		wait := min(left-left/8, maxDirectWait) // time is left to say that the rows are locked
		if wait < time.Millisecond {
			break
		}
		var end ending
		conn, jobs, end, err = e.try(conn, jobs, mode{direct: wait})
		switch end {
		case committed: // or abandoned
			jobs = e.answer(jobs)
		case incomplete: // try again at once; maxMore bounds it
			err = nil
		case raced, blocked:
			j.blocked.Store(end == blocked)
			if tries++; tries >= j.Direct.Tries {
				e.fail(j, rowsLocked(err))
				jobs = nil
				break
			}
			jobs, err = e.pause(jobs, j.Direct.Pause+rand.N(j.Direct.Pause+1), err), nil
		}
		if len(jobs) == 0 {
			putBack(conn)
			return
		}
	}
	putBack(e.run(conn, jobs, mode{}))
}

// slots bounds the running direct commands, of all tenants and of each.
type slots struct {
	all     chan struct{}
	tenants sync.Map // of chan struct{}, by tenant
}

func (s *slots) of(tenant int32) chan struct{} {
	if own, ok := s.tenants.Load(tenant); ok {
		return own.(chan struct{})
	}
	own, _ := s.tenants.LoadOrStore(tenant, make(chan struct{}, MaxDirect/2))
	return own.(chan struct{})
}

func (s *slots) acquire(tenant int32) {
	s.of(tenant) <- struct{}{}
	s.all <- struct{}{}
}

func (s *slots) release(tenant int32) {
	<-s.all
	<-s.of(tenant)
}
