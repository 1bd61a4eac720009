package client

import (
	"context"
	"runtime"
	"time"
)

// GatherLanes is how many RPCs of gathered calls are on their way at once.
const GatherLanes = gatherLanes

// InLine is how many gathered calls wait for a lane.
func InLine(c *Client) int {
	c.gather.mu.Lock()
	defer c.gather.mu.Unlock()
	return len(c.gather.line)
}

// AwaitLine returns when n calls wait for a lane.
func AwaitLine(c *Client, n int) {
	for InLine(c) < n {
		runtime.Gosched()
	}
}

// Share is how many of the calls in line go into one batch while others are on their way.
func Share(line, flying int) int {
	g := gather{flying: flying}
	for range line {
		g.line = append(g.line, new(item))
	}
	return len(g.cut())
}

// EncodeItem and BatchRequest are how gathered calls are put together.
var EncodeItem = encodeItem

// TimelessLockContext is the context of a lock whose timer never fires, and what extends it from now.
func TimelessLockContext(parent context.Context, life time.Duration) (ctx context.Context, extend func(time.Duration)) {
	c := newLockContext(parent, monotonic()+life)
	c.timer.Stop()
	return c, func(life time.Duration) {
		c.extend(monotonic() + life)
		c.timer.Stop()
	}
}
