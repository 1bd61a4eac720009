package lock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// process is an engine with a wait queue, as in one server.
type process struct {
	t       testing.TB
	engine  *flow.Engine
	pool    *pgxpool.Pool
	waiting *lock.WaitQueue
	reader  *lock.Reader
	closing chan struct{}
	stop    func() // like a crash: entries are neither renewed nor deleted

	outage  int32        // number of commands to fail after a queue entry was lost
	left    atomic.Int32 // how many of them are still to fail
	refused atomic.Int32
	lost    atomic.Int32 // how many answers to queuing are still to be lost
}

// start runs a process on a database until the end of the test or until stop.
func start(t testing.TB, dsn string) *process {
	t.Helper()
	p := &process{t: t, closing: make(chan struct{})}
	var err error
	if p.pool, err = pg.Open(context.Background(), dsn, 10); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	p.engine = flow.NewEngine(p.pool, t.Name(), nil, log)
	p.reader = lock.NewReader(p.pool)
	p.waiting = lock.NewWaitQueue(lock.WaitQueueConfig{Do: p.do, Reads: p.pool, Instance: t.Name(), Closing: p.closing,
		Metrics: lock.NewMetrics(nil), Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.waiting.Run(ctx) }()
	p.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(func() {
		p.stop()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		p.pool.Close()
	})
	return p
}

func (p *process) do(ctx context.Context, c commit.Caller, command commit.Command[*lock.Tx]) (any, error) {
	if p.left.Add(-1) >= 0 {
		p.refused.Add(1)
		return nil, fault.DatabaseUnavailable.New("simulated outage")
	}
	out, err := p.engine.Do(ctx, flow.Submission{Tenant: c.Tenant, RequestID: c.RequestID, Command: flow.Lock(command),
		Rows: 1, Bytes: 512})
	if gone, ok := out.Answer.([]int64); ok && len(gone) > 0 {
		p.left.Store(p.outage)
	}
	if _, queued := out.Answer.(int64); queued && p.lost.Add(-1) >= 0 {
		return nil, fault.OutcomeUnknown.New("simulated loss of an answer")
	}
	return out.Answer, err
}

func caller(tenant int32) commit.Caller {
	return commit.Caller{Tenant: tenant, Principal: "p", RequestID: "r"}
}

func params(name string, holder any, term time.Duration) lock.AcquireParams {
	return lock.AcquireParams{Name: name, Holder: fmt.Sprint(holder), Lease: term}
}

// acquire tries once.
func (p *process) acquire(name string, holder any, term time.Duration) (lock.Lock, error) {
	return p.try(params(name, holder, term), 0)
}

func (p *process) try(params lock.AcquireParams, ticket int64) (lock.Lock, error) {
	answer, err := p.do(context.Background(), caller(1),
		&lock.AcquireCommand{Caller: caller(1), AcquireParams: params, Ticket: ticket})
	if err != nil {
		return lock.Lock{}, err
	}
	return answer.(lock.Acquired).Lock, nil
}

func (p *process) wait(ctx context.Context, params lock.AcquireParams, wait time.Duration) (l lock.Lock, err error) {
	err = p.waiting.Acquire(ctx, caller(1), params, wait,
		func(_ context.Context, ticket int64) (replayed bool, err error) {
			l, err = p.try(params, ticket)
			return false, err
		})
	return l, err
}

func (p *process) renew(name string, fence int64) error {
	_, err := p.do(context.Background(), caller(1), &lock.RenewCommand{Caller: caller(1), Name: name, Fence: fence})
	return err
}

// release releases a lock and wakes the next waiter.
func (p *process) release(name string, fence int64) (existed bool, err error) {
	out, err := p.engine.Do(context.Background(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 1, Bytes: 512,
		Command: flow.Lock(&lock.ReleaseCommand{Caller: caller(1), Name: name, Fence: fence})})
	if err != nil {
		return false, err
	}
	p.waiting.Wake(out.Answer.(lock.Released).Next)
	return out.Existed, nil
}

func (p *process) must(l lock.Lock, err error) lock.Lock {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// eventually polls until the condition holds.
func eventually(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	end := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-end:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

func TestOnlyTheHolderRenewsAndReleases(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t).AllDSN)
	first := p.must(p.acquire("a", "one", time.Minute))
	_, err := p.acquire("a", "two", time.Minute)
	if f := fault.Of(err); !fault.Is(err, lock.Held) || f.Metadata["holder"] != "one" ||
		f.Metadata["position"] != "1" ||
		f.Metadata["expire_time"] == "" {
		t.Errorf("held: %v", err)
	}
	page := params("a", "two", time.Minute)
	page.GuardsPage = true
	if _, err := p.try(page, 0); !fault.Is(err, lock.PageHeld) || fault.Of(err).Reason.Class != fault.Duplicate {
		t.Errorf("held, of a page: %v", err)
	}
	for _, fence := range []int64{first.Fence - 1, first.Fence + 1} {
		if err := p.renew("a", fence); !fault.Is(err, lock.Lost) {
			t.Errorf("renewed under fence %d: %v", fence, err)
		}
		if _, err := p.release("a", fence); !fault.Is(err, lock.Lost) {
			t.Errorf("released under fence %d: %v", fence, err)
		}
	}
	if err := p.renew("a", first.Fence); err != nil {
		t.Error(err)
	}
	if existed, err := p.release("a", first.Fence); err != nil || existed {
		t.Errorf("release: %v %v", existed, err)
	}
	if existed, err := p.release("a", first.Fence); err != nil || !existed {
		t.Errorf("second release: %v %v", existed, err)
	}
	if err := p.renew("a", first.Fence); !fault.Is(err, lock.Lost) {
		t.Errorf("renewed after its release: %v", err)
	}
	second := p.must(p.acquire("a", "two", time.Minute))
	if second.Fence <= first.Fence {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
	if _, err := p.release("a", first.Fence); !fault.Is(err, lock.Lost) {
		t.Errorf("the old fence released the new holder: %v", err)
	}
	if _, err := p.release("never", 1); !fault.Is(err, lock.Lost) {
		t.Errorf("release of nothing: %v", err)
	}
}

func TestAnExpiredLeaseCannotBeRenewedOrReleased(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t).AllDSN)
	a := p.must(p.acquire("a", "one", time.Second))
	b := p.must(p.acquire("b", "one", time.Second))
	c := p.must(p.acquire("c", "one", time.Second))
	eventually(t, 20*time.Second, "the lease expires", func() bool {
		l, err := p.reader.Get(context.Background(), lock.Key{Tenant: 1, Name: "c"})
		return err == nil && l.Fence == 0
	})
	// The lock is still free and its row exists; the lease is lost all the same.
	err := p.renew("a", a.Fence)
	if f := fault.Of(err); !fault.Is(err, lock.Lost) || f.Metadata["state"] != "lapsed" {
		t.Errorf("renewed late: %v", err)
	}
	if _, err := p.release("b", b.Fence); !fault.Is(err, lock.Lost) {
		t.Errorf("released late: %v", err)
	}
	next := p.must(p.acquire("c", "two", time.Minute))
	if next.Fence <= c.Fence || next.Holder != "two" || next.Holds != 1 {
		t.Errorf("taken over: %+v", next)
	}
	for _, fence := range []int64{c.Fence, next.Fence + 1000} {
		if err := p.renew("c", fence); fault.Of(err).Metadata["state"] != "held_by_another" {
			t.Errorf("renewed under %d after the takeover under %d: %v", fence, next.Fence, err)
		}
	}
}

func TestReentrantAcquisitionIsOptIn(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t).AllDSN)
	first := p.must(p.acquire("a", "one", time.Minute))
	if _, err := p.acquire("a", "one", time.Minute); !fault.Is(err, lock.Held) {
		t.Errorf("without Reentrant: %v", err)
	}
	again := params("a", "one", time.Minute)
	again.Reentrant = true
	for holds := 2; holds <= 3; holds++ {
		if l := p.must(p.try(again, 0)); l.Holds != holds || l.Fence != first.Fence {
			t.Errorf("%d. time: %+v", holds, l)
		}
	}
	for _, term := range []time.Duration{time.Second, time.Hour} { // the longer lease wins
		again.Lease = term
		want := max(term, time.Minute)
		if l := p.must(p.try(again, 0)); l.Lease != want || l.ExpiresAt.Before(first.ExpiresAt) {
			t.Errorf("reacquired for %v: lease %v, expires %v, first %v", term, l.Lease, l.ExpiresAt, first.ExpiresAt)
		}
		if _, err := p.release("a", first.Fence); err != nil {
			t.Fatal(err)
		}
	}
	other := again
	other.Holder = "two"
	if _, err := p.try(other, 0); !fault.Is(err, lock.Held) {
		t.Errorf("another holder: %v", err)
	}
	stranger := commit.Caller{Tenant: 1, Principal: "q", RequestID: "r"}
	if _, err := p.do(context.Background(), stranger,
		&lock.AcquireCommand{Caller: stranger, AcquireParams: again}); !fault.Is(err, lock.Held) {
		t.Errorf("another principal with the same holder name: %v", err)
	}
	for left := 2; left >= 0; left-- {
		if _, err := p.release("a", first.Fence); err != nil {
			t.Fatal(err)
		}
		l, err := p.reader.Get(context.Background(), lock.Key{Tenant: 1, Name: "a"})
		if err != nil || l.Holds != left {
			t.Errorf("%d holds left, not %d: %v", l.Holds, left, err)
		}
	}
	p.must(p.try(other, 0))
}

// Callers of two processes acquire and release three locks while a third process cleans continuously. Each lock
// has one holder at a time, and fences grow although rows are deleted and inserted. The test runs until it has
// seen enough of both.
func TestOneHolderAndGrowingFencesDespiteCleaning(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	processes := []*process{start(t, db.AllDSN), start(t, db.AllDSN)}
	super := pgtest.Pool(t, db.SuperDSN)
	const locks, callers = 3, 24
	const acquisitions, cleanings, patience = 100, 5, time.Minute
	var owner, last [locks]atomic.Int64
	var taken, cleaned atomic.Int64
	end := time.Now().Add(patience)
	enough := func() bool {
		return taken.Load() >= acquisitions && cleaned.Load() >= cleanings || time.Now().After(end) || t.Failed()
	}
	var work sync.WaitGroup
	work.Go(func() {
		for !enough() {
			before := count(t, super, "select count(*) from lock_locks")
			if _, err := lock.Clean(context.Background(), processes[0].pool, 0); err != nil {
				continue // a batch blocked the cleaner: try again
			}
			if count(t, super, "select count(*) from lock_locks") < before {
				cleaned.Add(1)
			}
		}
	})
	for n := range callers {
		p := processes[n%2]
		work.Go(func() {
			for i := 0; !enough(); i++ {
				k := (n + i) % locks
				name := fmt.Sprint("lock", k)
				l, err := p.acquire(name, n, time.Minute)
				if fault.Is(err, lock.Held) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				taken.Add(1)
				if !owner[k].CompareAndSwap(0, l.Fence) {
					t.Errorf("%s has two holders, under %d and %d", name, owner[k].Load(), l.Fence)
				}
				if before := last[k].Swap(l.Fence); before >= l.Fence {
					t.Errorf("%s: fence %d came after %d", name, l.Fence, before)
				}
				owner[k].Store(0)
				if _, err := p.release(name, l.Fence); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	t.Logf("%d acquisitions, %d cleanings", taken.Load(), cleaned.Load())
	if taken.Load() < acquisitions || cleaned.Load() < cleanings {
		t.Errorf("the test exercised too little: %d acquisitions, %d cleanings", taken.Load(), cleaned.Load())
	}
}

// A batch that found no row and has drawn its fence blocks cleaning. Otherwise another caller could acquire the
// lock under a greater fence, the cleaner could delete its row, and the batch could insert a smaller fence.
func TestCleaningWaitsForBatches(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	l := p.must(p.acquire("a", "one", time.Minute))
	if _, err := p.release("a", l.Fence); err != nil {
		t.Fatal(err)
	}
	p.must(p.acquire("stays", "one", time.Minute))
	super := pgtest.Pool(t, db.SuperDSN)
	tx, err := super.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // when the test fails
	if _, err := tx.Exec(context.Background(), "lock table lock_locks in row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Clean(context.Background(), p.pool, 0); err == nil {
		t.Error("cleaned while a batch was running")
	}
	// A batch that waits for a row lock blocks cleaning too.
	if _, err := tx.Exec(context.Background(), "select from lock_locks where name = 'stays' for update"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = p.do(ctx, caller(1), &lock.AcquireCommand{Caller: caller(1),
			AcquireParams: params("stays", "two", time.Minute)})
	}()
	eventually(t, 20*time.Second, "the batch has entered", func() bool {
		return count(t, super, `select count(*) from pg_locks where locktype = 'relation'
			and relation = 'lock_locks'::regclass and mode = 'RowExclusiveLock' and granted
			and pid <> pg_backend_pid() and database = (select oid from pg_database
			where datname = current_database())`) == 2
	})
	cancel()
	if n := count(t, super, "select count(*) from lock_locks"); n != 2 {
		t.Errorf("%d rows", n)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Clean(context.Background(), p.pool, 0); err != nil {
		t.Error(err)
	}
	if n := count(t, super, "select count(*) from lock_locks"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestLocksArePagedByName(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t).AllDSN)
	for _, name := range []string{"a", "b:1", "b:2", "b:3", "b:\U0010FFFF", "c"} {
		p.must(p.acquire(name, "one", time.Minute))
	}
	gone := p.must(p.acquire("b:0", "one", time.Minute))
	if _, err := p.release("b:0", gone.Fence); err != nil {
		t.Fatal(err)
	}
	var names []string
	for token := ""; ; {
		locks, next, err := p.reader.List(context.Background(), 1, "b:", 2, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range locks {
			names = append(names, l.Name)
		}
		if token = next; next == "" {
			break
		}
	}
	if got := fmt.Sprintf("%q", names); got != `["b:1" "b:2" "b:3" "b:\U0010ffff"]` {
		t.Error(got)
	}
	for _, token := range []string{"?", "AA", "_w"} {
		if _, _, err := p.reader.List(context.Background(), 1, "", 2, token); !fault.Is(err, paging.TokenInvalid) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if locks, _, err := p.reader.List(context.Background(), 2, "", 100, ""); err != nil || len(locks) != 0 {
		t.Errorf("another tenant: %v %v", locks, err)
	}
}
