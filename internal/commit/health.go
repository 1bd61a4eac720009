package commit

import (
	"context"
	"sync/atomic"
	"time"
)

// health is why commits fail now. It does not wait for work to find out that they no longer do:
// whoever asks Ready may have stopped sending work.
type health struct {
	broken  atomic.Pointer[error] // nil: commits do not fail
	probing atomic.Bool
	doubted atomic.Bool // a commit may not have reached a synchronous standby
}

const probePause = 250 * time.Millisecond

// Ready tells why batches do not commit now, or nil.
func (e *Engine[B]) Ready() error {
	if err := e.health.broken.Load(); err != nil {
		return *err
	}
	return nil
}

func (e *Engine[B]) breaks(err error) {
	e.health.broken.Store(&err)
	if e.health.probing.CompareAndSwap(false, true) {
		go e.probe()
	}
}

func (e *Engine[B]) mend() {
	if e.health.broken.Load() != nil {
		e.health.broken.Store(nil)
	}
}

// probe commits batches of no commands until one goes through.
func (e *Engine[B]) probe() {
	for {
		for e.health.broken.Load() != nil {
			select {
			case <-e.ended:
				return
			case <-time.After(probePause):
			}
			if e.probeOnce() == nil {
				e.mend()
			}
		}
		e.health.probing.Store(false)
		if e.health.broken.Load() == nil || !e.health.probing.CompareAndSwap(false, true) {
			return
		}
	}
}

func (e *Engine[B]) probeOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), voidTimeout)
	defer cancel()
	id, err := e.ids.next(ctx, e.pool)
	if err != nil {
		return err
	}
	_, err = e.void(ctx, id)
	return err
}
