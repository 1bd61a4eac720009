package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// fenced puts the fence of the site's lock into a request that does not know it.
func (s *site) fenced(m proto.Message) proto.Message {
	fence := func(name string) int64 {
		if f, found := s.fences.Load(name); found {
			return f.(int64)
		}
		return 1
	}
	switch m := m.(type) {
	case *notifyv1.CancelMessageRequest:
		return &notifyv1.CancelMessageRequest{MessageId: s.noticeID(m.GetMessageId())}
	case *notifyv1.RequeueMessagesRequest:
		if m.GetMessageId() != 0 {
			return requeueNotice(s.noticeID(m.GetMessageId()))
		}
	case *notifyv1.ReportDeliveryRequest:
		if m.GetMessageId() != 0 {
			return reportNotice(s.noticeID(m.GetMessageId()))
		}
	case *lockv1.RenewRequest:
		if m.GetFence() == 0 {
			return &lockv1.RenewRequest{Name: m.GetName(), Lease: m.GetLease(), Fence: fence(m.GetName())}
		}
	case *lockv1.ReleaseRequest:
		if m.GetFence() == 0 {
			return &lockv1.ReleaseRequest{Name: m.GetName(), Fence: fence(m.GetName())}
		}
	}
	return m
}

// locks is the generated client, with the caller's key, over gRPC.
func (c *caller) locks() lockv1connect.LockServiceClient {
	return lockv1connect.NewLockServiceClient(http2, c.base, connect.WithGRPC(),
		connect.WithInterceptors(withKey(c.apiKey)))
}

// holdOnce holds a lock until its first message, and writes that down.
func holdOnce(c *caller, r *lockv1.HoldRequest) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := c.locks().Hold(ctx, r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		var e *connect.Error
		_ = errors.As(stream.Err(), &e)
		text := "error " + e.Error()
		for _, d := range e.Details() {
			if m, err := d.Value(); err == nil {
				text += " " + protojson.Format(m)
			}
		}
		return text
	}
	return protojson.Format(stream.Msg())
}

// beside starts another server on the same database.
func (s *site) beside() *site {
	s.t.Helper()
	other, err := server.Start(context.Background(), server.Options{DatabaseURL: s.db.AppDSN, Listen: "127.0.0.1:0",
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(other.Stop)
	return &site{t: s.t, db: s.db, pool: s.pool, server: other, base: "http://" + other.Addr(), log: s.log,
		fences: s.fences}
}

func (c *caller) acquire(name string) *lockv1.Lock {
	c.t.Helper()
	return ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: name}, new(lockv1.AcquireResponse)).GetLock()
}

func (c *caller) releaseLock(name string, fence int64) {
	c.t.Helper()
	ok(c, "Lock.Release", &lockv1.ReleaseRequest{Name: name, Fence: fence}, new(lockv1.ReleaseResponse))
}

func (s *site) waiting(n int) func() bool {
	return func() bool { return s.count("select count(*) from lock_waiters") == n }
}

func TestTwoServersServeOneQueue(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	callers := []*caller{{s, key}, {s.beside(), key}}
	first := callers[0].acquire("a")
	var mu sync.Mutex
	var order []int
	var work sync.WaitGroup
	for n := range 30 {
		c := callers[n%2]
		work.Go(func() {
			res, err := c.locks().Acquire(context.Background(),
				&lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(time.Minute)})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, n)
			mu.Unlock()
			if _, err := c.locks().Release(context.Background(),
				&lockv1.ReleaseRequest{Name: "a", Fence: res.GetLock().GetFence()}); err != nil {
				t.Error(err)
			}
		})
		soon(t, 5*time.Second, "the caller has his place", s.waiting(n+1))
	}
	if got := ok(callers[1], "Lock.Get", &lockv1.GetRequest{Name: "a"},
		new(lockv1.GetResponse)).GetLock(); got.GetWaiters() != 30 || got.GetFence() != first.GetFence() {
		t.Errorf("%v", got)
	}
	callers[0].releaseLock("a", first.GetFence())
	work.Wait()
	if len(order) != 30 || !slices.IsSorted(order) {
		t.Errorf("the order was %v", order)
	}
}

// A server ends with a call in the queue: the call is told to go to another, and the place is free at once.
func TestAServerThatEndsGivesItsPlacesUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	other := s.beside()
	c, away := &caller{s, key}, &caller{other, key}
	first := c.acquire("a")
	gone := make(chan error, 1)
	go func() {
		_, err := away.locks().Acquire(context.Background(),
			&lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(time.Minute)})
		gone <- err
	}()
	soon(t, 5*time.Second, "he waits", s.waiting(1))
	other.server.Stop()
	if err := <-gone; connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("at the server's end: %v", err)
	}
	if !s.waiting(0)() {
		t.Error("his place is still there")
	}
	c.releaseLock("a", first.GetFence())
	c.acquire("a")
}

// Under a key an acquisition is answered again, whether the call had to wait or not, and holds it once.
func TestAnAcquisitionThatWaitedIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	first := c.acquire("a")
	request := &lockv1.AcquireRequest{Name: "a", Holder: "me", Wait: durationpb.New(30 * time.Second)}
	got := make(chan answer, 1)
	go func() { got <- c.call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k") }()
	soon(t, 5*time.Second, "he waits", s.waiting(1))
	c.releaseLock("a", first.GetFence())
	a := <-got
	again := c.call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k")
	if a.code != "" || a.replayed() || !again.replayed() || string(a.raw) != string(again.raw) {
		t.Errorf("%q %q, again %q, replayed %v", a.code, a.raw, again.raw, again.replayed())
	}
	// One that ended without the lock is not recorded: the same key may have it later.
	late := &lockv1.AcquireRequest{Name: "a", Holder: "late", Wait: durationpb.New(100 * time.Millisecond)}
	if a := c.call(connectProto, "Lock.Acquire", late, "Idempotency-Key", "l"); a.code != "aborted" ||
		a.reason(t) != "LOCK_HELD" {
		t.Errorf("%s %s", a.code, a.message)
	}
	var held lockv1.AcquireResponse
	connectProto.decode(t, again.raw, &held)
	c.releaseLock("a", held.GetLock().GetFence())
	if a := c.call(connectProto, "Lock.Acquire", late, "Idempotency-Key", "l"); a.code != "" || a.replayed() {
		t.Errorf("%s %s", a.code, a.message)
	}
	if life := s.count("select extract(epoch from expires_at - created_at)::integer from commit_keys where key = 'k'"); life != 3630 {
		t.Errorf("the key is kept for %d s", life)
	}
}

// Calls under one key that wait at the same time, in two servers, are one acquisition: all get its answer, and no
// place stays behind.
func TestCallsUnderOneKeyThatWaitAreOneAcquisition(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	callers := []*caller{{s, key}, {s.beside(), key}}
	first := callers[0].acquire("a")
	request := &lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(12 * time.Second)}
	const calls = 6
	got := make(chan answer, calls)
	for n := range calls {
		go func() { got <- callers[n%2].call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k") }()
	}
	soon(t, 5*time.Second, "all wait", s.waiting(calls))
	released := time.Now()
	callers[0].releaseLock("a", first.GetFence())
	var one answer
	for n := range calls {
		a := <-got
		if n == 0 {
			one = a
		}
		if a.code != "" || string(a.raw) != string(one.raw) {
			t.Errorf("%d: %q %s, not %q", n, a.code, a.message, one.raw)
		}
		if n == calls/2-1 && time.Since(released) > 5*time.Second {
			t.Errorf("those beside the first had their answer after %v", time.Since(released))
		}
	}
	if n := s.count("select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d places are left", n)
	}
}

func TestALockIsHeldWhileTheStreamLives(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := c.locks().Hold(ctx, &lockv1.HoldRequest{Name: "a", Holder: "me", Lease: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var last *lockv1.Lock
	for n := range 6 { // two leases long
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		l := stream.Msg().GetLock()
		if n > 0 && (l.GetFence() != last.GetFence() ||
			!l.GetExpireTime().AsTime().After(last.GetExpireTime().AsTime())) {
			t.Errorf("%v after %v", l, last)
		}
		last = l
	}
	busy := &lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(0), GuardsPage: true}
	if a := c.call(connectProto, "Lock.Acquire", busy); a.code != "already_exists" || a.reason(t) != "PAGE_LOCK_HELD" {
		t.Errorf("while it is held: %s %s", a.code, a.message)
	}
	cancel()
	soon(t, 2*time.Second, "it is free",
		func() bool { return s.count("select count(*) from lock_locks where state = 'held'") == 0 })

	// A stream whose lock is taken from it ends.
	stream, err = c.locks().Hold(context.Background(),
		&lockv1.HoldRequest{Name: "a", Lease: durationpb.New(time.Second)})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	if _, err := s.pool.Exec(context.Background(),
		"update lock_locks set fence = nextval('lock_fence_seq')"); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeFailedPrecondition ||
		!strings.Contains(err.Error(), "not held under fence") {
		t.Errorf("a lost lock: %v", err)
	}
}

// When the lock cannot be renewed the stream ends before the lease does: before anybody else can have the lock. Nor
// can the API key be looked up, which the server does when what it knows of it is 3 s old.
func TestAStreamEndsBeforeItsLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	stream, err := c.locks().Hold(context.Background(),
		&lockv1.HoldRequest{Name: "a", Lease: durationpb.New(6 * time.Second)})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	tx, err := s.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it changed nothing
	if _, err := tx.Exec(context.Background(),
		"lock table access_api_keys; select from lock_locks for update"); err != nil {
		t.Fatal(err)
	}
	last := stream.Msg().GetLock()
	for stream.Receive() {
		last = stream.Msg().GetLock()
	}
	left := time.Until(last.GetExpireTime().AsTime())
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeFailedPrecondition || left < 0 || left > 3*time.Second {
		t.Errorf("it ended %v before the lease: %v", left, err)
	}
}

// What a tenant demands of calls is not demanded of the release that the server makes at a stream's end, and a stream
// has no use for a key.
func TestAStreamReleasesWhateverIsDemanded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	super := pgtest.Pool(t, s.db.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []access.Policy{{Operation: access.Others, KeyRequired: true},
		{Operation: "lock.release", KeyRequired: true, TokenRequired: true}} {
		if err := access.SetPolicy(t.Context(), super, tenant, r); err != nil {
			t.Fatal(err)
		}
	}
	if text := holdOnce(c, &lockv1.HoldRequest{Name: "a"}); strings.HasPrefix(text, "error") {
		t.Fatal(text)
	}
	soon(t, 5*time.Second, "it is released",
		func() bool { return s.count("select count(*) from lock_locks where state = 'free'") == 1 })
	if a := c.call(connectProto, "Lock.Acquire",
		&lockv1.AcquireRequest{Name: "a"}); a.reason(t) != "IDEMPOTENCY_KEY_MISSING" {
		t.Errorf("a call without key: %s %s", a.code, a.message)
	}
}

// Callers of streams go away at any moment, also while the lock is being acquired: none stays held.
func TestACallerWhoGoesAwayLeavesNoLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.releaseLock("warm", c.acquire("warm").GetFence())
	var work sync.WaitGroup
	for n := range 400 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n%100)*200*time.Microsecond)
		work.Go(func() {
			defer cancel()
			if stream, err := c.locks().Hold(ctx,
				&lockv1.HoldRequest{Name: fmt.Sprint("a", n), Lease: durationpb.New(time.Hour)}); err == nil {
				for stream.Receive() {
				}
				_ = stream.Close()
			}
		})
		if n%8 == 7 {
			work.Wait()
		}
	}
	soon(t, 5*time.Second, "none is held",
		func() bool { return s.count("select count(*) from lock_locks where state = 'held'") == 0 })
	if n := s.count("select count(*) from lock_locks"); n < 20 {
		t.Errorf("only %d were ever held", n)
	}
}

func TestAnOperationDependsOnALock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	taken, _ := c.executed(execute(operation("lock", &lockv1.AcquireRequest{Name: "a"}),
		operation("", pay("one", "u:a", "world", "1"))))
	fence := taken[0].(*lockv1.AcquireResponse).GetLock().GetFence()
	c.executed(execute(operation("", &lockv1.RenewRequest{Name: "a", Fence: fence}),
		operation("", pay("two", "u:a", "world", "1"))))
	for what, r := range map[string]*batchv1.ExecuteRequest{
		"LOCK_LOST": execute(operation("", &lockv1.RenewRequest{Name: "a", Fence: fence - 1}),
			operation("", pay("three", "u:a", "world", "1"))),
		"LOCK_HELD": execute(operation("", pay("three", "u:a", "world", "1")),
			operation("", &lockv1.AcquireRequest{Name: "a"})),
		"FIELD_INVALID": execute(operation("", &lockv1.AcquireRequest{Name: "b", Wait: durationpb.New(time.Second)}),
			operation("", pay("three", "u:a", "world", "1"))),
		// What an operation takes is taken back with the others: here it was acquired first.
		"INSUFFICIENT_FUNDS": execute(operation("", &lockv1.AcquireRequest{Name: "c"}),
			operation("", pay("three", "u:a", "world", "1000"))),
	} {
		if a := c.call(connectProto, "Batch.Execute", r); a.code == "" || a.reason(t) != what {
			t.Errorf("%s: %q %s", what, a.code, a.message)
		}
	}
	if b := c.balance("u:a"); b != "93.00" { // of 95, of which 5 are held
		t.Errorf("the balance is %s", b)
	}
	c.executed(execute(operation("", pay("last", "u:a", "world", "1")),
		operation("", &lockv1.ReleaseRequest{Name: "a", Fence: fence})))
	for _, name := range []string{"a", "b", "c"} {
		if l := ok(c, "Lock.Get", &lockv1.GetRequest{Name: name},
			new(lockv1.GetResponse)).GetLock(); l.GetState() != lockv1.LockState_LOCK_STATE_FREE {
			t.Errorf("%v", l)
		}
	}
}

func TestLocksAreCounted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	c := &caller{s, key}
	ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: "a", Lease: durationpb.New(time.Second)},
		new(lockv1.AcquireResponse))
	c.acquire("a") // waits for its end
	for _, r := range []proto.Message{&lockv1.RenewRequest{Name: "a", Fence: 1},
		&lockv1.ReleaseRequest{Name: "b", Fence: 1}} {
		name := map[bool]string{true: "Lock.Renew",
			false: "Lock.Release"}[r.ProtoReflect().Descriptor().Name() == "RenewRequest"]
		if a := c.call(connectProto, name, r); a.reason(t) != "LOCK_LOST" {
			t.Errorf("%s: %s", name, a.message)
		}
	}
	request, _ := http.NewRequest(http.MethodGet, s.base+"/metrics", nil)
	request.Header.Set("Authorization", "Bearer "+key)
	res, err := http1.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ledgerd_lock_lapsed_total 1", `ledgerd_lock_fence_refusals_total{call="renew"} 1`,
		`ledgerd_lock_fence_refusals_total{call="release"} 1`, `ledgerd_lock_wait_seconds_count{outcome="acquired"} 1`, "ledgerd_lock_waiting 0"} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("there is no %q", line)
		}
	}
}

// A user's own transaction takes a lock key as the documentation says; meanwhile no Execute with it runs,
// in either of two servers, and others do.
func TestLockKeysKeepExecutesApart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	callers := []*caller{{s, key}, {s.beside(), key}}
	stranger := &caller{s, s.key("other", "boss", access.Write)}
	callers[0].prepare("a")
	stranger.prepare("a")
	ctx := context.Background()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // when the test fails
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('k2', (select tenant_id from access_tenants where name = 'mine')))`); err != nil {
		t.Fatal(err)
	}
	with := func(bizNo string, keys ...string) *batchv1.ExecuteRequest {
		r := execute(operation("", pay(bizNo, "u:a", "world", "1")))
		r.LockKeys = keys
		return r
	}
	for n, c := range callers {
		a := c.call(connectProto, "Batch.Execute", with(fmt.Sprint("held", n), "k3", "k2", "k1"), "Connect-Timeout-Ms",
			"400")
		if a.code != "aborted" || a.reason(t) != "ROWS_LOCKED" {
			t.Errorf("server %d: %s %s", n, a.code, a.message)
		}
		c.executed(with(fmt.Sprint("other key", n), "k1", "k3"))
		c.executed(with(fmt.Sprint("no key", n)))
	}
	stranger.executed(with("another tenant", "k2"))
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}

	// Two servers take the same keys in other orders at once: they never deadlock.
	var work sync.WaitGroup
	for n := range 40 {
		work.Go(func() {
			keys := []string{"k1", "k2", "k3", "k4", "k4"}
			if n%3 == 0 {
				slices.Reverse(keys)
			}
			callers[n%2].executed(with(fmt.Sprint("race", n), keys[n%2:]...))
		})
	}
	work.Wait()
	if b := callers[0].balance("u:a"); b != "51.00" { // 95 - 4 - 40
		t.Errorf("the balance is %s", b)
	}
	if a := callers[0].call(connectProto, "Batch.Execute",
		with("bad", strings.Split(strings.Repeat("k,", 32)+"k", ",")...)); a.code != "invalid_argument" {
		t.Errorf("33 keys: %s", a.code)
	}
}
