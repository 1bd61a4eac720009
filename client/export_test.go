package client

import (
	"context"
	"runtime"
	"time"
)

// GatherLanes is the number of concurrent RPCs of gathered calls.
const GatherLanes = gatherLanes

// InLine is the number of gathered calls that wait for a lane.
func InLine(c *Client) int {
	c.gather.mu.Lock()
	defer c.gather.mu.Unlock()
	return len(c.gather.line)
}

// AwaitLine returns once n calls wait for a lane.
func AwaitLine(c *Client, n int) {
	for InLine(c) < n {
		runtime.Gosched()
	}
}

// Share is the size of the next batch, given the calls in line and in flight.
func Share(line, flying int) int {
	g := gather{flying: flying}
	for range line {
		g.line = append(g.line, new(item))
	}
	return len(g.cut())
}

// EncodeItem and BatchRequest encode gathered calls.
var EncodeItem = encodeItem

// TimelessLockContext is a lock's context whose timer never fires, with a function that extends it from now.
func TimelessLockContext(parent context.Context, life time.Duration) (ctx context.Context, extend func(time.Duration)) {
	c := newLockContext(parent, monotonic()+life)
	c.timer.Stop()
	return c, func(life time.Duration) {
		c.extend(monotonic() + life)
		c.timer.Stop()
	}
}
