package commit

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// job is a Submission in the engine.
type job[T any] struct {
	Submission[T]
	state      atomic.Int32
	blocked    atomic.Bool // it was set aside, or timed out on a lock: then its time ends with ROWS_LOCKED
	callerLeft atomic.Bool // its caller has left, with OUTCOME_UNKNOWN
	wait       *waiter
	lane       *lane[T]
	deadline   time.Time // its caller's deadline: no retry begins after it

	// Guarded by inflight.mu.
	parked []*job[T] // jobs with the same key, behind this one
	gone   int       // number of abandoned jobs in parked

	// Kept across attempts.
	incomplete int   // number of ErrMoreRows
	tries      int   // number of tries of a direct command that failed
	turn       int64 // among the blocked jobs; guarded by blockedJobs.mu
	deferred   bool  // by ErrLater: runs after its batch has committed

	// State of one attempt; valid once it has committed.
	out   Outcome
	err   error
	found *keyRecord // the record of its key before the attempt
	kept  *keyRecord // the record of its key after the commit
	fresh bool       // the attempt writes kept
}

// States of a job. Its batch claims it before each attempt. If an attempt had no effect and the next one is delayed,
// the job returns to waiting, so that a call that is cancelled meanwhile can be answered with NOT_RUN.
const (
	waiting   int32 = iota
	claimed         // its batch runs it, even if the call is cancelled
	abandoned       // its call was cancelled before a claim: it never runs
	finished        // out and err are its answer
)

func (j *job[T]) start(w Submission[T], wait *waiter, deadline time.Time) {
	j.Submission, j.wait, j.deadline = w, wait, deadline
	j.Rows = max(1, w.Rows)
}

// reset discards the state of an attempt.
func (j *job[T]) reset() {
	j.out, j.err, j.found, j.kept, j.fresh = Outcome{}, nil, nil, nil, false
}

// keyed reports whether the job's answer is looked up and recorded.
func (j *job[T]) keyed() bool { return j.Key != nil && !j.DryRun }

// claim claims the jobs that are not abandoned, and returns them.
func claim[T any](jobs []*job[T]) []*job[T] {
	live := jobs[:0]
	for _, j := range jobs {
		if j.state.Load() == claimed || j.state.CompareAndSwap(waiting, claimed) {
			live = append(live, j)
		}
	}
	return live
}

// unclaim returns jobs without effect to waiting, before a retry.
func unclaim[T any](jobs []*job[T]) {
	for _, j := range jobs {
		if j.state.Load() == claimed {
			j.reset()
			j.state.Store(waiting)
		}
	}
}

// remaining returns the jobs that are not abandoned.
func remaining[T any](jobs []*job[T]) []*job[T] {
	live := make([]*job[T], 0, len(jobs)/2)
	for _, j := range jobs {
		if j.state.Load() != abandoned {
			live = append(live, j)
		}
	}
	return live
}

// waiter counts down the jobs of a call, then wakes the caller.
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

// inflightKeys maps each request key in flight in this process to the job that owns it. Other jobs with the key are
// parked behind the owner, so that a process never races itself for a key.
type inflightKeys[T any] struct {
	mu   sync.Mutex
	jobs map[inflightKey]*job[T]
}

type inflightKey struct {
	tenant                    int32
	principal, operation, key string
}

func (j *job[T]) inflightKey() inflightKey {
	return inflightKey{j.Tenant, j.Key.Principal, j.Key.Operation, j.Key.Key}
}

// park parks the jobs whose key is in flight, and returns the others.
func (f *inflightKeys[T]) park(jobs []*job[T]) (first []*job[T]) {
	if !slices.ContainsFunc(jobs, (*job[T]).keyed) {
		return jobs
	}
	first = make([]*job[T], 0, len(jobs))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range jobs {
		if j.keyed() {
			k := j.inflightKey()
			if owner := f.jobs[k]; owner != nil {
				owner.parked = append(owner.parked, j)
				continue
			}
			f.jobs[k] = j
		}
		first = append(first, j)
	}
	return first
}

// remove releases the key of an ended job and returns the jobs parked behind it. A parked job owns no key: if it ends,
// its owner counts it as gone.
func (f *inflightKeys[T]) remove(j *job[T]) (parked []*job[T]) {
	k := j.inflightKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch owner := f.jobs[k]; owner {
	case j:
		delete(f.jobs, k)
		parked, j.parked = j.parked, nil
	case nil:
	default:
		if owner.gone++; owner.gone > len(owner.parked)/2+64 {
			owner.parked, owner.gone = remaining(owner.parked), 0
		}
	}
	return parked
}

// next makes the first of the parked jobs the owner of their key, with the others parked behind it. If the key is in
// flight again, all are parked behind its owner, and next returns nil.
func (f *inflightKeys[T]) next(parked []*job[T]) *job[T] {
	k := parked[0].inflightKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	if owner := f.jobs[k]; owner != nil {
		owner.parked = append(owner.parked, parked...)
		return nil
	}
	parked[0].parked = append(parked[0].parked, parked[1:]...)
	f.jobs[k] = parked[0]
	return parked[0]
}

// handOverKey releases the key of an ended job. Jobs parked behind it get the recorded answer. If none was recorded,
// the first of them runs.
func (e *Engine[T]) handOverKey(j *job[T]) {
	if !j.keyed() {
		return
	}
	parked := e.inflight.remove(j)
	if len(parked) == 0 {
		return
	}
	if j.kept != nil {
		for _, p := range parked {
			if p.state.CompareAndSwap(waiting, claimed) {
				out, err := p.replay(j.kept)
				e.observeReplay(p, j.kept)
				e.finish(p, out, err)
			}
		}
		return
	}
	if parked = remaining(parked); len(parked) == 0 {
		return
	}
	head := e.inflight.next(parked)
	if head == nil {
		return
	}
	e.dispatch([]*job[T]{head})
	if head.state.Load() == abandoned {
		e.handOverKey(head) // it was abandoned before it owned the key
	}
}

// replay answers a job from the record of its key.
func (j *job[T]) replay(r *keyRecord) (Outcome, error) {
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		return Outcome{}, KeyReused.New("the Idempotency-Key was already used with other content: use a new key for another request").
			With("key", j.Key.Key).With("first_request_id", r.requestID)
	}
	if r.refused {
		f, err := fault.Decode(r.answer)
		if err != nil {
			return Outcome{}, err
		}
		f.RequestID = r.requestID
		return Outcome{Replayed: true, FirstRequestID: r.requestID}, f
	}
	return Outcome{Recorded: r.answer, Replayed: true, FirstRequestID: r.requestID}, nil
}

// observeReplay counts and logs a replay: once, with the answer, even if the batch was rerun.
func (e *Engine[T]) observeReplay(j *job[T], r *keyRecord) {
	attributes := []any{"operation", j.Key.Operation, "key", j.Key.Key, "first_request_id", r.requestID, "request_id",
		j.RequestID}
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		e.Count(j.Tenant, j.Key.Operation, "mismatch")
		e.log.Warn("request key reused with other content", attributes...)
		return
	}
	e.Count(j.Tenant, j.Key.Operation, "replayed")
	e.metrics.replayAge.Observe(max(0, time.Since(r.createdAt).Seconds()))
	e.log.Info("request key replayed", attributes...)
}
