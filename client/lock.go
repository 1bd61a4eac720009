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

// Lock is a lock that was acquired, and is renewed until Unlock. It is lost when it cannot be renewed in
// time; Context then ends, before anybody else can have the lock by the database's clock. A holder who
// stood still meanwhile (a stopped process, a suspended machine) finds it ended when he looks at it again.
//
// That is all a lease can do: what a holder sent before he stood still may arrive after another has the
// lock. So whatever the work writes to should check Fence. See docs/locks.md.
type Lock struct {
	client *Client
	name   string
	fence  int64
	lease  time.Duration
	ctx    *lockContext

	stop    context.CancelFunc // ends the watchdog
	watched chan struct{}      // closed when it has ended
	unlock  sync.Once
	err     error // of Unlock
}

// LockOption changes how a lock is acquired.
type LockOption func(*lockv1.AcquireRequest)

// LockLease sets how long the lock lasts without a renewal: 1 s to 1 h, default 30 s. It is renewed at a
// third of that. A short one lets others go on sooner after a crash; a long one outlasts longer failures.
func LockLease(d time.Duration) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Lease = durationpb.New(d) }
}

// LockWait sets how long to wait for the lock: 0 (try once) to 10 min, default 10 s. The deadline of the
// call, and that of WithAttemptTimeout, end the wait too.
func LockWait(d time.Duration) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Wait = durationpb.New(d) }
}

// LockHolder says who holds the lock, for those who find it held.
func LockHolder(holder string) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Holder = holder }
}

// LockReentrant lets the holder of this name have the lock several times at once, under one fence. It is
// free when each has been unlocked.
func LockReentrant(holder string) LockOption {
	return func(r *lockv1.AcquireRequest) { r.Holder, r.Reentrant = holder, true }
}

// LockPage says that the lock guards a page id: when it is held, the error is of class duplicate,
// ReasonPageLockHeld, and nobody needs to be told.
func LockPage() LockOption {
	return func(r *lockv1.AcquireRequest) { r.GuardsPage = true }
}

// Lock acquires a lock, waiting for it in order of arrival. The error is ReasonLockHeld, whose State names
// the holder, when the wait ends first. A key of WithKey is not used: what it was used for may be a lock of
// long ago. The lock's Context comes from ctx, and when ctx ends the lock is
// not renewed any more: Unlock it, or it lapses.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	req := &lockv1.AcquireRequest{Name: name}
	for _, o := range opts {
		o(req)
	}
	ctx = context.WithValue(ctx, keyContext{}, nil) // a key of the caller's own may bring a lock of long ago
	// before the first attempt: the answer may be that to an earlier one
	start := monotonic()
	res, err := c.Locks.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	l := &Lock{client: c, name: name, fence: res.GetLock().GetFence(), lease: res.GetLock().GetLease().AsDuration(),
		watched: make(chan struct{})}
	// it took some waiting, and nobody knows how much of that after the lock was there
	if monotonic()-start > l.lease/10 {
		start = monotonic()
		if err := l.renew(alone(ctx), l.lease/2); err != nil {
			l.release(ctx)
			return nil, err
		}
	}
	l.ctx = newLockContext(ctx, start+l.life())
	// nothing of the caller's: calls write to what contexts carry
	watch, stop := context.WithCancel(context.Background())
	l.stop = stop
	context.AfterFunc(l.ctx, stop)
	go l.watch(watch, start)
	return l, nil
}

// WithLock runs fn while it holds a lock, and gives fn the lock's context and fence. It returns the error
// of Lock, or that of fn, joined with ReasonLockLost when the lock was lost before fn had ended: then
// others may have worked beside it. That the lock could not be released is not an error: it lapses.
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

// Fence is the number of the acquisition: greater than those of all before.
func (l *Lock) Fence() int64 { return l.fence }

// Context ends when the lock is lost or unlocked, and with the context that it was acquired with.
// context.Cause tells a loss: errors.Is(cause, ReasonLockLost).
func (l *Lock) Context() context.Context { return l.ctx }

// Unlock gives the lock back. The error is ReasonLockLost when it was lost before; another one says that
// the release failed, and the lock lapses. To call it again does nothing, and returns the same.
func (l *Lock) Unlock() error {
	l.unlock.Do(func() {
		lost := l.ctx.Err() != nil && errors.Is(context.Cause(l.ctx), ReasonLockLost)
		l.stop()
		<-l.watched // no renewal goes out after the release
		l.ctx.cancel(context.Canceled)
		l.err = l.release(l.ctx)
		if lost && l.err == nil {
			l.err = context.Cause(l.ctx)
		}
	})
	return l.err
}

// releaseTimeout bounds a release: a lock that it fails for lapses.
const releaseTimeout = 5 * time.Second

func (l *Lock) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(alone(ctx)), releaseTimeout)
	defer cancel()
	_, err := l.client.Locks.Release(ctx, &lockv1.ReleaseRequest{Name: l.name, Fence: l.fence})
	return err
}

// alone keeps a call from what the caller wanted of the acquisition: its key, its Info, and what stood before it.
func alone(ctx context.Context) context.Context {
	for _, key := range [...]any{keyContext{}, infoContext{}, tokenContext{}, claimContext{}} {
		ctx = context.WithValue(ctx, key, nil)
	}
	return ctx
}

// life is for how long after the beginning of a renewal the context lasts: shorter than the lease, so that
// the work can end before others begin.
func (l *Lock) life() time.Duration { return l.lease - l.lease/10 }

// renew renews the lock, within limit.
func (l *Lock) renew(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := l.client.Locks.Renew(ctx, &lockv1.RenewRequest{Name: l.name, Fence: l.fence})
	return err
}

// look is how often the watchdog looks at the clock: timers do not count the time that a machine sleeps.
const look = time.Second

// watch renews the lock at a third of its lease, and tries again soon what failed, until it is unlocked or
// lost.
func (l *Lock) watch(ctx context.Context, renewed time.Duration) {
	defer close(l.watched)
	third := l.lease / 3
	next := renewed + third - rand.N(third/8+1)
	for {
		for now := monotonic(); now < next; now = monotonic() {
			if !pause(ctx, min(next-now, look)) || l.ctx.Err() != nil {
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
			l.ctx.extend(start + l.life())
			next = start + third - rand.N(third/8+1)
		case ctx.Err() != nil:
			return
		case gone(err):
			l.ctx.lose(err)
			return
		default:
			next = monotonic() + l.lease/50 + rand.N(l.lease/50)
		}
	}
}

// gone tells an error that no other attempt can mend.
func gone(err error) bool {
	e, ok := AsError(err)
	return ok && (e.Class == ClassRefusal || e.Class == ClassBadRequest)
}

// lockLost is the cause with which a lock's context ends when the lock is lost.
type lockLost struct{ cause error }

func (e *lockLost) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %v", ReasonLockLost, e.cause)
	}
	return string(ReasonLockLost) + ": the lock could not be renewed in time"
}

// Is makes errors.Is(err, ReasonLockLost) work.
func (e *lockLost) Is(target error) bool { return target == ReasonLockLost }

func (e *lockLost) Unwrap() error { return e.cause }
