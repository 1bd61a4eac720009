package lock

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// The bounds of leases, and how many may wait for one lock.
const (
	MinLease   = time.Second
	MaxLease   = time.Hour
	maxWaiters = 1000
)

// Lock is a lock as callers see it. The zero Fence: nobody holds it.
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
	Waiters    int // told by Reader.Get alone
}

func (l *lock) view() Lock {
	v := &l.Value
	if v.state != stateHeld {
		return Lock{Name: l.Key.Name}
	}
	return Lock{Name: l.Key.Name, Principal: v.principal, Holder: v.holder, Fence: v.fence, Holds: int(v.holds),
		Lease: millis(v.leaseMS), AcquiredAt: v.acquiredAt, ExpiresAt: v.expiresAt, RequestID: v.requestID}
}

// AcquireParams are what to acquire.
type AcquireParams struct {
	Name       string
	Holder     string
	Lease      time.Duration // MinLease to MaxLease, in whole milliseconds
	Reentrant  bool
	GuardsPage bool
	RequestKey string // of the call that waits; empty: none
}

// held is the refusal when somebody else has the lock, or came before.
func (p *AcquireParams) held(tx *Tx, l *lock, ticket int64) *fault.Fault {
	reason := Held
	if p.GuardsPage {
		reason = PageHeld
	}
	f := reason.New("other callers wait for the lock %q", p.Name)
	if tx.held(l) {
		f = reason.New("another holder has the lock %q", p.Name).With("holder", l.Value.holder).With("principal",
			l.Value.principal).
			With("expire_time", l.Value.expiresAt.Format(time.RFC3339Nano))
	}
	return f.With("position", tx.ahead(l, ticket)+1)
}

// AcquireCommand takes a lock that is free, or whose lease has lapsed, and that nobody waits for who came
// before. Its answer is an Acquired; else it fails with Held or PageHeld.
type AcquireCommand struct {
	commit.Caller
	AcquireParams
	Ticket int64 // of one who waits; 0: none

	lock *lock
}

// Acquired is a lock that was taken.
type Acquired struct {
	Lock
	Lapsed bool // the holder before had not released it
}

// Need names the lock and its queue.
func (c *AcquireCommand) Need(tx *Tx) {
	c.lock = tx.lock(Key{c.Tenant, c.Name}, true)
	tx.draw()
}

// Apply takes it.
func (c *AcquireCommand) Apply(tx *Tx) (any, error) {
	l, held := c.lock, tx.held(c.lock)
	if held && c.Reentrant && l.Value.holder == c.Holder && l.Value.principal == c.Principal {
		v := tx.Change(l.Row)
		v.holds++
		v.extend(tx.Now, max(c.Lease, millis(v.leaseMS))) // who has it already counts on his lease
		return Acquired{Lock: l.view()}, nil
	}
	first := tx.head(l)
	if held || first != nil && first.ticket != c.Ticket {
		return nil, c.held(tx, l, c.Ticket)
	}
	if first != nil {
		tx.change(first).gone = true
	}
	lapsed := l.Exists && l.Value.state == stateHeld
	v := tx.Change(l.Row)
	v.state, v.principal, v.holder, v.fence, v.holds = stateHeld, c.Principal, c.Holder, tx.next(), 1
	v.acquiredAt, v.freedAt, v.requestID = tx.Now, time.Time{}, c.RequestID
	v.extend(tx.Now, c.Lease)
	return Acquired{l.view(), lapsed}, nil
}

// extend makes the lease last from now. The clock may have been set back since the lock was acquired.
func (v *row) extend(now time.Time, lease time.Duration) {
	if v.acquiredAt.After(now) {
		v.acquiredAt = now
	}
	v.leaseMS = int32(lease / time.Millisecond)
	v.expiresAt = now.Add(lease)
}

// RenewCommand makes a lease last from now. A lapsed one is gone, also when nobody has taken the lock
// since: whether it is must not hang on who looks first. Its answer is a Lock; else it fails with Lost.
type RenewCommand struct {
	commit.Caller
	Name  string
	Fence int64
	Lease time.Duration // 0: as before

	lock *lock
}

// Need names the lock.
func (c *RenewCommand) Need(tx *Tx) { c.lock = tx.lock(Key{c.Tenant, c.Name}, false) }

// Apply renews it.
func (c *RenewCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	if !tx.held(l) || l.Value.fence != c.Fence {
		return nil, lost(tx, l, c.Fence)
	}
	lease := c.Lease
	if lease == 0 {
		lease = millis(l.Value.leaseMS)
	}
	tx.Change(l.Row).extend(tx.Now, lease)
	return l.view(), nil
}

func lost(tx *Tx, l *lock, fence int64) *fault.Fault {
	f := Lost.New("the lock %q is not held under fence %d", l.Key.Name, fence)
	switch {
	case tx.held(l) && l.Value.fence > fence:
		f.With("now", "held by another")
	case l.Exists && l.Value.fence == fence && l.Value.state == stateHeld:
		f.With("now", "lapsed").With("expired_at", l.Value.expiresAt.Format(time.RFC3339Nano))
	default:
		f.With("now", "free")
	}
	return f
}

// ReleaseCommand gives a lock back, once. Its answer is a Released; else it fails with Lost.
type ReleaseCommand struct {
	commit.Caller
	Name  string
	Fence int64

	lock *lock
}

// Released is a lock that was given back.
type Released struct {
	Lock
	Next int64 // ticket of whose turn it is; 0: nobody's
}

// Need names the lock and its queue.
func (c *ReleaseCommand) Need(tx *Tx) { c.lock = tx.lock(Key{c.Tenant, c.Name}, true) }

// Apply releases it.
func (c *ReleaseCommand) Apply(tx *Tx) (any, error) {
	l := c.lock
	switch {
	case l.Exists && l.Value.state == stateFree && l.Value.fence == c.Fence:
		return commit.Repeat{First: Released{Lock: l.view()}}, nil
	case !tx.held(l) || l.Value.fence != c.Fence:
		return nil, lost(tx, l, c.Fence)
	}
	v := tx.Change(l.Row)
	if v.holds--; v.holds > 0 {
		return Released{Lock: l.view()}, nil
	}
	v.state, v.freedAt = stateFree, tx.Now
	return Released{l.view(), tx.turn(l)}, nil
}

// turn is the ticket of whose turn it is; 0: nobody's, or the lock is held.
func (tx *Tx) turn(l *lock) int64 {
	if w := tx.head(l); w != nil && !tx.held(l) {
		return w.ticket
	}
	return 0
}
