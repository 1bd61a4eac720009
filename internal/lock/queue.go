package lock

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// A process renews the queue entries of its waiting calls every waiterRenewInterval. A process that dies blocks
// a queue for at most waiterTTL.
const (
	waiterTTL           = 6 * time.Second
	waiterRenewInterval = 2 * time.Second
)

// enqueueCommand appends a queue entry. Its answer is the ticket, or 0 if the lock is free; it fails with QueueFull.
type enqueueCommand struct {
	commit.Caller
	Key
	holder, instance string

	lock *lock
}

func (c *enqueueCommand) Need(tx *Tx) {
	c.lock = tx.lock(c.Key, true)
	tx.draw()
}

func (c *enqueueCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	if !tx.held(l) && tx.head(l) == nil {
		return int64(0), nil
	}
	if n := tx.ahead(l, 0); n >= maxWaiters {
		return nil, QueueFull.New("%d callers wait for the lock %q already", n, c.Name).After(time.Second)
	}
	w := &waiter{ticket: tx.next(), aliveUntil: tx.Now.Add(waiterTTL),
		fresh: &freshWaiter{c.Principal, c.holder, c.instance, c.RequestID}}
	tx.queue(l, w)
	return w.ticket, nil
}

// renewWaitersCommand renews the queue entries of one process in one queue. Its answer is the tickets that no
// longer exist.
type renewWaitersCommand struct {
	Key
	tickets []int64

	lock *lock
}

func (c *renewWaitersCommand) Need(tx *Tx) { c.lock = tx.lock(c.Key, true) }

func (c *renewWaitersCommand) Apply(tx *Tx) (any, error) {
	var gone []int64
	for _, t := range c.tickets {
		if w := tx.waiter(c.lock, t); w == nil {
			gone = append(gone, t)
		} else {
			w = tx.change(w)
			w.aliveUntil, w.renewed = tx.Now.Add(waiterTTL), true
		}
	}
	return gone, nil
}

// leaveCommand deletes a queue entry. Its answer is a leaveResult.
type leaveCommand struct {
	AcquireParams
	Key
	ticket int64

	lock *lock
}

// leaveResult is the state of the queue when the waiter left.
type leaveResult struct {
	held error // the refusal to return to the caller
	next int64 // ticket of the next waiter in line; 0: none
}

func (c *leaveCommand) Need(tx *Tx) { c.lock = tx.lock(c.Key, true) }

func (c *leaveCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	answer := leaveResult{held: c.held(tx, l, c.ticket)}
	if i := slices.IndexFunc(l.waiters, func(w *waiter) bool { return w.ticket == c.ticket && !w.gone }); i >= 0 {
		tx.change(l.waiters[i]).gone = true
	}
	answer.next = tx.turn(l)
	return answer, nil
}
