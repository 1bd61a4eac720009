package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// fenceFile is SQL that users install in their own database.
const fenceFile = "../../docs/sql/fence.sql"

const (
	olderFence = "LF001"
	notHeld    = "LF002"
)

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// fenced creates a user's own database with a counter table.
func fenced(t testing.TB) *pgxpool.Pool {
	t.Helper()
	file, err := os.ReadFile(fenceFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, pgtest.New(t).SuperDSN)
	for _, sql := range []string{"create schema mine", "set search_path = mine; " + string(file),
		"create table mine.counter (n bigint not null)", "insert into mine.counter values (0)"} {
		if _, err := pool.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

func TestFenceCheckRefusesOlderFences(t *testing.T) {
	t.Parallel()
	pool := fenced(t)
	for i, step := range []struct {
		name  string
		fence int
		state string
	}{{"a", 5, ""}, {"a", 5, ""}, {"b", 1, ""}, {"a", 4, olderFence}, {"a", 9, ""}, {"a", 5, olderFence}, {"a", 9,
		""}} {
		if _, err := pool.Exec(context.Background(), "select mine.fence_check($1, $2)", step.name,
			step.fence); sqlState(err) != step.state {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// While a transaction that has checked its fence is open, one with a newer fence waits. So no older write
// commits after a newer one.
func TestFenceCheckBlocksNewerFencesUntilCommit(t *testing.T) {
	t.Parallel()
	pool := fenced(t)
	ctx := context.Background()
	for _, first := range []int{1, 9} { // including the first fence, which finds no row
		old, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Rollback(ctx) //nolint:errcheck // when the test fails
		if _, err := old.Exec(ctx, "select mine.fence_check('a', $1)", first); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := pool.Exec(ctx, "select mine.fence_check('a', $1)", first+1)
			done <- err
		}()
		eventually(t, 20*time.Second, "the newer fence waits", func() bool {
			return count(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "+
				"and datname = current_database()") == 1
		})
		if err := old.Commit(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLeaseCheckHoldsTheLockUntilTheEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db.AllDSN)
	super := pgtest.Pool(t, db.SuperDSN)
	ctx := context.Background()
	l := p.must(p.acquire("a", "one", time.Second))
	tx, err := super.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // when the test fails
	if _, err := tx.Exec(ctx, "select lock_check(1, 'a', $1)", l.Fence); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the lease expires", func() bool {
		l, err := p.reader.Get(ctx, lock.Key{Tenant: 1, Name: "a"})
		return err == nil && l.Fence == 0
	})
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	// On a busy machine the time may end during an attempt, whose outcome is then unknown.
	if _, err := p.do(short, caller(1), &lock.AcquireCommand{Caller: caller(1),
		AcquireParams: params("a", "late", time.Second)}); !fault.Is(err, fault.RowsLocked) &&
		!fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("took over a lock whose fence a running transaction had checked: %v", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	next, err := p.acquire("a", "two", time.Minute)
	eventually(t, 20*time.Second, "the lock is free", func() bool { // that attempt may have got it
		if err != nil {
			next, err = p.acquire("a", "two", time.Minute)
		}
		return err == nil
	})
	for what, c := range map[string]struct {
		tenant int
		name   string
		fence  int64
		state  string
	}{"the holder": {1, "a", next.Fence, ""}, "the one before": {1, "a", l.Fence, notHeld}, "another tenant": {2, "a",
		next.Fence, notHeld},
		"another lock": {1, "b", next.Fence, notHeld}} {
		if _, err := super.Exec(ctx, "select lock_check($1, $2, $3)", c.tenant, c.name,
			c.fence); sqlState(err) != c.state {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.release("a", next.Fence); err != nil {
		t.Fatal(err)
	}
	if _, err := super.Exec(ctx, "select lock_check(1, 'a', $1)", next.Fence); sqlState(err) != notHeld {
		t.Errorf("released: %v", err)
	}
}

// counting produces a history of callers that each increment a counter under a lock. A caller reads the counter
// and writes it plus one, in two transactions. Some callers pause in between for longer than their lease.
type counting struct {
	t       *testing.T
	servers []*process
	store   *pgxpool.Pool
	check   bool // check the fence in both transactions

	mu      sync.Mutex
	history []porcupine.Operation
	refused int
}

// counter is the sequential model: each caller reads and writes in one step.
var counter = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, _, read any) (bool, any) { return state == read, state.(int64) + 1 },
}

// add increments the counter if it acquires the lock and its fence is accepted.
func (c *counting) add(client int) {
	p := c.servers[client%len(c.servers)]
	l, err := p.wait(context.Background(), params("counter", client, time.Second), time.Minute)
	if err != nil {
		c.t.Error(err)
		return
	}
	call := time.Now()
	var n int64
	err = c.fenced(l.Fence, func(tx pgx.Tx) error {
		return tx.QueryRow(context.Background(), "select n from mine.counter").Scan(&n)
	})
	if client%4 == 0 {
		<-time.After(time.Second + rand.N(500*time.Millisecond)) // a pause that the caller does not notice
	}
	if err == nil {
		err = c.fenced(l.Fence, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), "update mine.counter set n = $1", n+1)
			return err
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.history = append(c.history, porcupine.Operation{ClientId: client, Input: nil, Call: call.UnixNano(),
			Output: n, Return: time.Now().UnixNano()})
	case sqlState(err) == olderFence:
		c.refused++
	default:
		c.t.Error(err)
	}
	_, _ = p.release("counter", l.Fence)
}

// fenced runs part of the work in a transaction that first checks the fence.
func (c *counting) fenced(fence int64, work func(pgx.Tx) error) error {
	return pgx.BeginFunc(context.Background(), c.store, func(tx pgx.Tx) error {
		if c.check {
			if _, err := tx.Exec(context.Background(), "select mine.fence_check('counter', $1)", fence); err != nil {
				return err
			}
		}
		return work(tx)
	})
}

func (c *counting) run(clients, rounds int) porcupine.CheckResult {
	var work sync.WaitGroup
	for n := range clients {
		work.Go(func() {
			for range rounds {
				c.add(n)
			}
		})
	}
	work.Wait()
	return porcupine.CheckOperationsTimeout(counter, c.history, time.Minute)
}

// With fence checks, the history is linearizable although leases expire under callers that go on. Without the
// checks it is not, and the checker detects that.
func TestFencesMakeWorkUnderALockLinearizable(t *testing.T) {
	t.Parallel()
	for _, check := range []bool{true, false} {
		t.Run(fmt.Sprint("check=", check), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			c := &counting{t: t, servers: []*process{start(t, db.AllDSN), start(t, db.AllDSN)}, store: fenced(t),
				check: check}
			result := c.run(12, 3)
			n := count(t, c.store, "select n from mine.counter")
			t.Logf("%d writes, %d refused, counted to %d: %s", len(c.history), c.refused, n, result)
			switch {
			case check && (result != porcupine.Ok || n != len(c.history)):
				t.Errorf("%s, counted to %d", result, n)
			case check && c.refused == 0:
				t.Error("no fence was refused: the test exercised too little")
			case !check && result != porcupine.Illegal:
				t.Errorf("without the check: %s", result)
			}
		})
	}
}
