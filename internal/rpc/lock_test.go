package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// prepared is the placeholder in test cases for the fence of the lock or the work that was prepared for them.
const prepared = 1 << 59

// fenced replaces the placeholder in a test case by the actual fence of a lock or a piece of work, or by the id of an
// approval, a message or a flag.
func (s *site) fenced(m proto.Message) proto.Message {
	name, id := "", protoreflect.Name("fence")
	switch m := m.(type) {
	case *approvalv1.ApproveRequest:
		return &approvalv1.ApproveRequest{ApprovalId: s.noticeID(m.GetApprovalId()), Note: m.GetNote()}
	case *approvalv1.RejectRequest:
		return &approvalv1.RejectRequest{ApprovalId: s.noticeID(m.GetApprovalId()), Note: m.GetNote()}
	case *approvalv1.GetApprovalRequest:
		return &approvalv1.GetApprovalRequest{ApprovalId: s.noticeID(m.GetApprovalId())}
	case *paymentv1.ResolveFlagRequest:
		name, id = m.GetNote(), "flag_id"
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
		name = m.GetName()
	case *lockv1.ReleaseRequest:
		name = m.GetName()
	case *idempotencyv1.ExtendRequest:
		name = workName(m.GetScope(), m.GetKey())
	case *idempotencyv1.CompleteRequest:
		name = workName(m.GetScope(), m.GetKey())
	case *idempotencyv1.AbandonRequest:
		name = workName(m.GetScope(), m.GetKey())
	case *idempotencyv1.ResolveWorkRequest:
		name = workName(m.GetScope(), m.GetKey())
	}
	field := m.ProtoReflect().Descriptor().Fields().ByName(id)
	if name == "" || m.ProtoReflect().Get(field).Int() != prepared {
		return m
	}
	fence, found := s.fences.Load(name)
	if !found {
		return m
	}
	m = proto.Clone(m)
	m.ProtoReflect().Set(field, protoreflect.ValueOf(fence))
	return m
}

// locks returns the generated client, with the caller's key, over gRPC.
func (c *caller) locks() lockv1connect.LockServiceClient {
	return lockv1connect.NewLockServiceClient(servertest.HTTP2, c.Base, connect.WithGRPC(),
		connect.WithInterceptors(servertest.WithKey(c.apiKey)))
}

// holdOnce holds a lock until the first message of the stream, and returns it as text.
func holdOnce(c *caller, r *lockv1.HoldRequest) string {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := c.locks().Hold(ctx, r)
	if err != nil {
		c.T.Fatal(err)
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

func (c *caller) acquire(name string) *lockv1.Lock {
	c.T.Helper()
	return ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: name}, new(lockv1.AcquireResponse)).GetLock()
}

func (c *caller) releaseLock(name string, fence int64) {
	c.T.Helper()
	ok(c, "Lock.Release", &lockv1.ReleaseRequest{Name: name, Fence: fence}, new(lockv1.ReleaseResponse))
}

func (s *site) waiting(n int) func() bool {
	return func() bool { return s.Count("select count(*) from lock_waiters") == n }
}

func TestTwoServersServeOneQueue(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	callers := []*caller{{s, key}, {s.second(), key}}
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
		eventually(t, 20*time.Second, "the call is in the queue", s.waiting(n+1))
	}
	if got := ok(callers[1], "Lock.GetLock", &lockv1.GetLockRequest{Name: "a"},
		new(lockv1.GetLockResponse)).GetLock(); got.GetWaiters() != 30 || got.GetFence() != first.GetFence() {
		t.Errorf("%v", got)
	}
	callers[0].releaseLock("a", first.GetFence())
	work.Wait()
	if len(order) != 30 || !slices.IsSorted(order) {
		t.Errorf("the order was %v", order)
	}
}

// A server stops while a call is in the queue: the call fails with Unavailable, and leaves the queue at once.
func TestStoppedServerLeavesTheLockQueue(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	other := s.second()
	c, away := &caller{s, key}, &caller{other, key}
	first := c.acquire("a")
	gone := make(chan error, 1)
	go func() {
		_, err := away.locks().Acquire(context.Background(),
			&lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(time.Minute)})
		gone <- err
	}()
	eventually(t, 20*time.Second, "the call waits", s.waiting(1))
	other.Server.Stop()
	if err := <-gone; connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("after Stop: %v", err)
	}
	if !s.waiting(0)() {
		t.Error("the waiter is still in the queue")
	}
	c.releaseLock("a", first.GetFence())
	c.acquire("a")
}

// An Acquire with a key is replayed, also if it had to wait, and acquires the lock once.
func TestAcquireIsReplayedAfterAWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	first := c.acquire("a")
	request := &lockv1.AcquireRequest{Name: "a", Holder: "me", Wait: durationpb.New(30 * time.Second)}
	got := make(chan answer, 1)
	go func() { got <- c.call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k") }()
	eventually(t, 20*time.Second, "the call waits", s.waiting(1))
	c.releaseLock("a", first.GetFence())
	a := <-got
	again := c.call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k")
	if a.Code != "" || a.Replayed() || !again.Replayed() || string(a.Raw) != string(again.Raw) {
		t.Errorf("%q %q, again %q, replayed %v", a.Code, a.Raw, again.Raw, again.Replayed())
	}
	// A call that did not get the lock is not recorded: a call with the same key may acquire it later.
	late := &lockv1.AcquireRequest{Name: "a", Holder: "late", Wait: durationpb.New(100 * time.Millisecond)}
	if a := c.call(connectProto, "Lock.Acquire", late, "Idempotency-Key", "l"); a.Code != "aborted" ||
		a.Reason(t) != "LOCK_HELD" {
		t.Errorf("%s %s", a.Code, a.Message)
	}
	var held lockv1.AcquireResponse
	connectProto.Decode(t, again.Raw, &held)
	c.releaseLock("a", held.GetLock().GetFence())
	if a := c.call(connectProto, "Lock.Acquire", late, "Idempotency-Key", "l"); a.Code != "" || a.Replayed() {
		t.Errorf("%s %s", a.Code, a.Message)
	}
	if life := s.Count("select extract(epoch from expires_at - created_at)::integer from commit_keys " +
		"where key = 'k'"); life != 3630 {
		t.Errorf("the key is kept for %d s", life)
	}
}

// Calls with one key that wait concurrently, in two servers, acquire the lock once: all get the same response, and no
// waiter is left in the queue.
func TestWaitingCallsWithOneKeyAcquireOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	callers := []*caller{{s, key}, {s.second(), key}}
	first := callers[0].acquire("a")
	request := &lockv1.AcquireRequest{Name: "a", Wait: durationpb.New(12 * time.Second)}
	const calls = 6
	got := make(chan answer, calls)
	for n := range calls {
		go func() { got <- callers[n%2].call(connectProto, "Lock.Acquire", request, "Idempotency-Key", "k") }()
	}
	eventually(t, 20*time.Second, "all wait", s.waiting(calls))
	released := time.Now()
	callers[0].releaseLock("a", first.GetFence())
	var one answer
	for n := range calls {
		a := <-got
		if n == 0 {
			one = a
		}
		if a.Code != "" || string(a.Raw) != string(one.Raw) {
			t.Errorf("%d: %q %s, not %q", n, a.Code, a.Message, one.Raw)
		}
		if n == calls/2-1 && time.Since(released) > 20*time.Second {
			t.Errorf("the other calls were answered after %v", time.Since(released))
		}
	}
	if n := s.Count("select count(*) from lock_waiters"); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

func TestHoldRenewsUntilTheStreamEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lease := durationpb.New(3 * time.Second)
	stream, err := c.locks().Hold(ctx, &lockv1.HoldRequest{Name: "a", Holder: "me", Lease: lease})
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
	if a := c.call(connectProto, "Lock.Acquire", busy); a.Code != "already_exists" || a.Reason(t) != "PAGE_LOCK_HELD" {
		t.Errorf("while it is held: %s %s", a.Code, a.Message)
	}
	cancel()
	eventually(t, 20*time.Second, "it is free",
		func() bool { return s.Count("select count(*) from lock_locks where state = 'held'") == 0 })

	// A stream that has lost its lock ends.
	stream, err = c.locks().Hold(context.Background(), &lockv1.HoldRequest{Name: "a", Lease: lease})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	if _, err := s.Pool.Exec(context.Background(),
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

// If renewals fail, the stream ends before the lease, so before another caller can acquire the lock. The lookup of the
// API key fails too, which the server repeats after 3 s.
func TestHoldEndsBeforeItsLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	stream, err := c.locks().Hold(context.Background(),
		&lockv1.HoldRequest{Name: "a", Lease: durationpb.New(6 * time.Second)})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	tx, err := s.Pool.Begin(context.Background())
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

// Policies do not apply to the release at the end of a stream, which the server makes itself, and a stream needs no
// key.
func TestPoliciesDoNotApplyToTheReleaseOfHold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	super := pgtest.Pool(t, s.DB.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []access.Policy{{Operation: access.Others, KeyRequired: true},
		{Operation: "lock.release", KeyRequired: true, TokenRequired: true}} {
		if err := access.Administer(super).PutPolicy(t.Context(), tenant, r); err != nil {
			t.Fatal(err)
		}
	}
	if text := holdOnce(c, &lockv1.HoldRequest{Name: "a"}); strings.HasPrefix(text, "error") {
		t.Fatal(text)
	}
	eventually(t, 20*time.Second, "it is released",
		func() bool { return s.Count("select count(*) from lock_locks where state = 'free'") == 1 })
	if a := c.call(connectProto, "Lock.Acquire",
		&lockv1.AcquireRequest{Name: "a"}); a.Reason(t) != "IDEMPOTENCY_KEY_MISSING" {
		t.Errorf("a call without key: %s %s", a.Code, a.Message)
	}
}

// Streams are cancelled at random moments, also during the acquisition: no lock remains held.
func TestCancelledHoldLeavesNoLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
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
	eventually(t, 20*time.Second, "none is held",
		func() bool { return s.Count("select count(*) from lock_locks where state = 'held'") == 0 })
	if n := s.Count("select count(*) from lock_locks"); n < 20 {
		t.Errorf("only %d were ever held", n)
	}
}

func TestExecuteMayRequireALock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
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
		// A failure of a later operation undoes the acquisition.
		"INSUFFICIENT_FUNDS": execute(operation("", &lockv1.AcquireRequest{Name: "c"}),
			operation("", pay("three", "u:a", "world", "1000"))),
	} {
		if a := c.call(connectProto, "Batch.Execute", r); a.Code == "" || a.Reason(t) != what {
			t.Errorf("%s: %q %s", what, a.Code, a.Message)
		}
	}
	if b := c.balance("u:a"); b != "93.00" { // of 95, of which 5 are held
		t.Errorf("the balance is %s", b)
	}
	c.executed(execute(operation("", pay("last", "u:a", "world", "1")),
		operation("", &lockv1.ReleaseRequest{Name: "a", Fence: fence})))
	for _, name := range []string{"a", "b", "c"} {
		if l := ok(c, "Lock.GetLock", &lockv1.GetLockRequest{Name: name},
			new(lockv1.GetLockResponse)).GetLock(); l.GetState() != lockv1.LockState_LOCK_STATE_FREE {
			t.Errorf("%v", l)
		}
	}
}

func TestLocksAreCounted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	c := &caller{s, key}
	ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: "a", Lease: durationpb.New(time.Second)},
		new(lockv1.AcquireResponse))
	c.acquire("a") // waits for the end of the lease
	for _, r := range []proto.Message{&lockv1.RenewRequest{Name: "a", Fence: 1},
		&lockv1.ReleaseRequest{Name: "b", Fence: 1}} {
		name := map[bool]string{true: "Lock.Renew",
			false: "Lock.Release"}[r.ProtoReflect().Descriptor().Name() == "RenewRequest"]
		if a := c.call(connectProto, name, r); a.Reason(t) != "LOCK_LOST" {
			t.Errorf("%s: %s", name, a.Message)
		}
	}
	request, _ := http.NewRequest(http.MethodGet, s.Base+"/metrics", nil)
	request.Header.Set("Authorization", "Bearer "+s.watcher())
	res, err := servertest.HTTP1.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ledgerd_lock_leases_lapsed_total 1",
		`ledgerd_lock_fences_lost_total{call="renew"} 1`,
		`ledgerd_lock_fences_lost_total{call="release"} 1`, `ledgerd_lock_wait_seconds_count{outcome="acquired"} 1`,
		"ledgerd_lock_waiting 0"} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("there is no %q", line)
		}
	}
}

// A user's own transaction takes a lock key as documented. Meanwhile no Execute with this key runs, in either of two
// servers; others run.
func TestLockKeysKeepExecutesApart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	callers := []*caller{{s, key}, {s.second(), key}}
	stranger := &caller{s, s.Key("other", "boss", access.Admin)}
	callers[0].prepare("a")
	stranger.prepare("a")
	ctx := context.Background()
	tx, err := s.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // when the test fails
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('k2', (select tenant_id from access_tenants
		where name = 'mine')))`); err != nil {
		t.Fatal(err)
	}
	with := func(bizNo string, keys ...string) *batchv1.ExecuteRequest {
		r := execute(operation("", pay(bizNo, "u:a", "world", "1")))
		r.LockKeys = keys
		return r
	}
	for n, c := range callers {
		a := c.call(connectProto, "Batch.Execute", with(fmt.Sprint("held", n), "k3", "k2", "k1"), "Connect-Timeout-Ms",
			"3000")
		// On a busy machine the time may end during an attempt, whose outcome is then unknown.
		if r := a.Reason(t); r != "ROWS_LOCKED" && r != "OUTCOME_UNKNOWN" {
			t.Errorf("server %d: %s %s", n, a.Code, a.Message)
		}
		c.executed(with(fmt.Sprint("other key", n), "k1", "k3"))
		c.executed(with(fmt.Sprint("no key", n)))
	}
	stranger.executed(with("another tenant", "k2"))
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}

	// Two servers concurrently take the same keys in different orders: they never deadlock.
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
		with("bad", strings.Split(strings.Repeat("k,", 32)+"k", ",")...)); a.Code != "invalid_argument" {
		t.Errorf("33 keys: %s", a.Code)
	}
}
