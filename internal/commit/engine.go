package commit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Config configures an engine. Zero values mean the defaults.
type Config[T Tx] struct {
	Pool *pgxpool.Pool // at least Writers+2 connections, and MaxDirect more if there are direct commands
	// NewTx returns an empty transaction. direct: for a direct command that does not run as a batch of one.
	NewTx    func(direct bool) T
	Instance string // names this process in commit_batches
	Writers  int    // batches at a time, default 2
	Limits   Limits // default 1,000 rows in a batch; 200,000 rows and 64 MiB queued or running
	// NameConstraints are the unique constraints on names that callers choose. A violation means that another process
	// won the race, and the batch is rerun.
	NameConstraints []string
	// LockTimeout is the minimum wait of a batch for a lock that another transaction holds, except for the brief waits
	// of a search and of the confirmation of an optimistic batch; see the method lockTimeout. After three timeouts
	// (after one, while other commands are blocked) the batch is bisected to find the commands that need the lock.
	// Default 100 ms.
	LockTimeout time.Duration
	Metrics     *Metrics
	Log         *slog.Logger
}

// Engine runs commands. Safe for many goroutines; several engines may share a database.
type Engine[T Tx] struct {
	pool     *pgxpool.Pool
	newTx    func(direct bool) T
	instance string
	names    map[string]bool
	lockWait time.Duration
	metrics  *Metrics
	log      *slog.Logger

	queue    *queue[T]
	latches  *latchTable
	inflight inflightKeys[T]
	blocked  blockedJobs[T]
	batchIDs batchIDs
	health   health
	counts   counts
	backoff  backoff
	pace     pace
	slots    slots[T]
	writers  sync.WaitGroup
	ended    chan struct{} // closed when writers, direct commands and retries have ended
}

// New starts an engine.
func New[T Tx](c Config[T]) *Engine[T] {
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
	e := &Engine[T]{
		pool: c.Pool, newTx: c.NewTx, instance: c.Instance,
		names:    map[string]bool{"commit_keys_pkey": true},
		lockWait: c.LockTimeout,
		metrics:  c.Metrics, log: c.Log,
		queue: newQueue[T](c.Limits, c.Writers), latches: newLatchTable(),
		slots: slots[T]{tenants: make(map[int32]*tenantSlots[T])}, ended: make(chan struct{}),
	}
	e.inflight.jobs = make(map[inflightKey]*job[T])
	e.blocked.locked, e.blocked.free = map[uint64]time.Time{}, map[uint64]time.Time{}
	for _, n := range c.NameConstraints {
		e.names[n] = true
	}
	c.Metrics.gauges(func() float64 { return float64(e.queue.depth()) },
		func() float64 { return e.ClockLead().Seconds() })
	e.writers.Add(c.Writers)
	for range c.Writers {
		go e.write()
	}
	go func() {
		e.writers.Wait()
		close(e.ended)
	}()
	return e
}

// Result is the outcome or the error of one Submission passed to DoAll.
type Result struct {
	Outcome Outcome
	Err     error
}

// Do runs one submission and waits for its outcome. If ctx ends first, Do returns OUTCOME_UNKNOWN if the command had
// begun, otherwise NOT_RUN or a more specific reason.
func (e *Engine[T]) Do(ctx context.Context, w Submission[T]) (Outcome, error) {
	if err := ctx.Err(); err != nil {
		return Outcome{}, callEnded(err)
	}
	wait, j := newWaiter(1), new(job[T])
	j.start(w, wait, deadline(ctx))
	e.submit([]*job[T]{j})
	wait.until(ctx)
	r := e.resultOf(ctx, j)
	return r.Outcome, r.Err
}

func callEnded(err error) error {
	return fault.NotRun.New("the call had already timed out or been cancelled").Because(err)
}

// defaultDeadline applies to callers without a deadline: it bounds waits for the database and for locked rows.
const defaultDeadline = 10 * time.Second

func deadline(ctx context.Context) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(defaultDeadline)
	}
	return end
}

// DoAll runs submissions of one tenant, each independently, and waits for all outcomes.
func (e *Engine[T]) DoAll(ctx context.Context, submissions []Submission[T]) []Result {
	results := make([]Result, len(submissions))
	if len(submissions) == 0 {
		return results
	}
	if err := ctx.Err(); err != nil {
		for i := range results {
			results[i].Err = callEnded(err)
		}
		return results
	}
	wait, end := newWaiter(len(submissions)), deadline(ctx)
	jobs := make([]*job[T], len(submissions))
	for i, w := range submissions {
		jobs[i] = new(job[T])
		jobs[i].start(w, wait, end)
	}
	e.submit(jobs)
	wait.until(ctx)
	for i, j := range jobs {
		results[i] = e.resultOf(ctx, j)
	}
	return results
}

// resultOf returns the job's result, or NOT_RUN or OUTCOME_UNKNOWN if ctx ended first.
func (e *Engine[T]) resultOf(ctx context.Context, j *job[T]) Result {
	if j.state.CompareAndSwap(waiting, abandoned) {
		e.queue.end(j)
		e.handOverKey(j)
		return Result{Err: e.notRun(j, ctx.Err())}
	}
	if j.state.Load() == finished {
		return Result{j.out, j.err}
	}
	j.callerLeft.Store(true)
	return Result{Err: fault.OutcomeUnknown.New("the call timed out or was cancelled while its command was running").
		Because(ctx.Err())}
}

// notRun returns the reason why a job did not run before its caller's deadline.
func (e *Engine[T]) notRun(j *job[T], cause error) error {
	if j.awaitsRows.Load() {
		return rowsLocked(cause)
	}
	if err := e.Ready(); err != nil {
		return unavailable(err)
	}
	return fault.NotRun.New("the call timed out or was cancelled before its command began").Because(cause)
}

func rowsLocked(cause error) error {
	return fault.RowsLocked.New("other transactions hold the rows, or keep changing them").
		After(100 * time.Millisecond).Because(cause)
}

func unavailable(cause error) error {
	return fault.DatabaseUnavailable.New("the database cannot commit now").After(time.Second).Because(cause)
}

// submit admits jobs, and starts those whose request key is not in flight. The others follow the job with their key.
func (e *Engine[T]) submit(jobs []*job[T]) {
	var err error
	switch e.queue.admit(jobs) {
	case refusedBusy:
		e.metrics.refused.Add(float64(len(jobs)))
		err = fault.Busy.New("the queue is full: retry later").After(200 * time.Millisecond)
	case refusedLarge:
		err = TooManyRows.New("the call exceeds one tenant's share of the queue: split it")
	case refusedClosed:
		err = fault.ShuttingDown.New("the server is shutting down").After(time.Second)
	case admitted:
		e.dispatch(e.inflight.join(jobs))
		return
	}
	for _, j := range jobs {
		j.err = err
		j.state.Store(finished)
		j.wait.finish()
	}
}

// finish answers a running job, and hands its key over: its followers get the recorded answer, or one of them runs.
func (e *Engine[T]) finish(j *job[T], out Outcome, err error) {
	j.out, j.err = out, err
	j.state.Store(finished)
	e.handOverKey(j)
	e.queue.end(j)
	j.wait.finish()
}

// fail answers a running job that has no durable effect.
func (e *Engine[T]) fail(j *job[T], err error) {
	j.reset()
	e.finish(j, Outcome{}, err)
}

// Drain rejects new calls and waits until all admitted ones are answered or ctx ends.
func (e *Engine[T]) Drain(ctx context.Context) error {
	e.queue.close()
	select {
	case <-e.ended:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("commit: drain timed out with calls unanswered"), ctx.Err())
	}
}

// Load returns the estimated rows in the engine, as a number of full batches.
func (e *Engine[T]) Load() float64 {
	return float64(e.queue.depth()) / float64(e.queue.limits.BatchRows)
}

// dispatch queues jobs for batches, and runs the direct ones.
func (e *Engine[T]) dispatch(jobs []*job[T]) {
	batched := jobs[:0:0]
	for _, j := range jobs {
		if j.Direct == nil || j.DryRun {
			batched = append(batched, j)
			continue
		}
		e.startDirect(j)
	}
	e.queue.put(batched)
}
