package lock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// arrive starts callers one after the other, alternating between processes, and returns the order in which they
// acquire the lock. Each releases it immediately. The first holder releases it once all callers wait.
func arrive(t *testing.T, db *pgtest.DB, processes []*process, callers int) (order []int) {
	t.Helper()
	super := pgtest.Pool(t, db.SuperDSN)
	first := processes[0].must(processes[0].acquire("a", "first", time.Minute))
	var mu sync.Mutex
	var work sync.WaitGroup
	for n := range callers {
		p := processes[n%len(processes)]
		work.Go(func() {
			l, err := p.wait(context.Background(), params("a", n, time.Minute), time.Minute)
			if err != nil {
				t.Error(n, err)
				return
			}
			mu.Lock()
			order = append(order, n)
			mu.Unlock()
			if _, err := p.release("a", l.Fence); err != nil {
				t.Error(n, err)
			}
		})
		eventually(t, 10*time.Second, "the caller is queued", func() bool {
			return count(t, super, "select count(*) from lock_waiters") == n+1
		})
	}
	if _, err := processes[0].release("a", first.Fence); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if n := count(t, super, "select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d queue entries are left", n)
	}
	return order
}

func TestWaitersAreServedInOrderOfArrivalAcrossProcesses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const callers = 60
	start1 := time.Now()
	order := arrive(t, db, []*process{start(t, db.AllDSN), start(t, db.AllDSN)}, callers)
	if want := slices.Sorted(slices.Values(order)); !slices.Equal(order, want) || len(order) != callers {
		t.Errorf("the order was %v", order)
	}
	t.Logf("%d callers in %v", callers, time.Since(start1))
}

// A release in one process wakes a waiter in another process much sooner than polling would.
func TestAHintWakesTheOtherProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := start(t, db.AllDSN), start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	var waits []time.Duration
	for i := range 12 {
		l := a.must(a.acquire("a", "one", time.Minute))
		released := make(chan time.Time, 1)
		go func() {
			eventually(t, 20*time.Second, "the other process waits and listens", func() bool {
				return count(t, super, "select count(*) from lock_waiters") == 1 &&
					count(t, super, "select count(*) from pg_stat_activity where query = 'listen ledgerd_lock' "+
						"and datname = current_database()") >= 1
			})
			released <- time.Now()
			if _, err := a.release("a", l.Fence); err != nil {
				t.Error(err)
			}
		}()
		got := b.must(b.wait(context.Background(), params("a", "two", time.Minute), 20*time.Second))
		waits = append(waits, time.Since(<-released))
		if _, err := b.release("a", got.Fence); err != nil {
			t.Fatal(i, err)
		}
	}
	slices.Sort(waits)
	t.Logf("from a release to the acquisition in the other process: %v", waits)
	if waits[2] > 150*time.Millisecond { // some: a slow machine may delay half of them
		t.Errorf("all but two waits took %v or longer: polling alone takes 250 ms to 750 ms", waits[2])
	}
}

func TestAnEndedWaitReportsPositionAndHolder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	l := p.must(p.acquire("a", "one", time.Minute))
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	work.Go(func() {
		if _, err := p.wait(ctx, params("a", "two", time.Minute), time.Minute); !fault.Is(err, fault.NotRun) {
			t.Errorf("cancelled caller: %v", err)
		}
	})
	eventually(t, 20*time.Second, "two waits",
		func() bool { return count(t, super, "select count(*) from lock_waiters") == 1 })
	_, err := p.wait(context.Background(), params("a", "three", time.Minute), 300*time.Millisecond)
	if f := fault.Of(err); !fault.Is(err, lock.Held) || f.Metadata["position"] != "2" || f.Metadata["holder"] != "one" {
		t.Errorf("three: %v", err)
	}
	short, end := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer end()
	began := time.Now()
	if _, err := p.wait(short, params("a", "four", time.Minute), time.Minute); !fault.Is(err, lock.Held) ||
		time.Since(began) > 20*time.Second {
		t.Errorf("bounded by the call's deadline: %v after %v", err, time.Since(began))
	}
	cancel()
	work.Wait()
	if n := count(t, super, "select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d queue entries are left", n)
	}
	if _, err := p.release("a", l.Fence); err != nil {
		t.Fatal(err)
	}
	p.must(p.acquire("a", "five", time.Minute)) // no waiter is left before this caller
}

// A caller that cancels while it is being enqueued leaves no queue entry behind.
func TestACancelledCallerLeavesNoQueueEntry(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	p.must(p.acquire("a", "one", time.Minute))
	var work sync.WaitGroup
	for n := range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(n%50)*200*time.Microsecond, cancel)
		work.Go(func() {
			if _, err := p.wait(ctx, params("a", n, time.Minute), time.Minute); err == nil {
				t.Error("acquired by a cancelled caller")
			}
		})
		if n%8 == 7 {
			work.Wait()
		}
	}
	if n := count(t, super, "select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d queue entries are left", n)
	}
}

func TestAnExpiredLeaseGoesToTheWaiter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	p.must(p.acquire("a", "dead", time.Second))
	began := time.Now()
	l := p.must(p.wait(context.Background(), params("a", "two", time.Minute), 10*time.Second))
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("took %v", took)
	}
	if l.Holder != "two" {
		t.Errorf("%+v", l)
	}
}

// The first waiter's process dies. The queue continues after that waiter's entry has expired, and not before.
func TestADeadWaiterBlocksTheQueueOnlyUntilItsEntryExpires(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	dead, alive := start(t, db.AllDSN), start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	l := alive.must(alive.acquire("a", "one", time.Minute))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _, _ = dead.wait(ctx, params("a", "dead", time.Minute), time.Minute) }()
	eventually(t, 20*time.Second, "the first waits",
		func() bool { return count(t, super, "select count(*) from lock_waiters") == 1 })
	dead.stop() // stops renewing its entry, and does not see its turn
	if _, err := alive.release("a", l.Fence); err != nil {
		t.Fatal(err)
	}
	if _, err := alive.acquire("a", "pushes", time.Minute); !fault.Is(err, lock.Held) {
		t.Errorf("a caller overtook a waiter: %v", err)
	}
	began := time.Now()
	got := alive.must(alive.wait(context.Background(), params("a", "next", time.Minute), 30*time.Second))
	if took := time.Since(began); took < time.Second || took > 12*time.Second {
		t.Errorf("took %v", took)
	}
	t.Logf("after %v", time.Since(began))
	if _, err := alive.release("a", got.Fence); err != nil {
		t.Fatal(err)
	}
}

// Many callers of two processes request one lock at the same moment. Each acquires it, one at a time.
func TestAStampedeIsServedOneByOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	processes := []*process{start(t, db.AllDSN), start(t, db.AllDSN)}
	const callers = 100
	var inside, served atomic.Int32
	var work sync.WaitGroup
	for n := range callers {
		p := processes[n%2]
		work.Go(func() {
			l, err := p.wait(context.Background(), params("a", n, time.Minute), time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two callers hold the lock")
			}
			served.Add(1)
			inside.Add(-1)
			if _, err := p.release("a", l.Fence); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if served.Load() != callers {
		t.Errorf("%d were served", served.Load())
	}
}

func TestAQueueIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	p.must(p.acquire("a", "one", time.Minute))
	if _, err := super.Exec(context.Background(), `insert into lock_waiters (tenant_id, name, ticket, principal, holder,
		instance, queued_at, alive_until, request_id)
		select 1, 'a', nextval('lock_fence_seq'), 'p', 'h', 'i', now(), now() + interval '1 h', 'r'
		from generate_series(1, 1000)`); err != nil {
		t.Fatal(err)
	}
	if _, err := p.wait(context.Background(), params("a", "two", time.Minute), time.Minute); !fault.Is(err,
		lock.QueueFull) {
		t.Errorf("the 1,001st: %v", err)
	}
	if _, err := super.Exec(context.Background(),
		"update lock_waiters set alive_until = now() - interval '1 min', "+
			"queued_at = now() - interval '1 h'"); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Clean(context.Background(), p.pool, time.Minute); err != nil {
		t.Fatal(err)
	}
	if n := count(t, super, "select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d dead waiters were not cleaned", n)
	}
}

func TestClosingEndsWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	p.must(p.acquire("a", "one", time.Minute))
	go func() {
		eventually(t, 20*time.Second, "a call waits",
			func() bool { return count(t, super, "select count(*) from lock_waiters") == 1 })
		close(p.closing)
	}()
	if _, err := p.wait(context.Background(), params("a", "two", time.Minute), time.Minute); !fault.Is(err,
		fault.ShuttingDown) {
		t.Error(err)
	}
	if n := count(t, super, "select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d queue entries are left", n)
	}
}

// The database becomes unavailable while a call waits, and comes back: the call acquires the lock in the end.
func TestAWaitOutlastsALostConnection(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	net := newProxy(t, db.AllDSN)
	holder, waiter := start(t, db.AllDSN), start(t, net.dsn)
	super := pgtest.Pool(t, db.SuperDSN)
	l := holder.must(holder.acquire("a", "one", time.Minute))
	got := make(chan error, 1)
	go func() {
		_, err := waiter.wait(context.Background(), params("a", "two", time.Minute), time.Minute)
		got <- err
	}()
	waits := func() bool {
		return count(t, super, "select count(*) from lock_waiters where alive_until > now()") == 1
	}
	eventually(t, 20*time.Second, "two waits", waits)
	net.setDown(true)
	eventually(t, 10*time.Second, "the queue entry has expired", func() bool { return !waits() })
	net.setDown(false)
	eventually(t, 20*time.Second, "the caller is queued again", func() bool {
		select {
		case err := <-got:
			t.Fatal("the caller no longer waits:", err)
		default:
		}
		return waits()
	})
	handOver(t, holder, l, got)
}

// The database may be unavailable for longer than a queue entry lives, and still when the call queues again.
func TestAWaitOutlastsADatabaseOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	holder, waiter := start(t, db.AllDSN), start(t, db.AllDSN)
	waiter.outage = 3
	super := pgtest.Pool(t, db.SuperDSN)
	l := holder.must(holder.acquire("a", "one", time.Minute))
	got := make(chan error, 1)
	go func() {
		_, err := waiter.wait(context.Background(), params("a", "two", time.Minute), time.Minute)
		got <- err
	}()
	waits := func() bool { return count(t, super, "select count(*) from lock_waiters") == 1 }
	eventually(t, 10*time.Second, "two waits", waits)
	if _, err := super.Exec(t.Context(), "delete from lock_waiters"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "caller two is queued again", waits)
	if n := waiter.refused.Load(); n != waiter.outage {
		t.Errorf("%d commands were refused", n)
	}
	handOver(t, holder, l, got)
}

// The database queues a call, and the answer is lost. After this entry has expired, the call's second entry is first in
// the queue.
func TestAWaitOutlastsALostAnswer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	holder, waiter := start(t, db.AllDSN), start(t, db.AllDSN)
	waiter.lost.Store(1)
	super := pgtest.Pool(t, db.SuperDSN)
	l := holder.must(holder.acquire("a", "one", time.Minute))
	got := make(chan error, 1)
	go func() {
		_, err := waiter.wait(context.Background(), params("a", "two", time.Minute), time.Minute)
		got <- err
	}()
	eventually(t, 20*time.Second, "the call is queued twice", func() bool {
		return count(t, super, "select count(*) from lock_waiters") == 2
	})
	handOver(t, holder, l, got)
}

// handOver releases a lock and checks that the waiter acquires it.
func handOver(t *testing.T, holder *process, l lock.Lock, got <-chan error) {
	t.Helper()
	if _, err := holder.release(l.Name, l.Fence); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A refused command's changes to a queue are undone with the rest.
func TestARefusedCommandLeavesTheQueueUnchanged(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	c := &failsAfter{AcquireCommand: lock.AcquireCommand{Caller: caller(1),
		AcquireParams: params("a", "one", time.Minute)}}
	if _, err := p.do(context.Background(), caller(1), c); !fault.Is(err, lock.Lost) {
		t.Fatal(err)
	}
	l, err := p.reader.Get(context.Background(), lock.Key{Tenant: 1, Name: "a"})
	if err != nil || l.Fence != 0 {
		t.Errorf("the lock is held: %+v %v", l, err)
	}
	p.must(p.acquire("a", "two", time.Minute))
}

type failsAfter struct{ lock.AcquireCommand }

func (f *failsAfter) Apply(tx *lock.Tx) (any, error) {
	if _, err := f.AcquireCommand.Apply(tx); err != nil {
		return nil, err
	}
	return nil, lock.Lost.New("on purpose")
}

var _ commit.Command[*lock.Tx] = (*failsAfter)(nil)

func BenchmarkAcquireAndRelease(b *testing.B) {
	p := start(b, pgtest.New(b).AllDSN)
	var n atomic.Int64
	b.SetParallelism(100)
	b.RunParallel(func(pb *testing.PB) {
		name := fmt.Sprint("lock", n.Add(1))
		for pb.Next() {
			l := p.must(p.acquire(name, "one", time.Minute))
			if _, err := p.release(name, l.Fence); err != nil {
				b.Error(err)
			}
		}
	})
}
