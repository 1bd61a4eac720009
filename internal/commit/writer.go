package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxRaces      = 5 // races lost before a batch is halved
	maxCollisions = 2 // collisions of batch numbers before the batch counts as rejected
	maxLockWaits  = 3 // lock timeouts of a whole batch before it is bisected to find the commands that need the locks
	connTimeout   = 10 * time.Second
	maxGather     = 5 * time.Millisecond
	slowConnect   = 100 * time.Millisecond // before another writer is woken for the same jobs
)

// yields is the number of Gosched calls before each batch, so that callers that were just answered can enqueue their
// next call. No timer is involved; on an idle machine this takes a microsecond.
const yields = 4

// write is the loop of one writer. It runs batches until the queue is closed and every job has ended. It connects
// before it takes a batch, so that a hanging connect delays no job. If the connect fails, it takes a batch all the
// same: run connects again, and fails jobs whose deadline passes. The batch's ticket for latches is given back, so that
// other batches do not wait for it.
func (e *Engine[T]) write() {
	defer e.writers.Done()
	for {
		for range yields {
			runtime.Gosched()
		}
		if !e.queue.await() {
			return
		}
		hangs := time.AfterFunc(slowConnect, e.queue.ready.Signal) // another writer may be able to connect
		conn, err := e.connect()
		hangs.Stop()
		if err != nil {
			e.markUnready(err)
		}
		exclusive := !e.backoff.over()
		if exclusive { // wait for callers of the last batch to call again; another server has the rows meanwhile
			time.Sleep(min(e.pace.commit()/4, maxGather))
		}
		jobs, ticket, alone := e.queue.take(exclusive)
		if jobs == nil { // another writer took them
			putBack(conn)
			continue
		}
		m := mode{ticket: ticket}
		if err != nil {
			e.latches.pass(ticket)
			m.ticket = 0
		}
		e.metrics.size.Observe(float64(len(jobs)))
		if e.blocked.active() {
			jobs = e.setAside(jobs, e.blocked.known())
		}
		putBack(e.run(conn, jobs, m))
		e.queue.done(ticket, alone)
	}
}

// connect takes a connection from the pool.
func (e *Engine[T]) connect() (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	return conn, nil
}

func putBack(conn *pgxpool.Conn) {
	if conn != nil {
		conn.Release()
	}
}

// closeConn closes a connection that may be dead or point to a demoted primary.
func closeConn(conn *pgxpool.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx)
	conn.Release()
}

// run retries jobs until each has an answer or is blocked (see block). conn may be nil. run returns the connection to
// reuse, or nil.
func (e *Engine[T]) run(conn *pgxpool.Conn, jobs []*job[T], m mode) *pgxpool.Conn {
	m.optimistic = m.search == nil && e.backoff.over()
	races, collisions, waits, contended := 0, 0, 0, false
	for pause := 5 * time.Millisecond; ; {
		var live []*job[T]
		var end ending
		var err error
		conn, live, end, err = e.try(conn, jobs, m)
		e.latches.pass(m.ticket)
		m.ticket = 0
		if jobs = live; len(jobs) == 0 && end != lost { // lost: the server is not ready, even if all callers have left
			return conn
		}
		switch end {
		case done:
			if contended { // the pessimistic rerun committed, so the conflict was due to optimism, of our batches
				e.backoff.start()
				contended = false
			}
			if jobs = e.answer(jobs); len(jobs) == 0 {
				return conn
			}
		case incomplete: // rerun at once; maxMore bounds it
		case conflicted:
			m.optimistic, contended = false, e.causedByOtherProcess(err) && !e.slots.active()
		case overfull:
			return e.runHalves(conn, jobs, m.search)
		case raced:
			if races++; races == maxRaces {
				return e.refuseRaced(conn, jobs, err, m.search)
			}
			if jobs = e.pause(jobs, rand.N(time.Duration(races)*4*time.Millisecond), err); len(jobs) == 0 {
				return conn
			}
		case collided:
			e.batchIDs.discardBlock()
			if collisions++; collisions > maxCollisions {
				return e.reject(conn, jobs, err, m.search)
			}
		case blocked:
			m.optimistic = false
			if waits++; waits == maxLockWaits || m.search != nil || e.blocked.retrying.Load() || e.anyLate(jobs) {
				return e.runSearch(conn, jobs, err, m.search)
			}
		case lost:
			e.batchIDs.discardBlock() // the next connection may lead to another database
			e.pool.Reset()
			e.markUnready(err)
			if jobs = e.pause(jobs, pause, err); len(jobs) == 0 {
				return conn
			}
			pause = min(pause*2, 250*time.Millisecond)
		case rejected:
			return e.reject(conn, jobs, err, m.search)
		case broken:
			e.markUnready(err)
			e.log.Error("a batch failed", "jobs", len(jobs), "error", err)
			for _, j := range jobs {
				e.fail(j, unavailable(err))
			}
			return conn
		}
	}
}

// try claims the jobs that are not abandoned, and makes one attempt. On any ending except done no effect is
// durable.
func (e *Engine[T]) try(conn *pgxpool.Conn, jobs []*job[T],
	m mode) (_ *pgxpool.Conn, live []*job[T], end ending, err error) {
	if conn == nil {
		if conn, err = e.connect(); err != nil {
			if end = e.classify(err); end != lost {
				jobs = claim(jobs)
			}
			return nil, jobs, end, err
		}
	}
	if m.search != nil {
		jobs = e.failLate(jobs, nil)
	}
	if len(jobs) > 1 && slices.ContainsFunc(jobs, func(j *job[T]) bool { return j.DryRun }) {
		return conn, claim(jobs), overfull, nil // a dry run rolls back, so it needs an attempt of its own
	}
	started := e.health.begin()
	defer e.health.end(started)
	id, err := e.batchIDs.next(conn.Conn()) // may wait: callers may still leave
	if err != nil {
		closeConn(conn)
		end = e.classify(fmt.Errorf("%w: %w", errLost, err))
		e.metrics.countAttempt(end, err)
		return nil, claim(jobs), end, err
	}
	if live = claim(jobs); len(live) == 0 {
		return conn, nil, done, nil
	}
	defer func() { e.metrics.countAttempt(end, err) }()
	a, err := e.runAttempt(conn.Conn(), id, live, m)
	if err != nil {
		conn, live, end, err = e.failedAttempt(conn, a, live, err)
	}
	if end == done && e.blocked.active() {
		e.blocked.release(&a.latch.Latches)
	}
	if a.flushed {
		a.notifyObservers()
	}
	return conn, live, end, err
}

// failedAttempt determines how an attempt ended that failed: done, if its COMMIT was sent and has succeeded all the
// same. It returns nil for a connection that it had to close.
func (e *Engine[T]) failedAttempt(conn *pgxpool.Conn, a *attempt[T], live []*job[T],
	err error) (*pgxpool.Conn, []*job[T], ending, error) {
	end := a.classify(err)
	if lacksEpoch(err) {
		unclaim(live) // rolled back: callers may leave while another session records the epoch
		if failed := recordEpoch(context.Background(), conn.Conn()); failed != nil {
			end, err = lost, failed
		}
		live = claim(live)
	}
	if a.sent || end == lost || conn.Conn().IsClosed() {
		closeConn(conn)
		conn = nil
	}
	if a.sent && e.resolveOutcome(a, err) {
		return conn, live, done, nil
	}
	return conn, live, end, err
}

// answer answers every job with its committed outcome, and returns the jobs deferred by ErrLater.
func (e *Engine[T]) answer(jobs []*job[T]) (later []*job[T]) {
	for _, j := range jobs {
		switch {
		case j.deferred && j.err == nil:
			j.deferred = false
			later = append(later, j)
			continue
		case !j.fresh && j.kept != nil:
			e.observeReplay(j, j.kept)
		case j.fresh && j.err != nil:
			e.Count(j.Tenant, j.Key.Operation, "refused")
		case j.fresh && j.found != nil:
			e.Count(j.Tenant, j.Key.Operation, "expired")
		case j.fresh:
			e.Count(j.Tenant, j.Key.Operation, "first")
		}
		e.finish(j, j.out, j.err)
	}
	unclaim(later)
	return later
}

// pause sleeps before a retry, fails jobs past their deadline and returns the others.
func (e *Engine[T]) pause(jobs []*job[T], wait time.Duration, err error) (live []*job[T]) {
	unclaim(jobs)
	time.Sleep(wait)
	now := time.Now()
	for _, j := range jobs {
		switch {
		case now.Before(j.deadline):
			live = append(live, j)
		case j.state.CompareAndSwap(waiting, claimed):
			e.fail(j, e.deadlineFault(err))
		}
	}
	return live
}

// deadlineFault maps the last attempt's error to the fault of a job past its deadline.
func (e *Engine[T]) deadlineFault(err error) error {
	if end := e.classify(err); end == blocked || end == raced && !isCanceled(err) {
		return rowsLocked(err)
	}
	return unavailable(err)
}

// runHalves runs two or more jobs without effect in two batches. s may be nil.
func (e *Engine[T]) runHalves(conn *pgxpool.Conn, jobs []*job[T], s *search) *pgxpool.Conn {
	unclaim(jobs)
	if n := len(jobs) / 2; n > 0 {
		conn = e.run(conn, jobs[:n:n], mode{search: s})
		conn = e.run(conn, e.setAside(jobs[n:], s), mode{search: s})
	}
	return conn
}

// refuseRaced halves a batch that lost too many races. A single command is refused.
func (e *Engine[T]) refuseRaced(conn *pgxpool.Conn, jobs []*job[T], err error, s *search) *pgxpool.Conn {
	if len(jobs) > 1 {
		return e.runHalves(conn, jobs, s)
	}
	why := "a command was refused after losing five races for its rows"
	if isCanceled(err) {
		why = "a command was refused: its statements were cancelled five times"
		e.markUnready(err)
	}
	e.log.Error(why, "command", fmt.Sprintf("%T", jobs[0].Command), "request_id", jobs[0].RequestID, "error", err)
	e.fail(jobs[0], e.deadlineFault(err))
	return conn
}

// reject bisects a batch that the database rejected, left to right. A single command fails, without any effect.
func (e *Engine[T]) reject(conn *pgxpool.Conn, jobs []*job[T], err error, s *search) *pgxpool.Conn {
	if len(jobs) > 1 {
		e.queue.endExclusive()
		e.log.Warn("the database rejected a batch: retrying its halves", "jobs", len(jobs), "error", err)
		return e.runHalves(conn, jobs, s)
	}
	j := jobs[0]
	e.metrics.culprits.Inc()
	e.queue.culprit(j.Tenant)
	e.log.Error("the database rejected a command", "command", fmt.Sprintf("%T", j.Command),
		"request_id", j.RequestID, "error", err)
	e.fail(j, internal(err))
	return conn
}

// lockTimeout bounds each wait for a lock. It is as long as four COMMITs, because servers that share rows commit one
// after the other. A brief one is as long as two: for a search, and for the confirmation of an optimistic batch. Such
// a batch inserts entries before it locks their accounts, so it can wait for a batch of another server that has locked
// the accounts and waits for the entries. The optimistic one gives way.
func (e *Engine[T]) lockTimeout(brief bool) time.Duration {
	if brief {
		return max(e.lockWait/10, min(2*e.pace.commit(), statementTimeout/8), time.Millisecond)
	}
	return max(e.lockWait, min(4*e.pace.commit(), statementTimeout/4))
}

// pace is a moving average of the duration of COMMITs that wait for the disk or a standby.
type pace struct{ average atomic.Int64 }

func (p *pace) observe(took time.Duration) {
	old := p.average.Load()
	p.average.Store(old + (int64(took)-old)/8)
}

func (p *pace) commit() time.Duration { return time.Duration(p.average.Load()) }
