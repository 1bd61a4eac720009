package client

import (
	"context"
	"sync"
	"time"
)

// lockContext is a context that ends when a lease does, by a clock that it looks at whenever somebody asks:
// a process that wakes up need not wait for a timer to learn that its time is over.
type lockContext struct {
	context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	ends  time.Duration // by monotonic
	timer *time.Timer
}

func newLockContext(parent context.Context, ends time.Duration) *lockContext {
	c := &lockContext{ends: ends}
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(ends-monotonic(), c.check)
	context.AfterFunc(c.Context, func() { c.timer.Stop() })
	return c
}

// Err is not nil when the lease has ended.
func (c *lockContext) Err() error {
	c.check()
	return c.Context.Err()
}

// Done is closed when the lease has ended.
func (c *lockContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *lockContext) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkLocked()
}

// checkLocked ends the context when its time has come, else sets the timer, which may have been early.
func (c *lockContext) checkLocked() {
	if c.Context.Err() != nil {
		return
	}
	if left := c.ends - monotonic(); left <= 0 {
		c.cancel(&lockLost{})
	} else if left < time.Millisecond {
		c.timer.Reset(left)
	}
}

// extend moves the end, unless it has come: what has ended does not begin again.
func (c *lockContext) extend(ends time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checkLocked(); c.Context.Err() == nil {
		c.ends = max(c.ends, ends)
		c.timer.Reset(c.ends - monotonic())
	}
}

func (c *lockContext) lose(err error) { c.cancel(&lockLost{err}) }
