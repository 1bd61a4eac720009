package commit

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// flights holds, for every request key on its way in this process, the job that came first. Others
// with the key are parked behind it, so that within one process nobody races for a key.
type flights[B any] struct {
	mu   sync.Mutex
	jobs map[flightKey]*job[B]
}

type flightKey struct {
	tenant                    int32
	principal, operation, key string
}

func (j *job[B]) flight() flightKey {
	return flightKey{j.Tenant, j.Key.Principal, j.Key.Operation, j.Key.Key}
}

// park parks the jobs whose key is on its way, and returns those that run.
func (f *flights[B]) park(jobs []*job[B]) (first []*job[B]) {
	if !slices.ContainsFunc(jobs, (*job[B]).keyed) {
		return jobs
	}
	first = make([]*job[B], 0, len(jobs))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range jobs {
		if j.keyed() {
			k := j.flight()
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

// land takes the key of an ended job off its way, and returns those parked behind it. A job that was
// parked itself has nobody, and is forgotten.
func (f *flights[B]) land(j *job[B]) (parked []*job[B]) {
	k := j.flight()
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

// next makes the first of parked jobs the owner of their key, the others parked behind it, unless
// the key is on its way again: then all are parked there, and nobody is returned.
func (f *flights[B]) next(parked []*job[B]) *job[B] {
	k := parked[0].flight()
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

// release hands the key of an ended job on: those parked behind it get what is recorded, or, when
// nothing is, the first of them runs.
func (e *Engine[B]) release(j *job[B]) {
	if !j.keyed() {
		return
	}
	parked := e.flights.land(j)
	if len(parked) == 0 {
		return
	}
	if j.kept != nil {
		for _, p := range parked {
			if p.state.CompareAndSwap(waiting, claimed) {
				out, err := p.replay(j.kept)
				e.tellReplay(p, j.kept)
				e.finish(p, out, err)
			}
		}
		return
	}
	if parked = remaining(parked); len(parked) == 0 {
		return
	}
	head := e.flights.next(parked)
	if head == nil {
		return
	}
	e.queue.put([]*job[B]{head})
	if head.state.Load() == abandoned {
		e.release(head) // its caller left before the key was its own
	}
}

// replay answers a job from what is recorded under its key.
func (j *job[B]) replay(r *keyRecord) (Outcome, error) {
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		return Outcome{}, KeyReused.New("the Idempotency-Key was used before with other content").
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

// tellReplay counts and logs a replay: once, when it is the answer, however often its batch ran.
func (e *Engine[B]) tellReplay(j *job[B], r *keyRecord) {
	attributes := []any{"operation", j.Key.Operation, "key", j.Key.Key, "first_request_id", r.requestID, "request_id", j.RequestID}
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		e.Count(j.Tenant, j.Key.Operation, "mismatch")
		e.log.Warn("request key reused with other content", attributes...)
		return
	}
	e.Count(j.Tenant, j.Key.Operation, "replayed")
	e.metrics.replayAge.Observe(max(0, time.Since(r.createdAt).Seconds()))
	e.log.Info("request key replayed", attributes...)
}
