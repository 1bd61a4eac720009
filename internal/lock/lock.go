package lock

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// maxWaiters bounds a queue.
const maxWaiters = 1000

// Lock is a lock as callers see it. A zero Fence means that the lock is free.
type Lock struct {
	Name       string
	Principal  string
	Holder     string
	Fence      int64
	Holds      int
	Lease      time.Duration
	AcquiredAt time.Time
	ExpiresAt  time.Time
	RequestID  string
	Waiters    int // set by Reader.Get only
}

func (l *lock) view() Lock {
	v := &l.Value
	if v.State != stateHeld {
		return Lock{Name: l.Key.Name}
	}
	return Lock{Name: l.Key.Name, Principal: v.Principal, Holder: v.Holder, Fence: v.Fence, Holds: int(v.Holds),
		Lease: pg.Milliseconds(v.LeaseMs), AcquiredAt: v.AcquiredAt, ExpiresAt: v.ExpiresAt, RequestID: v.RequestID}
}

// AcquireParams describe the lock to acquire and the lease.
type AcquireParams struct {
	Name       string
	Holder     string
	Lease      time.Duration // in whole milliseconds
	Reentrant  bool
	GuardsPage bool
	RequestKey string // of the waiting call; empty: none
}

// held is the refusal when another holder has the lock or earlier callers wait for it.
func (p *AcquireParams) held(tx *Tx, l *lock, ticket int64) *fault.Fault {
	reason := Held
	if p.GuardsPage {
		reason = PageHeld
	}
	f := reason.New("other callers wait for the lock %q", p.Name)
	if tx.held(l) {
		f = reason.New("another holder has the lock %q", p.Name).With("holder", l.Value.Holder).
			With("principal", l.Value.Principal).With("expire_time", l.Value.ExpiresAt.Format(time.RFC3339Nano))
	}
	return f.With("position", tx.ahead(l, ticket)+1)
}

// AcquireCommand acquires a lock that is free or whose lease has expired, unless an earlier caller waits for
// it. Its answer is an Acquired; otherwise it fails with Held or PageHeld.
type AcquireCommand struct {
	commit.Caller
	AcquireParams
	Ticket int64 // of a waiting call; 0: none

	lock *lock
}

// Acquired is the answer to a successful AcquireCommand.
type Acquired struct {
	Lock
	Lapsed bool // the previous holder's lease expired without a release
}

func (c *AcquireCommand) Need(tx *Tx) {
	c.lock = tx.lock(Key{c.Tenant, c.Name}, true)
	tx.draw()
}

func (c *AcquireCommand) Apply(tx *Tx) (any, error) {
	l, held := c.lock, tx.held(c.lock)
	if held && c.Reentrant && l.Value.Holder == c.Holder && l.Value.Principal == c.Principal {
		v := tx.Change(l.Row)
		v.Holds++
		extend(v, tx.Now, max(c.Lease, pg.Milliseconds(v.LeaseMs))) // never shorten a lease that the holder relies on
		return Acquired{Lock: l.view()}, nil
	}
	first := tx.head(l)
	if held || first != nil && first.ticket != c.Ticket {
		return nil, c.held(tx, l, c.Ticket)
	}
	if first != nil {
		tx.change(first).gone = true
	}
	lapsed := l.Exists && l.Value.State == stateHeld
	v := tx.Change(l.Row)
	v.State, v.Principal, v.Holder, v.Fence, v.Holds = stateHeld, c.Principal, c.Holder, tx.next(), 1
	v.AcquiredAt, v.FreedAt, v.RequestID = tx.Now, nil, c.RequestID
	extend(v, tx.Now, c.Lease)
	return Acquired{l.view(), lapsed}, nil
}

// extend makes the lease last from now. It also moves acquiredAt back if the clock was set back after the acquisition.
func extend(v *row, now time.Time, lease time.Duration) {
	if v.AcquiredAt.After(now) {
		v.AcquiredAt = now
	}
	v.LeaseMs = int32(lease / time.Millisecond)
	v.ExpiresAt = now.Add(lease)
}

// RenewCommand makes a lease last from now. An expired lease cannot be renewed, even if the lock is still free: the
// result must not depend on whether another caller came first. Its answer is a Lock; otherwise it fails with Lost.
type RenewCommand struct {
	commit.Caller
	Name  string
	Fence int64
	Lease time.Duration // 0: unchanged

	lock *lock
}

func (c *RenewCommand) Need(tx *Tx) { c.lock = tx.lock(Key{c.Tenant, c.Name}, false) }

func (c *RenewCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	if !tx.held(l) || l.Value.Fence != c.Fence {
		return nil, lost(tx, l, c.Fence)
	}
	extend(tx.Change(l.Row), tx.Now, cmp.Or(c.Lease, pg.Milliseconds(l.Value.LeaseMs)))
	return l.view(), nil
}

func lost(tx *Tx, l *lock, fence int64) *fault.Fault {
	f := Lost.New("the lock %q is not held under fence %d", l.Key.Name, fence)
	switch {
	case tx.held(l) && l.Value.Fence != fence:
		f.With("state", "held_by_another")
	case l.Exists && l.Value.Fence == fence && l.Value.State == stateHeld:
		f.With("state", "lapsed").With("expire_time", l.Value.ExpiresAt.Format(time.RFC3339Nano))
	default:
		f.With("state", "free")
	}
	return f
}

// ReleaseCommand releases one hold of a lock. A repeat under the same fence succeeds. Its answer is a Released;
// otherwise it fails with Lost.
type ReleaseCommand struct {
	commit.Caller
	Name  string
	Fence int64

	lock *lock
}

// Released is the answer to a ReleaseCommand.
type Released struct {
	Lock
	Next int64 // ticket of the next waiter in line; 0: none
}

func (c *ReleaseCommand) Need(tx *Tx) { c.lock = tx.lock(Key{c.Tenant, c.Name}, true) }

func (c *ReleaseCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	switch {
	case l.Exists && l.Value.State == stateFree && l.Value.Fence == c.Fence:
		return commit.Repeat{First: Released{Lock: l.view()}}, nil
	case !tx.held(l) || l.Value.Fence != c.Fence:
		return nil, lost(tx, l, c.Fence)
	}
	v := tx.Change(l.Row)
	if v.Holds--; v.Holds > 0 {
		return Released{Lock: l.view()}, nil
	}
	now := tx.Now
	v.State, v.FreedAt = stateFree, &now
	return Released{l.view(), tx.turn(l)}, nil
}

// turn returns the ticket of the next waiter if the lock is free; otherwise 0.
func (tx *Tx) turn(l *lock) int64 {
	if w := tx.head(l); w != nil && !tx.held(l) {
		return w.ticket
	}
	return 0
}
