package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
)

// Lock is an acquired lock, renewed until Unlock. If it cannot be renewed in time it is lost; Context then ends
// before another holder can acquire the lock, by the database's clock. A holder that was suspended meanwhile (a
// stopped process, a sleeping machine) finds the context ended when it resumes.
//
// A lease cannot do more: writes that a holder sent before it was suspended may arrive after another holder has
// acquired the lock. So storage that the work writes to should check Fence. See docs/locks.md.
type Lock struct {
	client *Client
	name   string
	fence  int64
	lease  time.Duration
	ctx    *lockContext

	stop    context.CancelFunc // ends the watchdog
	watched chan struct{}      // closed when the watchdog has ended
	unlock  sync.Once
	err     error // of Unlock
}

// LockOption configures the acquisition of a lock.
type LockOption func(*lockv1.AcquireRequest)

// LockLease sets the lease: 1 s to 1 h, default 30 s. It is renewed after a third of that. A short lease lets
// other holders continue sooner after a crash; a long one survives longer outages.
func LockLease(d time.Duration) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Lease = durationpb.New(d) }
}

// LockWait sets how long to wait for the lock: 0 (try once) to 10 min, default 10 s. The deadlines of the call
// and of WithAttemptTimeout also end the wait.
func LockWait(d time.Duration) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Wait = durationpb.New(d) }
}

// LockHolder sets the holder's name, which refused callers see.
func LockHolder(holder string) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Holder = holder }
}

// LockReentrant lets the holder of this name acquire the lock several times at once, under one fence. The lock
// is free once every acquisition is unlocked.
func LockReentrant(holder string) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Holder, r.Reentrant = holder, true }
}

// LockPage marks the lock as guarding a page id: if it is held, the error is ReasonPageLockHeld of class
// duplicate, which needs no message to the user.
func LockPage() LockOption {
	return func(r *lockv1.AcquireRequest) { r.GuardsPage = true }
}

// Lock acquires a lock, waiting in order of arrival. If the wait ends first, the error is ReasonLockHeld, whose
// Metadata has the holder. Lock ignores a key of WithKey, which may belong to an earlier acquisition. The lock's
// Context derives from ctx. When ctx ends the lock is no longer renewed: Unlock it, or it expires.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	req := &lockv1.AcquireRequest{Name: name}
	for _, o := range opts {
		o(req)
	}
	ctx = context.WithValue(ctx, keyContext{}, nil) // a key of the caller may replay an earlier acquisition
	// measure from before the first attempt: the answer may be to that one
	start := monotonic()
	res, err := c.Locks.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	l := &Lock{client: c, name: name, fence: res.GetLock().GetFence(), lease: res.GetLock().GetLease().AsDuration(),
		watched: make(chan struct{})}
	// the call waited, for an unknown part of the lease
	if monotonic()-start > l.lease/10 {
		start = monotonic()
		if err := l.renew(detached(ctx), l.lease/2); err != nil {
			l.release(ctx)
			return nil, err
		}
	}
	l.ctx = newLockContext(ctx, start+l.validFor())
	// detached from the caller: calls write to values in contexts
	watch, stop := context.WithCancel(context.Background())
	l.stop = stop
	context.AfterFunc(l.ctx, stop)
	go l.watch(watch, start)
	return l, nil
}

// WithLock runs fn while it holds a lock, and passes it the lock's context and fence. It returns the error of
// Lock, or fn's error, joined with ReasonLockLost if the lock was lost before fn returned: another holder may
// then have worked concurrently. A failed release is not an error, because the lock expires.
func (c *Client) WithLock(ctx context.Context, name string, fn func(ctx context.Context, fence int64) error,
	opts ...LockOption) (err error) {
	l, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if lost := l.Unlock(); errors.Is(lost, ReasonLockLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(l.ctx, l.fence)
}

// Name is the lock's name.
func (l *Lock) Name() string { return l.name }

// Fence is the number of the acquisition, greater than all earlier ones.
func (l *Lock) Fence() int64 { return l.fence }

// Context ends when the lock is lost or unlocked, or when the parent context ends. After a loss,
// errors.Is(context.Cause(ctx), ReasonLockLost) is true.
func (l *Lock) Context() context.Context { return l.ctx }

// Unlock releases the lock. The error is ReasonLockLost if it was lost before; any other error means that the
// release failed and the lock expires. Further calls return the same result.
func (l *Lock) Unlock() error {
	l.unlock.Do(func() {
		lost := l.ctx.Err() != nil && errors.Is(context.Cause(l.ctx), ReasonLockLost)
		l.stop()
		<-l.watched // no renewal may follow the release
		l.ctx.cancel(context.Canceled)
		l.err = l.release(l.ctx)
		if lost && l.err == nil {
			l.err = context.Cause(l.ctx)
		}
	})
	return l.err
}

// releaseTimeout bounds a release; if it fails, the lock expires.
const releaseTimeout = 5 * time.Second

func (l *Lock) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(detached(ctx)), releaseTimeout)
	defer cancel()
	_, err := l.client.Locks.Release(ctx, &lockv1.ReleaseRequest{Name: l.name, Fence: l.fence})
	return err
}

// detached removes the caller's key, Info, token and claim, which belong to the acquisition, from the context.
func detached(ctx context.Context) context.Context {
	for _, key := range [...]any{keyContext{}, infoContext{}, tokenContext{}, claimContext{}} {
		ctx = context.WithValue(ctx, key, nil)
	}
	return ctx
}

// validFor is how long the context lasts from the beginning of a renewal: shorter than the lease, so that the work
// ends before another holder begins.
func (l *Lock) validFor() time.Duration { return l.lease - l.lease/10 }

// renew renews the lock within limit.
func (l *Lock) renew(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := l.client.Locks.Renew(ctx, &lockv1.RenewRequest{Name: l.name, Fence: l.fence})
	return err
}

// watchInterval is the watchdog's polling interval: timers do not count the time that a machine sleeps.
const watchInterval = time.Second

// watch renews the lock after a third of its lease, retrying failures soon, until the lock is unlocked or lost.
func (l *Lock) watch(ctx context.Context, renewed time.Duration) {
	defer close(l.watched)
	third := l.lease / 3
	next := renewed + third - rand.N(third/8+1)
	for {
		for now := monotonic(); now < next; now = monotonic() {
			if !pause(ctx, min(next-now, watchInterval)) || l.ctx.Err() != nil {
				return
			}
		}
		if l.ctx.Err() != nil {
			return
		}
		start := monotonic()
		err := l.renew(ctx, third)
		switch {
		case err == nil:
			l.ctx.extend(start + l.validFor())
			next = start + third - rand.N(third/8+1)
		case ctx.Err() != nil:
			return
		case permanent(err):
			l.ctx.lose(err)
			return
		default:
			next = monotonic() + l.lease/50 + rand.N(l.lease/50)
		}
	}
}

// permanent reports an error that retrying cannot fix.
func permanent(err error) bool {
	e, ok := AsError(err)
	return ok && (e.Class == ClassRefusal || e.Class == ClassBadRequest)
}

// lockLost is the cause of a lock's context after a loss.
type lockLost struct{ cause error }

func (e *lockLost) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %v", ReasonLockLost, e.cause)
	}
	return string(ReasonLockLost) + ": the lock could not be renewed in time"
}

// Is supports errors.Is(err, ReasonLockLost).
func (e *lockLost) Is(target error) bool { return target == ReasonLockLost }

func (e *lockLost) Unwrap() error { return e.cause }
