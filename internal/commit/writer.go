package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// maxReruns bounds how often one batch is tried.
const maxReruns = 5

// write is a writer: it takes batches until the queue is closed and empty.
func (e *Engine[B]) write() {
	defer e.writers.Done()
	for {
		jobs, big := e.queue.take()
		if jobs == nil {
			return
		}
		e.metrics.size.Observe(float64(len(jobs)))
		e.settle(jobs)
		if big {
			e.queue.bigDone()
		}
	}
}

// settle runs jobs until each has an answer, or waits apart for a lock.
func (e *Engine[B]) settle(jobs []*job[B]) {
	for races, wait := 0, 5*time.Millisecond; len(jobs) > 0; {
		ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
		done, err := e.try(ctx, jobs)
		cancel()
		if done {
			e.mend()
			e.answer(jobs)
			return
		}
		if errors.Is(err, ErrMoreRows) {
			continue // bounded by the jobs themselves
		}
		e.metrics.reruns.Inc()
		switch e.classify(err) {
		case broken:
			e.fail(jobs, err)
			return
		case split:
			e.log.Warn("a batch was split", "jobs", len(jobs), "error", err)
			e.split(jobs, err)
			return
		case park:
			e.park(jobs, err)
			return
		case lost:
			e.breaks(err)
			jobs = e.expire(jobs, err)
			time.Sleep(wait)
			wait = min(wait*2, 250*time.Millisecond)
		case rerun:
			if races++; races >= maxReruns {
				e.fail(jobs, err)
				return
			}
			time.Sleep(time.Duration(rand.Int64N(int64(races) * int64(4*time.Millisecond))))
		}
	}
}

// answer gives every job the outcome that is now committed.
func (e *Engine[B]) answer(jobs []*job[B]) {
	for _, j := range jobs {
		if j.recorded {
			outcome := "first"
			if j.err != nil {
				outcome = "refused"
			}
			e.metrics.key(j.Key.Operation, outcome)
		}
		e.finish(j, j.out, j.err)
	}
}

// expire answers the jobs whose callers wait no longer, and returns the others.
func (e *Engine[B]) expire(jobs []*job[B], err error) []*job[B] {
	var late, live []*job[B]
	for _, j := range jobs {
		if time.Now().After(j.give) {
			late = append(late, j)
		} else {
			live = append(live, j)
		}
	}
	e.fail(late, err)
	return live
}

// try runs one attempt and settles its outcome: done means that all jobs have their answers.
func (e *Engine[B]) try(ctx context.Context, jobs []*job[B]) (done bool, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	id, err := e.ids.next(ctx, conn)
	if err != nil {
		return false, err
	}
	b, err := e.attempt(ctx, conn.Conn(), id, jobs)
	if err == nil {
		return true, nil
	}
	if !b.sent {
		return false, err
	}
	_ = conn.Conn().Close(ctx)
	e.metrics.unknown.Inc()
	e.log.Warn("the outcome of a COMMIT is unknown", "batch_id", id, "error", err)
	if errors.Is(err, errWarned) {
		for _, j := range jobs {
			j.out, j.err = Outcome{}, fault.OutcomeUnknown.New("the database committed without being sure that it lasts").Because(err)
		}
		return true, nil
	}
	return e.resolve(id), err
}

// resolve finds out whether a batch whose COMMIT got no answer has committed. It puts a void row
// under the batch's number: that waits for the other transaction if it still runs, and if it lands,
// the batch can never commit, because its own row would collide. Nobody is answered before.
func (e *Engine[B]) resolve(id int64) (committed bool) {
	for wait := 5 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		row, err := q.BatchVoid(ctx, e.pool, db.BatchVoidParams{BatchID: id, Instance: e.instance})
		cancel()
		if err == nil {
			e.log.Info("the outcome of a COMMIT is known", "batch_id", id, "committed", row > 0)
			return row > 0
		}
		e.breaks(err)
		time.Sleep(wait)
	}
}

// split runs the halves, left to right. A culprit alone fails; nothing of it is recorded.
func (e *Engine[B]) split(jobs []*job[B], err error) {
	if len(jobs) > 1 {
		e.settle(jobs[:len(jobs)/2])
		e.settle(jobs[len(jobs)/2:])
		return
	}
	j := jobs[0]
	e.metrics.culprits.Inc()
	e.queue.culprit(j.Tenant)
	e.log.Error("a command was refused by the database", "command", fmt.Sprintf("%T", j.Command),
		"request_id", j.RequestID, "error", err)
	j.recorded = false
	e.finish(j, Outcome{}, fault.InternalError.New("internal error").Because(err))
}

// park finds who waits for a lock that somebody holds, and lets it wait apart, so that nobody else does.
func (e *Engine[B]) park(jobs []*job[B], err error) {
	if len(jobs) > 1 {
		e.settle(jobs[:len(jobs)/2])
		e.settle(jobs[len(jobs)/2:])
		return
	}
	j := jobs[0]
	e.metrics.lockWaits.Inc()
	j.recorded = false
	if time.Now().After(j.give) {
		e.finish(j, Outcome{}, fault.RowsLocked.New("somebody holds the rows").After(100*time.Millisecond).Because(err))
		return
	}
	e.writers.Add(1)
	time.AfterFunc(time.Duration(20+rand.IntN(30))*time.Millisecond, func() {
		defer e.writers.Done()
		e.settle(jobs)
	})
}

// fail answers jobs that could not be committed. Nothing of them was kept.
func (e *Engine[B]) fail(jobs []*job[B], err error) {
	if len(jobs) == 0 {
		return
	}
	e.breaks(err)
	e.log.Error("a batch failed", "jobs", len(jobs), "error", err)
	for _, j := range jobs {
		j.recorded = false
		e.finish(j, Outcome{}, fault.DatabaseUnavailable.New("the database cannot commit now").After(time.Second).Because(err))
	}
}

func (e *Engine[B]) breaks(err error) { e.broken.Store(&err) }

func (e *Engine[B]) mend() {
	if e.broken.Load() != nil {
		e.broken.Store(nil)
	}
}

// batchIDs hands out batch numbers from blocks of the sequence.
type batchIDs struct {
	mu          sync.Mutex
	next_, last int64
}

const batchBlock = 1000

func (b *batchIDs) next(ctx context.Context, conn *pgxpool.Conn) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next_ == b.last {
		first, err := q.BatchBlock(ctx, conn)
		if err != nil {
			return 0, err
		}
		b.next_, b.last = first, first+batchBlock
	}
	b.next_++
	return b.next_ - 1, nil
}
