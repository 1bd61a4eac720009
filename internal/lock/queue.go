package lock

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// placeLife is for how long a place is kept without a word from its process, placeKept how often that
// speaks. So a process that dies holds a queue up for placeLife at most.
const (
	placeLife = 6 * time.Second
	placeKept = 2 * time.Second
)

// enqueueCommand takes a place at the end of a queue. Its answer is the ticket, 0 when there is nothing to
// wait for; it fails with QueueFull.
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
	w := &waiter{ticket: tx.next(), aliveUntil: tx.Now.Add(placeLife),
		fresh: &freshWaiter{c.Principal, c.holder, c.instance, c.RequestID}}
	tx.queue(l, w)
	return w.ticket, nil
}

// keepCommand keeps the places that a process has in a queue. Its answer are the tickets that are gone.
type keepCommand struct {
	Key
	tickets []int64

	lock *lock
}

func (c *keepCommand) Need(tx *Tx) { c.lock = tx.lock(c.Key, true) }

func (c *keepCommand) Apply(tx *Tx) (any, error) {
	var gone []int64
	for _, t := range c.tickets {
		if w := tx.waiter(c.lock, t); w == nil {
			gone = append(gone, t)
		} else {
			w = tx.change(w)
			w.aliveUntil, w.kept = tx.Now.Add(placeLife), true
		}
	}
	return gone, nil
}

// leaveCommand gives a place up. Its answer is a left.
type leaveCommand struct {
	AcquireParams
	Key
	ticket int64

	lock *lock
}

// left is how it stood when a waiter left.
type left struct {
	held error // what he is refused with
	next int64 // ticket of whose turn it is now; 0: nobody's
}

func (c *leaveCommand) Need(tx *Tx) { c.lock = tx.lock(c.Key, true) }

func (c *leaveCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	answer := left{held: c.held(tx, l, c.ticket)}
	if i := slices.IndexFunc(l.waiters, func(w *waiter) bool { return w.ticket == c.ticket && !w.gone }); i >= 0 {
		tx.change(l.waiters[i]).gone = true
	}
	answer.next = tx.turn(l)
	return answer, nil
}
