package crash_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestLocksOutliveTheirServer kills a server with SIGKILL while one caller holds a lock through it and another
// one is first in its queue. The holder continues through another server, and the queue continues without the
// dead waiter.
func TestLocksOutliveTheirServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.SuperDSN)
	tenant, err := access.EnsureTenant(ctx, pool, "crash")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	key, err := access.Administer(pool).CreateKey(ctx, tenant,
		access.NewKey{Principal: "tester", Rights: access.Rights{Role: access.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	w.apiKey = key.Secret
	binary := build(t)
	for range 2 {
		w.servers = append(w.servers, startServer(t, binary, db.AppDSN))
	}
	dying, staying := w.locks(0), w.locks(1)
	held, err := dying.Acquire(ctx, &lockv1.AcquireRequest{Name: "a", Lease: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	fence := held.GetLock().GetFence()
	waits := func(n int) {
		t.Helper()
		for got := -1; got != n; {
			if err := pool.QueryRow(ctx,
				"select count(*) from lock_waiters where alive_until > clock_timestamp()").Scan(&got); err != nil {
				t.Fatal(err)
			}
		}
	}
	dead := make(chan error, 1)
	go func() {
		_, err := dying.Acquire(ctx, &lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(time.Minute)})
		dead <- err
	}()
	waits(1)
	type outcome struct {
		lock *lockv1.Lock
		err  error
	}
	next := make(chan outcome, 1)
	go func() {
		res, err := staying.Acquire(ctx, &lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(time.Minute)})
		next <- outcome{res.GetLock(), err}
	}()
	waits(2)
	w.servers[0].kill()
	if err := <-dead; err == nil {
		t.Error("the killed server answered")
	}
	if _, err := staying.Renew(ctx, &lockv1.RenewRequest{Name: "a", Fence: fence}); err != nil {
		t.Errorf("renewal through another server: %v", err)
	}
	if _, err := staying.Release(ctx, &lockv1.ReleaseRequest{Name: "a", Fence: fence}); err != nil {
		t.Fatal(err)
	}
	released := time.Now()
	got := <-next
	if got.err != nil || got.lock.GetFence() <= fence {
		t.Fatalf("next waiter: %v %v", got.lock, got.err)
	}
	if took := time.Since(released); took > 40*time.Second {
		t.Errorf("the dead waiter blocked the queue for %v", took)
	}
	t.Logf("the next waiter acquired the lock %v after the release", time.Since(released))
}

func (w *world) locks(n int) lockv1connect.LockServiceClient {
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+w.apiKey)
			return next(ctx, r)
		}
	})
	return lockv1connect.NewLockServiceClient(http.DefaultClient, "http://"+w.servers[n].address(),
		connect.WithInterceptors(auth))
}
