package commit

import (
	"context"
	"sync/atomic"
	"time"
)

// job is a Work in the engine.
type job[T any] struct {
	Work[T]
	state   atomic.Int32
	blocked atomic.Bool // a lock that another transaction holds stopped it last
	wait    *waiter
	lane    *lane[T]
	end     time.Time // its caller's deadline: nothing is tried again after it

	// Guarded by inflight.mu.
	parked []*job[T] // same key, behind this one
	gone   int       // of those, how many went away

	// From one attempt to the next: hints, and what is still to do. Nothing that an attempt found or decided.
	more  int  // times it asked for more rows
	later bool // it waits for its batch to commit, and runs after it

	// Of one attempt; kept when it commits.
	out   Outcome
	err   error
	found *keyRecord // what the look-up found under its key
	kept  *keyRecord // what is under its key when the attempt has committed
	fresh bool       // the attempt writes kept
}

// States of a job. Its batch claims it just before each attempt; when an attempt is known to have kept
// nothing and the next one has to wait, it waits again too, so that a caller who leaves meanwhile can
// be told that it did not run.
const (
	waiting   int32 = iota
	claimed         // its batch runs it, whatever its caller does
	abandoned       // its caller went away first: it never runs
	finished        // out and err are its answer
)

func (j *job[T]) start(w Work[T], wait *waiter, end time.Time) {
	j.Work, j.wait, j.end = w, wait, end
	j.Rows = max(1, w.Rows)
}

// reset forgets an attempt.
func (j *job[T]) reset() {
	j.out, j.err, j.found, j.kept, j.fresh = Outcome{}, nil, nil, nil, false
}

// keyed tells whether the job's answer is looked up and recorded.
func (j *job[T]) keyed() bool { return j.Key != nil && !j.DryRun }

// claim takes the jobs whose callers still wait for them; the others never run.
func claim[T any](jobs []*job[T]) []*job[T] {
	live := jobs[:0]
	for _, j := range jobs {
		if j.state.Load() == claimed || j.state.CompareAndSwap(waiting, claimed) {
			live = append(live, j)
		}
	}
	return live
}

// handBack undoes claim: nothing of the jobs was kept, and they wait to be tried again.
func handBack[T any](jobs []*job[T]) {
	for _, j := range jobs {
		if j.state.Load() == claimed {
			j.reset()
			j.state.Store(waiting)
		}
	}
}

// remaining leaves the abandoned out.
func remaining[T any](jobs []*job[T]) []*job[T] {
	live := make([]*job[T], 0, len(jobs)/2)
	for _, j := range jobs {
		if j.state.Load() != abandoned {
			live = append(live, j)
		}
	}
	return live
}

// waiter counts jobs down and then wakes the one who waits for them.
type waiter struct {
	left atomic.Int32
	done chan struct{}
}

func (w *waiter) expect(n int) {
	w.done = make(chan struct{})
	w.left.Store(int32(n))
}

// until waits until all jobs have ended, or ctx has.
func (w *waiter) until(ctx context.Context) {
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

func (w *waiter) finish() {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}
