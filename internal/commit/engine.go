package commit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Config of an engine. Zero values take the defaults.
type Config[B Books] struct {
	Pool     *pgxpool.Pool // connections for batches; at least Writers+1
	NewBooks func() B
	Instance string // names this process in commit_batches
	Writers  int    // batches at a time, default 2
	Limits   Limits // default 1,000 rows a batch, 200,000 rows and 64 MiB waiting
	// NameConstraints are the unique constraints over names that callers choose: a violation means
	// that another process won the race, and the batch runs again.
	NameConstraints []string
	LockTimeout     time.Duration // default 100 ms
	Metrics         *Metrics
	Log             *slog.Logger
}

// Engine runs commands. Safe for many goroutines; several engines may share a database.
type Engine[B Books] struct {
	pool     *pgxpool.Pool
	newBooks func() B
	instance string
	names    map[string]bool
	settings settings
	metrics  *Metrics
	log      *slog.Logger

	queue   *queue[B]
	flights flights[B]
	ids     batchIDs
	broken  atomic.Pointer[error] // why commits fail now; nil: they do not
	writers sync.WaitGroup
}

// flights holds, for every request key on its way in this process, the job that came first.
type flights[B any] struct {
	mu   sync.Mutex
	jobs map[flightKey]*job[B]
}

type flightKey struct {
	tenant                    int32
	principal, operation, key string
}

func flightKeyOf(tenant int32, k *Key) flightKey {
	return flightKey{tenant, k.Principal, k.Operation, k.Key}
}

// New starts an engine.
func New[B Books](c Config[B]) *Engine[B] {
	if c.Writers == 0 {
		c.Writers = 2
	}
	if c.Limits == (Limits{}) {
		c.Limits = Limits{BatchRows: 1000, Rows: 200_000, Bytes: 64 << 20}
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 100 * time.Millisecond
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	e := &Engine[B]{
		pool: c.Pool, newBooks: c.NewBooks, instance: c.Instance,
		names:    map[string]bool{"commit_keys_pkey": true},
		settings: newSettings(c.LockTimeout),
		metrics:  c.Metrics, log: c.Log,
		queue: newQueue[B](c.Limits),
	}
	e.flights.jobs = make(map[flightKey]*job[B])
	for _, n := range c.NameConstraints {
		e.names[n] = true
	}
	c.Metrics.depth(func() float64 { return float64(e.queue.depth()) })
	for range c.Writers {
		e.writers.Add(1)
		go e.write()
	}
	return e
}

// Result is how one of several works ended: by its outcome, or by an error.
type Result struct {
	Outcome Outcome
	Err     error
}

// Do runs one work and waits for its outcome. When ctx ends first the work is either not run at all
// (NOT_RUN), or runs on without its caller (OUTCOME_UNKNOWN).
func (e *Engine[B]) Do(ctx context.Context, w Work[B]) (Outcome, error) {
	r := e.DoAll(ctx, []Work[B]{w})
	return r[0].Outcome, r[0].Err
}

// lockWaitDefault bounds the wait for locked rows of a caller without deadline.
const lockWaitDefault = 10 * time.Second

// DoAll runs works of one tenant, each for itself, and waits for all their outcomes.
func (e *Engine[B]) DoAll(ctx context.Context, works []Work[B]) []Result {
	wait := newWaiter(len(works))
	give := time.Now().Add(lockWaitDefault)
	if d, ok := ctx.Deadline(); ok && d.Before(give) {
		give = d
	}
	jobs := make([]*job[B], len(works))
	for i, w := range works {
		jobs[i] = &job[B]{Work: w, ctx: ctx, wait: wait, give: give}
	}
	e.submit(jobs)
	select {
	case <-wait.done:
	case <-ctx.Done():
		e.abandon(jobs)
	}
	results := make([]Result, len(jobs))
	for i, j := range jobs {
		select {
		case <-wait.done:
			results[i] = Result{j.out, j.err}
		default:
			results[i] = j.leave()
		}
	}
	return results
}

// finished is a state of its own, so that a caller who leaves never reads a job that is being written.
const finished int32 = 3

// leave tells a caller whose time is over what is known of the job.
func (j *job[B]) leave() Result {
	switch {
	case j.state.Load() == finished:
		return Result{j.out, j.err}
	case j.state.Load() == abandoned:
		return Result{Err: fault.NotRun.New("the call ended before its work began").Because(j.ctx.Err())}
	}
	return Result{Err: fault.OutcomeUnknown.New("the call ended while its work was running").Because(j.ctx.Err())}
}

// abandon takes back the jobs that no batch has claimed.
func (e *Engine[B]) abandon(jobs []*job[B]) {
	for _, j := range jobs {
		if j.state.CompareAndSwap(waiting, abandoned) {
			e.release(j)
		}
	}
}

// submit parks the jobs whose key is on its way already, and queues the others.
func (e *Engine[B]) submit(jobs []*job[B]) {
	first, crowd := jobs[:0:0], jobs[:0:0]
	e.flights.mu.Lock()
	for _, j := range jobs {
		if j.Key != nil && !j.DryRun {
			k := flightKeyOf(j.Tenant, j.Key)
			if owner := e.flights.jobs[k]; owner != nil {
				if len(owner.parked) >= maxParked {
					crowd = append(crowd, j)
				} else {
					owner.parked = append(owner.parked, j)
				}
				continue
			}
			e.flights.jobs[k] = j
		}
		first = append(first, j)
	}
	e.flights.mu.Unlock()
	e.enqueue(first, false)
	e.refuse(crowd, refusedBusy)
}

// maxParked is how many callers may wait behind one key.
const maxParked = 10_000

func (e *Engine[B]) enqueue(jobs []*job[B], again bool) {
	if a := e.queue.put(jobs, again); a != admitted {
		e.refuse(jobs, a)
	}
}

func (e *Engine[B]) refuse(jobs []*job[B], a admission) {
	if len(jobs) == 0 {
		return
	}
	var err error
	switch a {
	case refusedBusy:
		e.metrics.refused.Inc()
		err = fault.Busy.New("the server has as much work waiting as it takes").After(200 * time.Millisecond)
	case refusedClosed:
		err = fault.ShuttingDown.New("the server is ending").After(time.Second)
	}
	for _, j := range jobs {
		j.state.Store(claimed)
		e.finish(j, Outcome{}, err)
	}
}

// finish answers a job, and those parked behind it.
func (e *Engine[B]) finish(j *job[B], out Outcome, err error) {
	j.out, j.err = out, err
	j.state.Store(finished)
	e.release(j)
	j.wait.finish()
}

// release hands the key of an ended job on: those parked behind it get the recorded answer, or, when
// none was recorded, the first of them runs.
func (e *Engine[B]) release(j *job[B]) {
	if j.Key == nil || j.DryRun {
		return
	}
	k := flightKeyOf(j.Tenant, j.Key)
	e.flights.mu.Lock()
	if e.flights.jobs[k] != j {
		e.flights.mu.Unlock()
		return // it was parked itself
	}
	delete(e.flights.jobs, k)
	parked := j.parked
	j.parked = nil
	e.flights.mu.Unlock()
	if len(parked) == 0 {
		return
	}
	if !j.recorded {
		e.resubmit(parked)
		return
	}
	record := keyRecord{fingerprint: j.Key.Fingerprint, answer: j.answer, requestID: j.RequestID}
	if j.err != nil {
		record.refused = true
	}
	for _, p := range parked {
		if p.state.CompareAndSwap(waiting, claimed) {
			out, err := e.replay(p, &record)
			e.finish(p, out, err)
		}
	}
}

// resubmit runs parked jobs after all: they were let in before, so they are not refused as busy.
func (e *Engine[B]) resubmit(parked []*job[B]) {
	live := parked[:0:0]
	for _, p := range parked {
		if p.state.Load() == waiting {
			live = append(live, p)
		}
	}
	if len(live) == 0 {
		return
	}
	head := live[0]
	k := flightKeyOf(head.Tenant, head.Key)
	e.flights.mu.Lock()
	if owner := e.flights.jobs[k]; owner != nil {
		owner.parked = append(owner.parked, live...)
		e.flights.mu.Unlock()
		return
	}
	head.parked = append(head.parked, live[1:]...)
	e.flights.jobs[k] = head
	e.flights.mu.Unlock()
	e.enqueue([]*job[B]{head}, true)
	if head.state.Load() == abandoned {
		e.release(head) // its caller left before the key was its own
	}
}

// replay answers a job from what is recorded under its key.
func (e *Engine[B]) replay(j *job[B], r *keyRecord) (Outcome, error) {
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		e.metrics.key(j.Key.Operation, "mismatch")
		e.log.Warn("request key reused with other content", "operation", j.Key.Operation, "key", j.Key.Key,
			"first_request_id", r.requestID, "request_id", j.RequestID)
		return Outcome{}, KeyReused.New("the Idempotency-Key was used before with other content").
			With("key", j.Key.Key).With("first_request_id", r.requestID)
	}
	e.metrics.key(j.Key.Operation, "replayed")
	e.log.Info("request key replayed", "operation", j.Key.Operation, "key", j.Key.Key,
		"first_request_id", r.requestID, "request_id", j.RequestID)
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

// Ready tells why batches do not commit now, or nil.
func (e *Engine[B]) Ready() error {
	if err := e.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Drain takes no more work, commits what was taken, and returns when all is answered or ctx ends.
func (e *Engine[B]) Drain(ctx context.Context) error {
	e.queue.close()
	done := make(chan struct{})
	go func() {
		e.writers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("commit: not all work was answered before the end"), ctx.Err())
	}
}
