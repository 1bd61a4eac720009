package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// engine starts an engine that stops with the test, as in a separate process.
func engine(t *testing.T, db *pgtest.DB, conns int32) *flow.Engine {
	t.Helper()
	pool, err := pg.Open(t.Context(), db.AllDSN, conns)
	if err != nil {
		t.Fatal(err)
	}
	e := flow.NewEngine(pool, "test", nil, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return e
}

func do(e *flow.Engine, c commit.Command[*inbox.Tx]) (any, error) {
	out, err := e.Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Inbox(c), Rows: 1, Bytes: 100})
	return out.Answer, err
}

func must(t *testing.T, e *flow.Engine, c commit.Command[*inbox.Tx]) any {
	t.Helper()
	answer, err := do(e, c)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	return answer
}

// Two processes with many workers each process messages. No two workers hold one message at the same time, and
// each message succeeds once, although workers stop midway and resume late.
func TestTwoProcessesProcessEachMessageOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	engines := []*flow.Engine{engine(t, db, 6), engine(t, db, 6)}
	const messages, workers = 12, 16
	var succeeded [messages]atomic.Int32
	var lost, zombies atomic.Int32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			e := engines[w%2]
			for i := range messages * 4 {
				n := (i + w) % messages
				k := inbox.Key{Tenant: 1, Group: "g", ID: fmt.Sprint("m", n)}
				answer, err := do(e, &inbox.BeginCommand{Caller: caller, Key: k, Holder: fmt.Sprint("w", w),
					Lease:    100 * time.Millisecond,
					Delivery: delivery(func(d *inbox.Delivery) { d.MaxAttempts = 1000 })})
				if err != nil {
					t.Error(err)
					return
				}
				b := answer.(inbox.Begun)
				if b.Verdict != inbox.Run {
					continue
				}
				if (i+w)%3 == 0 { // resumes late, when another worker may hold the message
					<-time.After(120 * time.Millisecond)
					zombies.Add(1)
				}
				switch _, err := do(e, &inbox.CompleteCommand{Caller: caller, Key: k, Fence: b.Message.Fence}); {
				case err == nil:
					succeeded[n].Add(1)
				case fault.Is(err, inbox.LeaseLost):
					lost.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range succeeded {
		if got := succeeded[n].Load(); got != 1 {
			t.Errorf("message %d succeeded %d times", n, got)
		}
	}
	if zombies.Load() == 0 {
		t.Error("no worker resumed late: the test shows nothing")
	}
	t.Logf("%d resumed late, %d had lost their lease", zombies.Load(), lost.Load())
}

func TestTwoProcessesReceiveAMessageOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	engines := []*flow.Engine{engine(t, db, 6), engine(t, db, 6)}
	const messages, workers = 50, 8
	var first, again atomic.Int32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range messages {
				_, err := do(engines[w%2],
					&inbox.ReceiveCommand{Caller: caller, Key: inbox.Key{Tenant: 1, Group: "g", ID: fmt.Sprint("m", n)},
						Delivery: delivery()})
				switch {
				case err == nil:
					first.Add(1)
				case fault.Is(err, inbox.Duplicate):
					again.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if first.Load() != messages || again.Load() != messages*(workers-1) {
		t.Errorf("%d first deliveries, %d repeats", first.Load(), again.Load())
	}
}

// The database returns messages as they were written: all fields that Get shows and that commands rely on.
func TestMessagesRoundTrip(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db, 6)
	reader := inbox.NewReader(pgtest.Pool(t, db.AllDSN))
	d := delivery(func(d *inbox.Delivery) { d.Content, d.Hash, d.Life = []byte("a\x00b"), sum("a\x00b"), time.Hour })
	k := inbox.Key{Tenant: 1, Group: "grüppe", ID: "topic-0-17", Part: "order:1"}
	begun := must(t, e, &inbox.BeginCommand{Caller: caller, Key: k, Delivery: d, Holder: "me",
		Lease: time.Minute}).(inbox.Begun)
	failed := must(t, e, &inbox.FailCommand{Caller: commit.Caller{Tenant: 1, Principal: "other", RequestID: "r2"},
		Key: k, Fence: begun.Message.Fence, FailureText: "why"}).(inbox.Message)
	got, err := reader.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	failed.ContentUntil = time.Time{}
	failed.Content = []byte("a\x00b")
	if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", failed) {
		t.Errorf("\n%+v\n%+v", *got, failed)
	}
	if got.RequestID != "r1" || got.LastRequestID != "r2" || got.Principal != "worker" || got.FailureText != "why" {
		t.Errorf("%+v", got)
	}
	for _, other := range []inbox.Key{{2, k.Group, k.ID, k.Part}, {1, "g", k.ID, k.Part}, {1, k.Group, "x", k.Part},
		{1, k.Group, k.ID, ""}} {
		if _, err := reader.Get(t.Context(), other); !fault.Is(err, inbox.NotFound) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

func TestCleanDeletesOnlyExpiredMessages(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db, 6)
	pool, super := pgtest.Pool(t, db.AllDSN), pgtest.Pool(t, db.SuperDSN)
	for i := range 6 {
		d := delivery(func(d *inbox.Delivery) { d.Life = time.Hour })
		must(t, e, &inbox.ReceiveCommand{Caller: caller, Key: inbox.Key{Tenant: 1, Group: "g", ID: fmt.Sprint("m", i)},
			Delivery: d})
	}
	exec(t, super, "update inbox_messages set expires_at = now() - interval '1 s' where message_id in ('m0', 'm1')")
	exec(t, super, "update inbox_contents set expires_at = now() - interval '1 s' where message_id in ('m2', 'm3')")
	tx, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it only holds a lock
	if _, err := tx.Exec(t.Context(), "select 1 from inbox_messages where message_id = 'm1' for update"); err != nil {
		t.Fatal(err)
	}
	if messages, contents := cleanAll(t, pool); messages != 1 || contents != 2 {
		t.Errorf("%d messages, %d contents, %v: one is locked", messages, contents, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if messages, contents := cleanAll(t, pool); messages != 1 || contents != 0 {
		t.Errorf("then %d messages, %d contents, %v", messages, contents, err)
	}
	var left string
	if err := pool.QueryRow(t.Context(), `select string_agg(message_id, ' ' order by message_id) || ', ' ||
		(select string_agg(message_id, ' ' order by message_id) from inbox_contents)
		from inbox_messages`).Scan(&left); err != nil || left != "m2 m3 m4 m5, m4 m5" {
		t.Errorf("left: %q, %v", left, err)
	}
	// An expired message that the cleaner has not deleted yet counts as never received.
	exec(t, super, "update inbox_messages set expires_at = now() - interval '1 s' where message_id = 'm4'")
	must(t, e, &inbox.ReceiveCommand{Caller: caller, Key: inbox.Key{Tenant: 1, Group: "g", ID: "m4"},
		Delivery: delivery(func(d *inbox.Delivery) { d.Content, d.Hash = []byte("y"), sum("y") })})
}

func TestDeadMessagesAreRequeuedAThousandAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db, 6)
	var works []flow.Submission
	for i := range 1200 {
		works = append(works, flow.Submission{Tenant: 1, RequestID: "r", Rows: 1, Bytes: 100,
			Command: flow.Inbox(&inbox.FailCommand{Caller: caller,
				Key: inbox.Key{Tenant: 1, Group: "g", ID: fmt.Sprint("m", i)}, Permanent: true, Delivery: delivery()})})
	}
	for _, r := range e.DoAll(t.Context(), works) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	all := &inbox.RequeueAllCommand{Caller: caller, Group: "g"}
	for _, want := range []inbox.Requeued{{1000, true}, {200, false}, {0, false}} {
		if got := must(t, e, all).(inbox.Requeued); got != want {
			t.Errorf("%+v, not %+v", got, want)
		}
	}
	found, err := inbox.NewReader(pgtest.Pool(t, db.AllDSN)).RequeuedDue(t.Context(), 1, "g", 5)
	if err != nil || len(found) != 5 || string(found[0].Content) != "x" || found[0].Topic != "orders" {
		t.Errorf("%v %+v", err, found)
	}
}

// Plans made on empty tables must serve full tables.
func TestPlansMadeOnEmptyTablesServeFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // the loaded rows have no batch
	e := engine(t, db, 6)
	super := pgtest.Pool(t, db.SuperDSN)
	round := func(tag string) (works []flow.Submission) {
		for i := range 400 {
			k := inbox.Key{Tenant: 1, Group: "g", ID: fmt.Sprint(tag, i)}
			works = append(works, flow.Submission{Tenant: 1, RequestID: "r", Rows: 1, Bytes: 100,
				Command: flow.Inbox(&inbox.FailCommand{Caller: caller, Key: k, Delivery: delivery()})})
		}
		return works
	}
	run := func(tag string) time.Duration {
		begun := time.Now()
		for range 2 { // the first creates the message, the second finds it
			for _, r := range e.DoAll(t.Context(), round(tag)) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			}
		}
		return time.Since(begun)
	}
	for range 8 { // until every connection has cached plans
		run("first")
	}
	exec(t, super, "analyze")
	exec(t, super, `insert into inbox_messages (tenant_id, consumer_group, message_id, part, inbox_id, topic, state,
		holder, fence, attempts, max_attempts, backoff_ms, max_backoff_ms, received_at, begun_at, finished_at,
		principal, request_id, last_request_id)
		select 1, 'g', 'old' || i, '', -i, 't', 'succeeded', '', 1, 1, 1, 1, 1, now(), now(), now(), 'p', 'r', 'r'
		from generate_series(1, 100000) i`)
	exec(t, super, "insert into inbox_contents select 1, 'g', 'old' || i, '', 'x', now() + interval '1 day' "+
		"from generate_series(1, 100000) i")
	if took := run("second"); took > 20*time.Second { // a sequential scan per row would take minutes
		t.Errorf("800 messages took %v", took)
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// cleanAll deletes expired rows and returns the number of messages and contents.
func cleanAll(t *testing.T, pool *pgxpool.Pool) (messages, contents int64) {
	t.Helper()
	for i, table := range inbox.Tables() {
		c := clean.Cleaner{Pool: pool, Metrics: clean.NewMetrics(nil)}
		n, err := c.Clean(t.Context(), &table)
		if err != nil {
			t.Fatal(err)
		}
		*[]*int64{&messages, &contents}[i] = n
	}
	return messages, contents
}

// A new message under the name of an expired one must not show the old content.
func TestANewMessageDoesNotShowTheExpiredContent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db, 2)
	pool := pgtest.Pool(t, db.SuperDSN)
	k := inbox.Key{Tenant: 1, Group: "g", ID: "m"}
	d := delivery(func(d *inbox.Delivery) {
		d.Content, d.Hash, d.ContentLife, d.Life = []byte("old"), sum("old"), 24*time.Hour, time.Minute
	})
	must(t, e, &inbox.ReceiveCommand{Caller: commit.Caller{Tenant: 1}, Key: k, Delivery: d})
	exec(t, pool, "update inbox_messages set expires_at = now() - interval '1 second'")
	d.Content, d.Hash = nil, sum("new")
	must(t, e, &inbox.FailCommand{Caller: commit.Caller{Tenant: 1}, Key: k, Delivery: d, FailureText: "no"})
	m, err := inbox.NewReader(pool).Get(t.Context(), k)
	if err != nil || m.Content != nil {
		t.Errorf("content %q, %v", m.Content, err)
	}
}
