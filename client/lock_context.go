package client

import (
	"context"
	"sync"
	"time"
)

// lockContext is a context that ends with a lease. It checks the clock on every call, so a resumed process sees
// the end without waiting for a timer.
type lockContext struct {
	context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	ends  time.Duration // on the monotonic clock
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

// Err is non-nil once the lease has ended.
func (c *lockContext) Err() error {
	c.check()
	return c.Context.Err()
}

// Done is closed once the lease has ended.
func (c *lockContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *lockContext) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkLocked()
}

// checkLocked ends the context if its time has come; otherwise it resets the timer, which may have fired early.
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

// extend moves the end, unless the context has already ended.
func (c *lockContext) extend(ends time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checkLocked(); c.Context.Err() == nil {
		c.ends = max(c.ends, ends)
		c.timer.Reset(c.ends - monotonic())
	}
}

func (c *lockContext) lose(err error) { c.cancel(&lockLost{err}) }
