package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
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

// writer runs one batch, and the parts into which it is split, on a connection that it keeps between their attempts.
type writer[T Tx] struct {
	*Engine[T]
	conn *pgxpool.Conn // nil: there is none
	seq  int64         // sequence number of a batch of the queue; 0: of another one
}

// write is the loop of one writer. It runs batches until the queue is closed and every job has ended. It connects
// before it takes a batch, so that a hanging connect delays no job. If the connect fails, it takes a batch all the
// same: run connects again, and fails jobs whose deadline passes. The batch's sequence number passes then, so that
// other batches do not wait for its latch.
func (e *Engine[T]) write() {
	defer e.writers.Done()
	for {
		for range yields {
			runtime.Gosched()
		}
		if !e.queue.await() {
			return
		}
		w := writer[T]{Engine: e}
		hangs := time.AfterFunc(slowConnect, e.queue.ready.Signal) // another writer may be able to connect
		err := w.connect()
		hangs.Stop()
		if err != nil {
			e.markUnready(err)
		}
		exclusive := !e.backoff.over()
		if exclusive { // let callers of the last batch call again, and other servers use the rows
			time.Sleep(min(e.pace.commit()/4, maxGather))
		}
		jobs, seq, alone := e.queue.take(exclusive)
		if jobs == nil { // another writer took them
			w.putBack()
			continue
		}
		w.seq = seq
		m := mode{seq: seq}
		if err != nil {
			e.latches.pass(seq)
			m.seq = 0
		}
		e.metrics.size.Observe(float64(len(jobs)))
		if e.blocked.active() {
			jobs = e.setAside(jobs, e.blocked.known())
		}
		w.run(jobs, m)
		w.putBack()
		e.queue.done(seq, alone)
	}
}

// connect takes a connection from the pool.
func (w *writer[T]) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), connTimeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	w.conn = conn
	return nil
}

func (w *writer[T]) putBack() {
	if w.conn != nil {
		w.conn.Release()
		w.conn = nil
	}
}

// drop closes a connection that may be dead or lead to a demoted primary.
func (w *writer[T]) drop() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Conn().Close(ctx)
	w.putBack()
}

// run retries jobs until each has an answer or is blocked (see block).
func (w *writer[T]) run(jobs []*job[T], m mode) {
	e := w.Engine
	m.optimistic = m.search == nil && e.backoff.over()
	races, collisions, waits, contended := 0, 0, 0, false
	for pause := 5 * time.Millisecond; ; {
		live, end, err := w.try(jobs, m)
		e.latches.pass(m.seq)
		m.seq = 0
		if jobs = live; len(jobs) == 0 && end != lost { // lost: the server is not ready, even if all callers have left
			return
		}
		switch end {
		case done:
			if contended { // the rerun with locks committed: locks avoid such conflicts
				e.backoff.start()
				contended = false
			}
			if jobs = e.answer(jobs); len(jobs) == 0 {
				return
			}
		case incomplete: // rerun at once; maxMore bounds it
		case conflicted:
			m.optimistic, contended = false, e.causedByOtherProcess(err) && !e.slots.active()
		case overfull:
			w.runHalves(jobs, m.search)
			return
		case raced:
			if races++; races == maxRaces {
				w.refuseRaced(jobs, err, m.search)
				return
			}
			if jobs = e.pause(jobs, rand.N(time.Duration(races)*4*time.Millisecond), err); len(jobs) == 0 {
				return
			}
		case collided:
			e.batchIDs.discardBlock()
			if collisions++; collisions > maxCollisions {
				w.reject(jobs, err, m.search)
				return
			}
		case blocked:
			m.optimistic = false
			if waits++; waits == maxLockWaits || m.search != nil || e.blocked.retrying.Load() || e.anyLate(jobs) {
				w.runSearch(jobs, err, m.search)
				return
			}
		case lost:
			e.batchIDs.discardBlock() // the next connection may lead to another database
			e.pool.Reset()
			e.markUnready(err)
			if jobs = e.pause(jobs, pause, err); len(jobs) == 0 {
				return
			}
			pause = min(pause*2, 250*time.Millisecond)
		case rejected:
			w.reject(jobs, err, m.search)
			return
		case broken:
			e.markUnready(err)
			e.log.Error("a batch failed", "jobs", len(jobs), "error", err)
			for _, j := range jobs {
				e.fail(j, unavailable(err))
			}
			return
		}
	}
}

// try makes the jobs running that are not abandoned, and makes one attempt. On any ending except done no effect is
// durable.
func (w *writer[T]) try(jobs []*job[T], m mode) (live []*job[T], end ending, err error) {
	if w.conn == nil {
		if err = w.connect(); err != nil {
			if end = w.classify(err); end != lost {
				jobs = setRunning(jobs)
			}
			return jobs, end, err
		}
	}
	if m.search != nil {
		jobs = w.failLate(jobs, nil)
	}
	started := w.health.begin()
	defer w.health.end(started)
	id, err := w.batchIDs.next(w.conn.Conn()) // may wait: callers may still leave
	if err != nil {
		w.drop()
		end = w.classify(fmt.Errorf("%w: %w", errLost, err))
		w.metrics.countAttempt(end, err)
		return setRunning(jobs), end, err
	}
	if live = setRunning(jobs); len(live) == 0 {
		return nil, done, nil
	}
	defer func() { w.metrics.countAttempt(end, err) }()
	a, err := w.runAttempt(w.conn.Conn(), id, live, m)
	if err != nil {
		live, end, err = w.failedAttempt(a, live, err)
	}
	if end == done && w.blocked.active() {
		w.blocked.release(&a.latch.LatchKeys)
	}
	if a.flushed {
		a.notifyObservers()
	}
	return live, end, err
}

// failedAttempt determines how an attempt ended that failed: done, if its COMMIT was sent and has succeeded all the
// same. It drops a connection that may be of no more use.
func (w *writer[T]) failedAttempt(a *attempt[T], live []*job[T], err error) ([]*job[T], ending, error) {
	end := a.classify(err)
	if lacksEpoch(err) {
		setWaiting(live) // rolled back: callers may leave while another session records the epoch
		if failed := recordEpoch(context.Background(), w.conn.Conn()); failed != nil {
			end, err = lost, failed
		}
		live = setRunning(live)
	}
	if a.sent || end == lost || w.conn.Conn().IsClosed() {
		w.drop()
	}
	if a.sent && w.resolveOutcome(a, err) {
		return live, done, nil
	}
	return live, end, err
}

// answer answers every job with its committed outcome, blocks the jobs deferred by ErrHeld, and returns those deferred
// by ErrLater.
func (e *Engine[T]) answer(jobs []*job[T]) (later []*job[T]) {
	var held []*job[T]
	for _, j := range jobs {
		switch {
		case j.deferred != nil && j.err == nil:
			if errors.Is(j.deferred, ErrHeld) {
				held = append(held, j)
			} else {
				later = append(later, j)
			}
			j.deferred = nil
			continue
		case j.kept == nil:
		case j.kept == j.found:
			e.observeReplay(j, j.kept)
		case j.err != nil:
			e.Count(j.Tenant, j.Key.Operation, "refused")
		case j.found != nil:
			e.Count(j.Tenant, j.Key.Operation, "expired")
		default:
			e.Count(j.Tenant, j.Key.Operation, "first")
		}
		e.finish(j, j.out, j.err)
	}
	setWaiting(later)
	e.blockHeld(held)
	return later
}

// pause sleeps before a retry, fails jobs past their deadline and returns the others.
func (e *Engine[T]) pause(jobs []*job[T], wait time.Duration, err error) (live []*job[T]) {
	setWaiting(jobs)
	time.Sleep(wait)
	now := time.Now()
	for _, j := range jobs {
		switch {
		case now.Before(j.deadline):
			live = append(live, j)
		case j.state.CompareAndSwap(waiting, running):
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

// runHalves runs two or more jobs without effect in two batches, which may take long: other batches may run meanwhile.
// s may be nil.
func (w *writer[T]) runHalves(jobs []*job[T], s *search) {
	w.queue.endExclusive(w.seq)
	setWaiting(jobs)
	if n := len(jobs) / 2; n > 0 {
		w.run(jobs[:n:n], mode{search: s})
		w.run(w.setAside(jobs[n:], s), mode{search: s})
	}
}

// refuseRaced bisects a batch that lost too many races. A single command is refused.
func (w *writer[T]) refuseRaced(jobs []*job[T], err error, s *search) {
	if len(jobs) > 1 {
		w.runHalves(jobs, s)
		return
	}
	why := "a command was refused after losing five races for its rows"
	if isCanceled(err) {
		why = "a command was refused: its statements were cancelled five times"
		w.markUnready(err)
	}
	w.log.Error(why, "command", fmt.Sprintf("%T", jobs[0].Command), "request_id", jobs[0].RequestID, "error", err)
	w.fail(jobs[0], w.deadlineFault(err))
}

// reject bisects a batch that the database rejected, left to right. A single command fails, without any effect.
func (w *writer[T]) reject(jobs []*job[T], err error, s *search) {
	if len(jobs) > 1 {
		w.log.Warn("the database rejected a batch: retrying its halves", "jobs", len(jobs), "error", err)
		w.runHalves(jobs, s)
		return
	}
	j := jobs[0]
	w.metrics.culprits.Inc()
	w.queue.culprit(j.Tenant)
	w.log.Error("the database rejected a command", "command", fmt.Sprintf("%T", j.Command),
		"request_id", j.RequestID, "error", err)
	w.fail(j, internal(err))
}

// lockTimeout bounds each wait for a lock: four COMMITs, because servers that share rows commit one after the other,
// but at least LockTimeout and at most a quarter of statementTimeout. A brief wait is two COMMITs, at least a tenth of
// LockTimeout and at most an eighth of statementTimeout: for a search, and for the confirmation of an optimistic batch.
// Such a batch inserts entries before it locks their accounts, so it can wait for a batch of another server that has
// locked the accounts and waits for the entries. The optimistic one gives way.
func (e *Engine[T]) lockTimeout(brief bool) time.Duration {
	if brief {
		return max(e.lockWait/10, min(2*e.pace.commit(), statementTimeout/8), time.Millisecond)
	}
	return max(e.lockWait, min(4*e.pace.commit(), statementTimeout/4))
}

// pace is a moving average of the duration of the last round trip of batches, which has the COMMIT that waits for the
// disk or a standby. It has the batch's other statements too, unless these ran before (awaitPredecessors).
type pace struct{ average atomic.Int64 }

func (p *pace) observe(took time.Duration) {
	old := p.average.Load()
	p.average.Store(old + (int64(took)-old)/8)
}

func (p *pace) commit() time.Duration { return time.Duration(p.average.Load()) }

// backoff disables optimistic batches after a conflict with another process: for a second, doubling up to a minute if
// the next conflict comes within as much time after the end of the backoff as the backoff took.
type backoff struct {
	mu    sync.Mutex
	until time.Time
	pause time.Duration
}

const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

func (b *backoff) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().After(b.until)
}

// start begins a pause, unless one is running.
func (b *backoff) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Before(b.until) {
		return
	}
	if now.Before(b.until.Add(b.pause)) {
		b.pause = min(2*b.pause, maxBackoff)
	} else {
		b.pause = minBackoff
	}
	b.until = now.Add(b.pause)
}

// batchIDs hands out batch numbers from blocks of the sequence. The numbers of an epoch are above those of all earlier
// epochs: if the database loses its last commits (an asynchronous standby is promoted, a backup is restored), their
// numbers are not reused. After a loss that Postgres cannot detect, such as the restore of a disk snapshot, numbers are
// reused: then a batch may collide on the primary key, and a new block is fetched.
type batchIDs struct {
	mu            sync.Mutex
	unused, limit int64
	fetched       time.Time
}

const (
	batchBlock = 1000
	blockLife  = time.Hour // a number is used within an hour of being fetched
)

// next returns a number.
func (b *batchIDs) next(conn *pgx.Conn) (int64, error) {
	if id, ok := b.take(); ok {
		return id, nil
	}
	return b.fetch(conn)
}

// fetch fetches a block, and returns its first number. If it hangs, it blocks only its own writer.
func (b *batchIDs) fetch(conn *pgx.Conn) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	var first int64
	fetched := time.Now()
	err := durably(ctx, conn, func(tx pgx.Tx) (err error) {
		first, err = q.BatchBlock(ctx, tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit { // otherwise another writer was faster, and this block is dropped
		b.unused, b.limit, b.fetched = first, first+batchBlock, fetched
	}
	b.unused++
	return b.unused - 1, nil
}

// take returns a number, if the block has one left.
func (b *batchIDs) take() (id int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unused == b.limit || time.Since(b.fetched) > blockLife {
		b.unused = b.limit
		return 0, false
	}
	b.unused++
	return b.unused - 1, true
}

// discardBlock drops the rest of the block.
func (b *batchIDs) discardBlock() {
	b.mu.Lock()
	b.unused = b.limit
	b.mu.Unlock()
}
