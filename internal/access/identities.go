package access

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

const (
	rememberFor = 5 * time.Second
	renewAfter  = 3 * time.Second
	maxKnown    = 10_000
	maxLookups  = 4
)

// identities caches identities by the hash of their credential. A revoked credential may work for rememberFor.
type identities struct {
	lookups chan struct{} // bounds the connections that invalid credentials can use
	mu      sync.RWMutex
	known   map[[32]byte]*remembered
}

type remembered struct {
	identity Identity
	renew    time.Time   // from then on one caller refreshes the entry
	renewing atomic.Bool // a refresh is running; other callers use the cached entry
	until    time.Time
}

func newIdentities() *identities {
	return &identities{lookups: make(chan struct{}, maxLookups), known: make(map[[32]byte]*remembered)}
}

// find returns the cached identity of a credential, or looks it up.
func (c *identities) find(ctx context.Context, sum [32]byte, look func(context.Context) (Identity, error)) (Identity,
	error) {
	c.mu.RLock()
	r := c.known[sum]
	c.mu.RUnlock()
	now := time.Now()
	if r != nil && now.Before(r.until) && (now.Before(r.renew) || !r.renewing.CompareAndSwap(false, true)) {
		return r.identity, nil
	}
	id, err := look(ctx)
	if err != nil && r != nil && now.Before(r.until) && !fault.Is(err, Unauthenticated) {
		r.renewing.Store(false)
		return r.identity, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if fault.Is(err, Unauthenticated) { // after other errors keep the count of its calls in flight
			delete(c.known, sum)
		}
		return Identity{}, err
	}
	if earlier := c.known[sum]; earlier != nil { // renewed or expired, or of a concurrent look-up
		id.Calls = id.Calls.continues(earlier.identity.Calls)
	}
	c.makeRoom(now)
	until := now.Add(rememberFor)
	if !id.Expires.IsZero() && id.Expires.Before(until) {
		until = id.Expires
	}
	c.known[sum] = &remembered{identity: id, renew: now.Add(renewAfter), until: until}
	return id, nil
}

// makeRoom evicts identities from a full cache: first expired ones without calls in flight, then those without call
// limits, then all others.
func (c *identities) makeRoom(now time.Time) {
	for _, evict := range []func(*remembered) bool{
		func(r *remembered) bool { return now.After(r.until) && r.identity.Calls.idle() },
		func(r *remembered) bool { return r.identity.Calls == nil },
		func(*remembered) bool { return true },
	} {
		if len(c.known) < maxKnown {
			return
		}
		maps.DeleteFunc(c.known, func(_ [32]byte, r *remembered) bool { return evict(r) })
	}
}

// turn acquires one of the slots of lookups; done releases it. Returns fault NOT_RUN.
func (c *identities) turn(ctx context.Context) (done func(), err error) {
	select {
	case c.lookups <- struct{}{}:
		return func() { <-c.lookups }, nil
	case <-ctx.Done():
		return nil, fault.NotRun.New("the call timed out or was cancelled before its caller was authenticated").
			Because(ctx.Err())
	}
}
