package access

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Calls bounds the calls of one API key in this process. Nil: no bounds.
type Calls struct {
	rate    *rate.Limiter // nil: no limit
	limit   int32         // of calls in flight; 0: none
	running atomic.Int32
}

// limitRetry is the RetryInfo of a call that is refused because too many are in flight.
const limitRetry = time.Second

// newCalls makes the bounds of a key: calls a second, and calls in flight. 0: no limit.
func newCalls(perSecond, limit int32) *Calls {
	if perSecond == 0 && limit == 0 {
		return nil
	}
	c := &Calls{limit: limit}
	if perSecond > 0 {
		c.rate = rate.NewLimiter(rate.Limit(perSecond), int(perSecond))
	}
	return c
}

// continues returns the earlier state of the same bounds.
func (c *Calls) continues(earlier *Calls) *Calls {
	if earlier != nil {
		return earlier // the bounds of a key never change
	}
	return c
}

// idle reports whether no call is in flight.
func (c *Calls) idle() bool { return c == nil || c.running.Load() == 0 }

// Enter admits a call. The caller must call Leave at the end of the call. Returns fault BUSY.
func (c *Calls) Enter() error {
	if n := c.running.Add(1); c.limit > 0 && n > c.limit {
		c.running.Add(-1)
		return fault.Busy.New("the API key has %d calls in flight, its limit on this server: retry later", c.limit).
			After(limitRetry)
	}
	if c.rate == nil {
		return nil
	}
	turn := c.rate.Reserve()
	if wait := turn.Delay(); wait > 0 {
		turn.Cancel()
		c.running.Add(-1)
		return fault.Busy.New("the API key has reached %v calls a second, its limit on this server: retry later",
			c.rate.Limit()).After(wait)
	}
	return nil
}

// Leave ends a call that Enter admitted.
func (c *Calls) Leave() { c.running.Add(-1) }
