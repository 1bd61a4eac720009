package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/client"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// lockSite is a server with a client, and a pool to inspect its database.
func lockSite(t *testing.T, opts ...client.Option) (*client.Client, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	return newClient(t, startServer(t, db), opts...), pgtest.Pool(t, db.SuperDSN)
}

func mustLock(t testing.TB, c *client.Client, name string, opts ...client.LockOption) *client.Lock {
	t.Helper()
	l, err := c.Lock(context.Background(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestALockIsRenewedUntilItIsUnlocked(t *testing.T) {
	t.Parallel()
	c, db := lockSite(t)
	l := mustLock(t, c, "a", client.LockLease(3*time.Second), client.LockHolder("me"))
	_, err := c.Lock(context.Background(), "a", client.LockWait(7*time.Second))
	e, _ := client.AsError(err)
	if !errors.Is(err, client.ReasonLockHeld) || e.Metadata["holder"] != "me" || e.Metadata["position"] != "1" {
		t.Errorf("second acquisition: %v %+v", err, e)
	}
	if err := l.Context().Err(); err != nil {
		t.Errorf("its context ended: %v, %v", err, context.Cause(l.Context()))
	}
	var keys int
	if err := db.QueryRow(context.Background(),
		"select count(*) from commit_keys where operation = 'lock.renew'").Scan(&keys); err != nil || keys != 0 {
		t.Errorf("renewals left %d keys: %v", keys, err)
	}
	for range 2 {
		if err := l.Unlock(); err != nil {
			t.Errorf("unlock: %v", err)
		}
	}
	if l.Context().Err() == nil || errors.Is(context.Cause(l.Context()), client.ReasonLockLost) {
		t.Errorf("after Unlock: %v", context.Cause(l.Context()))
	}
	next := mustLock(t, c, "a", client.LockWait(0))
	if next.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), l.Fence())
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestWithLockExcludesOthers(t *testing.T) {
	t.Parallel()
	c, _ := lockSite(t)
	var inside, entered atomic.Int32
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			err := c.WithLock(context.Background(), "a", func(ctx context.Context, _ int64) error {
				if inside.Add(1) != 1 {
					t.Error("two holders at once")
				}
				entered.Add(1)
				inside.Add(-1)
				return ctx.Err()
			}, client.LockWait(time.Minute))
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if entered.Load() != 20 {
		t.Errorf("%d entered", entered.Load())
	}
	own := errors.New("own")
	//nolint:errorlint // the identical error
	if err := c.WithLock(context.Background(), "a", func(context.Context, int64) error { return own }); err != own {
		t.Errorf("the error of the work: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = c.WithLock(context.Background(), "a", func(context.Context, int64) error { panic("work") })
	}()
	if err := mustLock(t, c, "a", client.LockWait(0)).Unlock(); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

// ends waits for a context to end and returns the cause.
func ends(t testing.TB, ctx context.Context, limit time.Duration) error {
	t.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(limit):
		t.Fatalf("the context did not end within %v", limit)
		return nil
	}
}

func TestALostLockEndsItsContext(t *testing.T) {
	t.Parallel()
	c, db := lockSite(t)
	err := c.WithLock(context.Background(), "a", func(ctx context.Context, fence int64) error {
		child, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := db.Exec(context.Background(),
			"update lock_locks set fence = nextval('lock_fence_seq')"); err != nil {
			t.Error(err)
		}
		cause := ends(t, child, 5*time.Second)
		if e, _ := client.AsError(cause); !errors.Is(cause, client.ReasonLockLost) || e == nil ||
			e.Metadata["state"] != "held_by_another" {
			t.Errorf("the cause is %v", cause)
		}
		return nil
	}, client.LockLease(2*time.Second))
	if !errors.Is(err, client.ReasonLockLost) {
		t.Errorf("work that lost its lock ended with %v", err)
	}
}

// cutOff simulates a network that can be cut.
type cutOff struct{ off atomic.Bool }

// intercept loses requests while off is set.
func (c *cutOff) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if c.off.Load() {
			<-ctx.Done()
			return nil, connect.NewError(connect.CodeUnavailable, ctx.Err())
		}
		return next(ctx, r)
	}
}

// A holder that cannot reach the server must stop before another one can begin.
func TestTheContextEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	var net cutOff
	c, db := lockSite(t, client.WithInterceptors(connect.UnaryInterceptorFunc(net.intercept)))
	locks := make([]*client.Lock, 8)
	for i := range locks {
		locks[i] = mustLock(t, c, fmt.Sprint("a", i), client.LockLease(4*time.Second))
	}
	net.off.Store(true)
	var work sync.WaitGroup
	for _, l := range locks {
		work.Go(func() {
			if cause := ends(t, l.Context(), 8*time.Second); !errors.Is(cause, client.ReasonLockLost) {
				t.Errorf("the cause is %v", cause)
			}
			var left time.Duration
			if err := db.QueryRow(context.Background(),
				"select expires_at - clock_timestamp() from lock_locks where name = $1",
				l.Name()).Scan(&left); err != nil || left <= 0 {
				t.Errorf("%s: %v of the lease left: %v", l.Name(), left, err)
			}
		})
	}
	work.Wait()
	net.off.Store(false)
	for _, l := range locks {
		if err := l.Unlock(); !errors.Is(err, client.ReasonLockLost) {
			t.Errorf("unlock: %v", err)
		}
	}
}

// An outage shorter than the lease has no effect.
func TestAShortFailureDoesNotLoseTheLock(t *testing.T) {
	t.Parallel()
	var net cutOff
	c, _ := lockSite(t, client.WithInterceptors(connect.UnaryInterceptorFunc(net.intercept)))
	l := mustLock(t, c, "a", client.LockLease(3*time.Second))
	net.off.Store(true)
	<-time.After(1500 * time.Millisecond)
	net.off.Store(false)
	select {
	case <-l.Context().Done():
		t.Errorf("the lock was lost: %v", context.Cause(l.Context()))
	case <-time.After(3 * time.Second):
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// The answer to Acquire is lost and the call is retried: that is one acquisition, not a wait for oneself.
func TestALostAnswerIsOneAcquisition(t *testing.T) {
	t.Parallel()
	lossy := newLosing(1)
	c, _ := lockSite(t, client.WithHTTPClient(lossy))
	l := mustLock(t, c, "a", client.LockReentrant("me"))
	got, err := c.Locks.GetLock(context.Background(), &lockv1.GetLockRequest{Name: "a"})
	if err != nil || got.GetLock().GetHolds() != 1 || got.GetLock().GetFence() != l.Fence() {
		t.Errorf("%v %v", got, err)
	}
	again := mustLock(t, c, "a", client.LockReentrant("me"))
	if again.Fence() != l.Fence() {
		t.Errorf("fences %d and %d", l.Fence(), again.Fence())
	}
	for _, l := range []*client.Lock{l, again} {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	if err := mustLock(t, c, "a", client.LockWait(0)).Unlock(); err != nil {
		t.Error(err)
	}
}

// A key of the caller would replay an earlier acquisition, and keep renewals from renewing.
func TestALockIgnoresTheKeyAndInfoOfItsContext(t *testing.T) {
	t.Parallel()
	c, _ := lockSite(t)
	ctx, info := client.WithInfo(client.WithKey(context.Background(), "mine"))
	var fences []int64
	for range 2 {
		l, err := c.Lock(ctx, "a", client.LockLease(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		first := *info
		select {
		case <-l.Context().Done():
			t.Fatalf("the lock was not renewed: %v", context.Cause(l.Context()))
		case <-time.After(4 * time.Second): // longer than the lease
		}
		if *info != first || first.Key == "" || first.Key == "mine" {
			t.Errorf("the Info is %+v, and was %+v", *info, first)
		}
		fences = append(fences, l.Fence())
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if fences[1] <= fences[0] {
		t.Errorf("fences %v", fences)
	}
}

// The wait is longer than the lease; the acquired lock still has its full lease.
func TestWaitingDoesNotConsumeTheLease(t *testing.T) {
	t.Parallel()
	c, _ := lockSite(t)
	first := mustLock(t, c, "a", client.LockLease(3*time.Second))
	time.AfterFunc(4*time.Second, func() { _ = first.Unlock() })
	l := mustLock(t, c, "a", client.LockLease(3*time.Second))
	if err := l.Context().Err(); err != nil {
		t.Errorf("the context ended: %v", context.Cause(l.Context()))
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// When the caller's context ends, the lock's context ends, and the lock is no longer renewed.
func TestALockEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	c, _ := lockSite(t)
	ctx, cancel := context.WithCancel(context.Background())
	l, err := c.Lock(ctx, "a", client.LockLease(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if cause := ends(t, l.Context(), time.Second); !errors.Is(cause, context.Canceled) ||
		errors.Is(cause, client.ReasonLockLost) {
		t.Errorf("the cause is %v", cause)
	}
	next := mustLock(t, c, "a", client.LockWait(3*time.Second))
	if err := l.Unlock(); !errors.Is(err, client.ReasonLockLost) {
		t.Errorf("Unlock after the lease expired: %v", err)
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}
