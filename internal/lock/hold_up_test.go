package lock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A transaction that holds lock rows of one tenant delays renewing that tenant's queue entries. It must not
// cost another tenant's waiter at the same server its entry.
func TestBlockedLocksOfOneTenantDoNotExpireWaitersOfAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p, super := start(t, db.AllDSN), pgtest.Pool(t, db.SuperDSN)
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel()
	waiting := func(tenant int32, name string, places int) {
		c := caller(tenant)
		waiters.Go(func() {
			acquire := params(name, "waits", time.Hour)
			_ = p.waiting.Acquire(ctx, c, acquire, time.Minute, func(ctx context.Context, ticket int64) (bool, error) {
				_, err := p.do(ctx, c, &lock.AcquireCommand{Caller: c, AcquireParams: acquire, Ticket: ticket})
				return false, err
			})
		})
		eventually(t, 30*time.Second, "a queue entry", func() bool {
			return count(t, super, "select count(*) from lock_waiters") == places
		})
	}
	p.must(p.acquire("mine", "holder", time.Hour))
	waiting(1, "mine", 1)
	tx, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for n := range 20 {
		name, c := fmt.Sprint("theirs", n), caller(2)
		out, err := p.engine.Do(ctx, flow.Submission{Tenant: 2, RequestID: "r", Rows: 1, Bytes: 512,
			Command: flow.Lock(&lock.AcquireCommand{Caller: c, AcquireParams: params(name, "holder", time.Hour)})})
		if err != nil {
			t.Fatal(err)
		}
		waiting(2, name, 2+n)
		if _, err := tx.Exec(ctx, "select lock_check(2, $1, $2)", name, out.Answer.(lock.Acquired).Fence); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(14 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if count(t, super, `select count(*) from lock_waiters where tenant_id = 1
			and alive_until > clock_timestamp() - interval '5 s'`) == 0 {
			t.Fatal("the queue entry of tenant 1 has expired")
		}
	}
}
