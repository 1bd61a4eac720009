package commit

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// health records why commits fail. A probe clears the error by committing a batch without commands: a load balancer
// that watches Ready may have stopped sending calls.
type health struct {
	broken    atomic.Pointer[error] // nil: commits succeed
	probing   atomic.Bool
	clockLead lead

	mu      sync.Mutex
	running map[int64]time.Time // running attempts, with their start
	begun   int64               // attempts so far
}

const (
	probePause = 250 * time.Millisecond
	// stuckAfter is the age of an attempt at which the engine is no longer ready: the connection may be silent.
	stuckAfter = 5 * time.Second
)

// Ready returns the reason why batches cannot commit now, or nil.
func (e *Engine[T]) Ready() error {
	if err := e.health.broken.Load(); err != nil {
		return *err
	}
	if age := e.health.oldest(); age > stuckAfter {
		return fmt.Errorf("commit: a batch has been running for %v", age.Truncate(time.Millisecond))
	}
	return nil
}

// begin records a running attempt, until end.
func (h *health) begin() (attempt int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running == nil {
		h.running = make(map[int64]time.Time)
	}
	h.begun++
	h.running[h.begun] = time.Now()
	return h.begun
}

func (h *health) end(attempt int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, attempt)
}

// oldest returns the age of the oldest running attempt.
func (h *health) oldest() (age time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for began := range maps.Values(h.running) {
		age = max(age, time.Since(began))
	}
	return age
}

// markUnready records why commits fail, and starts a probe that clears the error once a commit succeeds.
func (e *Engine[T]) markUnready(err error) {
	e.health.broken.Store(&err)
	if e.health.probing.CompareAndSwap(false, true) {
		go e.probe()
	}
}

func (e *Engine[T]) markReady() {
	if e.health.broken.Load() != nil {
		e.health.broken.Store(nil)
	}
}

// probe commits batches without commands until one succeeds.
func (e *Engine[T]) probe() {
	for {
		for e.health.broken.Load() != nil {
			select {
			case <-e.ended:
				return
			case <-time.After(probePause):
			}
			if e.probeOnce() == nil {
				e.noticeEpoch()
				e.markReady()
			}
		}
		e.health.probing.Store(false)
		if e.health.broken.Load() == nil || !e.health.probing.CompareAndSwap(false, true) {
			return
		}
	}
}

// noticeEpoch records a new epoch after a restore or a failover. The next block of batch numbers records it too: an
// epoch that is not recorded would share its number with the one after it. Cursors, fences and audit events depend on
// it.
func (e *Engine[T]) noticeEpoch() {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	if _, err := CurrentEpoch(ctx, e.pool); err != nil {
		e.log.Warn("the epoch of the database was not recorded", "error", err)
	}
}

// probeOnce commits a batch without commands, under a number of its own.
func (e *Engine[T]) probeOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	id, err := e.batchIDs.next(conn.Conn())
	if err != nil {
		_ = conn.Conn().Close(ctx)
	}
	conn.Release()
	if err != nil {
		return err
	}
	_, err = e.void(id, 0)
	return err
}

// lead is how far recorded times were ahead of the database's clock within leadMemory: the clock ran fast, or was set
// back.
type lead struct {
	nanoseconds atomic.Int64
	seen        atomic.Int64 // Unix nanoseconds
}

const (
	leadTolerated = time.Second
	leadMemory    = time.Minute
)

func (l *lead) observe(at Times) {
	if ahead := at.Recorded.Sub(at.Now); ahead > leadTolerated {
		l.nanoseconds.Store(int64(ahead))
		l.seen.Store(time.Now().UnixNano())
	}
}

// ClockLead returns by how much a recorded time was ahead of the database's clock in the last minute, or 0 up to one
// second. The history of such rows continues at that time until the clock reaches it.
func (e *Engine[T]) ClockLead() time.Duration {
	if time.Since(time.Unix(0, e.health.clockLead.seen.Load())) > leadMemory {
		return 0
	}
	return time.Duration(e.health.clockLead.nanoseconds.Load())
}
