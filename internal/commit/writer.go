package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"
)

const (
	maxRaces     = 5 // how often a batch may lose a race before it is halved
	batchTimeout = 60 * time.Second
	connTimeout  = 10 * time.Second
)

// yields is how often a writer lets others run before it takes the next batch: callers who just got their answers
// then ask again in time for it. Nobody waits for a timer; on an idle machine it takes a microsecond. In BenchmarkClaim
// batches grow from 81 to 105 claims of 128, and throughput by 7 %.
const yields = 4

// write is a writer: it takes batches until the queue is closed and every job has ended.
func (e *Engine[B]) write() {
	defer e.writers.Done()
	for {
		for range yields {
			runtime.Gosched()
		}
		jobs, turn, big := e.queue.take()
		if jobs == nil {
			return
		}
		e.metrics.size.Observe(float64(len(jobs)))
		e.settle(jobs, manner{lockTimeout: e.lockTimeout(), turn: turn})
		if big {
			e.queue.bigDone()
		}
	}
}

// manner is how a batch is tried.
type manner struct {
	lockTimeout time.Duration
	overlap     bool
	sure        bool  // it looks every name up, see Guessing
	turn        int64 // it enters the roster when those with a lower one have; 0: at any time
}

// settle runs jobs until each has an answer, or waits apart for a lock.
func (e *Engine[B]) settle(jobs []*job[B], m manner) {
	m.overlap = m.lockTimeout == e.lockWait && e.caution.over()
	m.sure = !e.doubt.over()
	for races, wait := 0, 5*time.Millisecond; ; {
		live, err := e.try(jobs, m)
		e.roster.pass(m.turn)
		m.turn = 0
		if jobs = live; err == nil {
			if jobs = e.answer(jobs); len(jobs) == 0 {
				return
			}
			continue
		}
		if errors.Is(err, errAgain) {
			continue // bounded by the jobs themselves
		}
		if errors.Is(err, errWrongGuess) {
			e.metrics.wrongGuesses.Inc()
			m.sure = true
			for _, j := range jobs {
				j.verdict, j.counts, j.more = nil, false, 0 // it came of a guess
			}
			continue
		}
		if errors.Is(err, ErrLeftBehind) {
			e.metrics.leftBehind.Inc()
			m.overlap = false
			continue
		}
		e.metrics.reruns.Inc()
		switch e.classify(err) {
		case lost:
			e.breaks(err)
			handBack(jobs)
			time.Sleep(wait)
			wait = min(wait*2, 250*time.Millisecond)
			if jobs = e.expire(jobs, err); len(jobs) == 0 {
				return
			}
		case race:
			if isDeadlock(err) {
				e.metrics.deadlocks.Inc()
				e.log.Error("deadlock between batches", "error", err)
			}
			if races++; races == maxRaces {
				e.lose(jobs, err)
				return
			}
			time.Sleep(rand.N(time.Duration(races) * 4 * time.Millisecond))
		case locked:
			e.hold(jobs, err)
			return
		case broken:
			e.breaks(err)
			e.log.Error("a batch failed", "jobs", len(jobs), "error", err)
			for _, j := range jobs {
				e.fail(j, unavailable(err))
			}
			return
		case data:
			e.split(jobs, err, m.lockTimeout)
			return
		}
	}
}

// halves runs jobs of which nothing was kept in two batches.
func (e *Engine[B]) halves(jobs []*job[B], lockTimeout time.Duration) {
	handBack(jobs)
	if n := len(jobs) / 2; n > 0 {
		e.settle(jobs[:n:n], manner{lockTimeout: lockTimeout})
		e.settle(jobs[n:], manner{lockTimeout: lockTimeout})
	}
}

// answer gives every job the outcome that is now committed, and returns those that run after it.
func (e *Engine[B]) answer(jobs []*job[B]) (later []*job[B]) {
	for _, j := range jobs {
		switch {
		case j.later && j.err == nil:
			j.later = false
			later = append(later, j)
			continue
		case !j.fresh && j.kept != nil:
			e.tellReplay(j, j.kept)
		case j.fresh && j.err != nil:
			e.Count(j.Tenant, j.Key.Operation, "refused")
		case j.fresh && j.found != nil:
			e.Count(j.Tenant, j.Key.Operation, "expired")
		case j.fresh:
			e.Count(j.Tenant, j.Key.Operation, "first")
		}
		e.finish(j, j.out, j.err)
	}
	handBack(later)
	return later
}

// expire answers the jobs whose time is over, and returns the others.
func (e *Engine[B]) expire(jobs []*job[B], err error) (live []*job[B]) {
	now := time.Now()
	for _, j := range jobs {
		switch {
		case now.Before(j.end):
			live = append(live, j)
		case j.state.CompareAndSwap(waiting, claimed):
			e.fail(j, unavailable(err))
		}
	}
	return live
}

// lose halves a batch that lost too many races. Nothing can be done for one alone.
func (e *Engine[B]) lose(jobs []*job[B], err error) {
	if len(jobs) > 1 {
		e.halves(jobs, e.lockTimeout())
		return
	}
	e.log.Error("a command lost every race", "command", fmt.Sprintf("%T", jobs[0].Command),
		"request_id", jobs[0].RequestID, "error", err)
	e.fail(jobs[0], rowsLocked(err))
}

// split runs the halves of a batch that failed on somebody's data, left to right. A culprit alone
// fails; nothing of it is kept.
func (e *Engine[B]) split(jobs []*job[B], err error, lockTimeout time.Duration) {
	if len(jobs) > 1 {
		e.log.Warn("a batch was split", "jobs", len(jobs), "error", err)
		e.halves(jobs, lockTimeout)
		return
	}
	j := jobs[0]
	e.metrics.culprits.Inc()
	e.queue.culprit(j.Tenant)
	e.log.Error("a command was refused by the database", "command", fmt.Sprintf("%T", j.Command),
		"request_id", j.RequestID, "error", err)
	e.fail(j, internal(err))
}

// try claims the jobs whose callers still wait, and runs them once. Without an error they have
// their outcomes; with one nothing of them was kept.
func (e *Engine[B]) try(jobs []*job[B], m manner) (live []*job[B], err error) {
	ctx, cancel := context.WithTimeout(context.Background(), connTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		if err = fmt.Errorf("%w: %w", errLost, err); e.classify(err) == lost {
			return jobs, err // they go on waiting
		}
		if live = claim(jobs); len(live) == 0 {
			return nil, nil
		}
		return live, err
	}
	if live = claim(jobs); len(live) == 0 {
		conn.Release()
		return nil, nil
	}
	id, err := e.ids.next(ctx, conn)
	if err != nil {
		conn.Release()
		return live, err
	}
	b, err := e.attempt(conn.Conn(), id, live, m)
	if err != nil && (b.sent || e.classify(err) == lost) {
		_ = conn.Conn().Close(ctx) // also of a server that lives on, but was demoted
	}
	conn.Release()
	if err != nil && b.sent {
		err = e.findOut(b, err)
	}
	b.end()
	return live, err
}
