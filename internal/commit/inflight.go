package commit

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// inflight holds, for every request key on its way in this process, the job that came first. Others
// with the key are parked behind it, so that within one process nobody races for a key.
type inflight[T any] struct {
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

// park parks the jobs whose key is on its way, and returns those that run.
func (f *inflight[T]) park(jobs []*job[T]) (first []*job[T]) {
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

// land takes the key of an ended job off its way, and returns those parked behind it. A job that was
// parked itself has nobody, and is forgotten.
func (f *inflight[T]) land(j *job[T]) (parked []*job[T]) {
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

// next makes the first of parked jobs the owner of their key, the others parked behind it, unless
// the key is on its way again: then all are parked there, and nobody is returned.
func (f *inflight[T]) next(parked []*job[T]) *job[T] {
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

// release hands the key of an ended job on: those parked behind it get what is recorded, or, when
// nothing is, the first of them runs.
func (e *Engine[T]) release(j *job[T]) {
	if !j.keyed() {
		return
	}
	parked := e.flying.land(j)
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
	head := e.flying.next(parked)
	if head == nil {
		return
	}
	e.queue.put([]*job[T]{head})
	if head.state.Load() == abandoned {
		e.release(head) // its caller left before the key was its own
	}
}

// replay answers a job from what is recorded under its key.
func (j *job[T]) replay(r *keyRecord) (Outcome, error) {
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
func (e *Engine[T]) tellReplay(j *job[T], r *keyRecord) {
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
