package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/jackc/pgx/v5"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// closeDatabase refuses connections of the server until reopen is called.
func closeDatabase(s *servertest.Site) (reopen func()) {
	s.T.Helper()
	limit := func(n string) {
		s.T.Helper()
		if _, err := s.Pool.Exec(context.Background(),
			"alter database "+pgx.Identifier{s.DB.Name}.Sanitize()+" connection limit "+n); err != nil {
			s.T.Fatal(err)
		}
	}
	limit("0") // not for superusers
	s.Count(`select count(pg_terminate_backend(pid)) from pg_stat_activity a
		where datname = current_database() and not (select rolsuper from pg_roles where rolname = a.usename)`)
	return func() { s.T.Helper(); limit("-1") }
}

func TestReadyzNamesTheProblem(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	if code, body := servertest.Get(t, s.Base+"/readyz", ""); code != 200 || !strings.Contains(body, `"ready":true`) {
		t.Fatalf("%d %s", code, body)
	}
	reopen := closeDatabase(s)
	servertest.Eventually(t, 20*time.Second, "not ready",
		func() bool { code, _ := servertest.Get(t, s.Base+"/readyz", ""); return code == 503 })
	if _, body := servertest.Get(t, s.Base+"/readyz", ""); !strings.Contains(body, `"problems":{`) ||
		!strings.Contains(body, `"database":"cannot be reached"`) {
		t.Errorf("%s", body)
	}
	if code, _ := servertest.Get(t, s.Base+"/healthz", ""); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	if status := healthCheck(s, "").GetStatus(); status != health.HealthCheckResponse_NOT_SERVING {
		t.Errorf("gRPC health: %v", status)
	}
	for name, r := range map[string]proto.Message{"ListAssets": &ledgerv1.ListAssetsRequest{},
		"Transfer": payment("a", "5")} {
		a := c.Call(servertest.ConnectJSON, name, r, "Idempotency-Key", "k", "Connect-Timeout-Ms", "500")
		if reason := a.Reason(t); reason != "DATABASE_UNAVAILABLE" && reason != "NOT_RUN" ||
			strings.Contains(a.Message, "connect") {
			t.Errorf("%s without a database: %s %s %s", name, a.Code, reason, a.Message)
		}
	}
	reopen()
	servertest.Eventually(t, 20*time.Second, "ready again",
		func() bool { code, _ := servertest.Get(t, s.Base+"/readyz", ""); return code == 200 })
	if a := c.Call(servertest.ConnectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k"); a.Code != "" ||
		a.Replayed() {
		t.Errorf("after the outage: %s", a.Raw)
	}
}

// Few connections are left, and none for API keys: every call fails, so the server is not ready.
func TestServerWithoutAConnectionForKeysIsNotReady(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	own := s.Count(`select count(*) from pg_stat_activity a where datname = current_database()
		and not (select rolsuper from pg_roles where rolname = a.usename)`)
	limit := func(n string) {
		t.Helper()
		if _, err := s.Pool.Exec(t.Context(), "alter database "+pgx.Identifier{s.DB.Name}.Sanitize()+
			" connection limit "+n); err != nil {
			t.Fatal(err)
		}
	}
	limit(fmt.Sprint(max(own-1, 0))) // not for superusers
	s.Count(`select count(pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and query like '%access_api_keys%' and pid <> pg_backend_pid()`)
	servertest.Eventually(t, 20*time.Second, "not ready", func() bool {
		code, body := servertest.Get(t, s.Base+"/readyz", "")
		a := c.Call(servertest.ConnectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{})
		return code == 503 && strings.Contains(body, `"api keys":"have no connection to the database"`) && a.Code != ""
	})
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for ctx.Err() == nil {
				c.Call(servertest.ConnectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{})
			}
		})
	}
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); <-time.After(200 * time.Millisecond) {
		if code, body := servertest.Get(t, s.Base+"/readyz", ""); code != 503 {
			t.Errorf("with callers: %d %s", code, body)
			break
		}
	}
	stop()
	callers.Wait()
	limit("-1")
	servertest.Eventually(t, 20*time.Second, "ready again", func() bool {
		code, _ := servertest.Get(t, s.Base+"/readyz", "")
		return code == 200 && c.Call(servertest.ConnectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).Code == ""
	})
}

func healthCheck(s *servertest.Site, service string) *health.HealthCheckResponse {
	s.T.Helper()
	client := connect.NewClient[health.HealthCheckRequest, health.HealthCheckResponse](servertest.HTTP2,
		s.Base+health.Health_Check_FullMethodName, connect.WithGRPC())
	res, err := client.CallUnary(context.Background(), connect.NewRequest(&health.HealthCheckRequest{Service: service}))
	if err != nil {
		if connect.CodeOf(err) != connect.CodeNotFound {
			s.T.Fatal(err)
		}
		return nil
	}
	return res.Msg
}

func TestHealthAndReflectionSpeakGRPC(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	for _, name := range []string{"", ledgerv1connect.LedgerServiceName} {
		if status := healthCheck(s, name).GetStatus(); status != health.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v", name, status)
		}
	}
	if healthCheck(s, "other") != nil {
		t.Error("the health check accepts an unknown service")
	}
	client := connect.NewClient[health.HealthCheckRequest, health.HealthCheckResponse](servertest.HTTP2,
		s.Base+health.Health_Watch_FullMethodName, connect.WithGRPC())
	stream, err := client.CallServerStream(context.Background(), connect.NewRequest(&health.HealthCheckRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().GetStatus() != health.HealthCheckResponse_SERVING {
		t.Errorf("watch: %v, %v", stream.Msg(), stream.Err())
	}
	for key, good := range map[string]bool{s.Key("mine", "boss", access.Read): true, "": false} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		reflection := grpcreflect.NewClient(servertest.HTTP2, s.Base, connect.WithGRPC(),
			connect.WithInterceptors(servertest.WithKey(key))).NewStream(ctx)
		names, err := reflection.ListServices()
		if good != (err == nil) || good && !slices.Equal(slices.Sorted(slices.Values(names)), services()) {
			t.Errorf("reflection with key %v: %v, %v", good, names, err)
		}
		if good {
			if files, err := reflection.FileContainingSymbol(names[0]); err != nil || len(files) == 0 {
				t.Errorf("file: %v", err)
			}
		}
		_, _ = reflection.Close()
		cancel()
	}
}

// services returns the full names of all our services, sorted.
func services() (names []protoreflect.FullName) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if s := f.Services().Get(i); strings.HasPrefix(string(s.FullName()), "ledgerd.") {
				names = append(names, s.FullName())
			}
		}
		return true
	})
	slices.Sort(names)
	return names
}

func TestRequestIDIsInEveryAnswerRowAndLogLine(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	a := c.Call(servertest.GRPC, "Transfer", payment("a", "5"), "Idempotency-Key", "k", "X-Request-ID", "my-id")
	if a.Header.Get("X-Request-Id") != "my-id" {
		t.Errorf("answer: %v", a.Header)
	}
	for _, table := range []string{"ledger_transfers", "commit_keys"} {
		if s.Count("select count(*) from "+table+" where request_id = 'my-id'") != 1 {
			t.Errorf("%s does not have it", table)
		}
	}
	c.Call(servertest.GRPC, "Transfer", payment("a", "5"), "Idempotency-Key", "k", "X-Request-ID", "later-id")
	no := payment("a", "1000")
	no.BizNo = "no"
	c.Call(servertest.ConnectJSON, "Transfer", no, "Idempotency-Key", "no", "X-Request-ID", "no-id")
	c.Call(servertest.ConnectJSON, "Transfer", no, "Idempotency-Key", "no", "X-Request-ID", "no-again-id")
	c.Call(servertest.ConnectJSON, "Transfer", no, "Idempotency-Key", "k", "X-Request-ID", "other-id")
	for id, want := range map[string]map[string]any{
		"later-id":    {"msg": "request key replayed", "first_request_id": "my-id", "key": "k"},
		"no-id":       {"msg": "call refused", "reason": "INSUFFICIENT_FUNDS", "key": "no"},
		"no-again-id": {"msg": "request key replayed", "first_request_id": "no-id", "key": "no"},
		"other-id":    {"msg": "request key reused with other content", "first_request_id": "my-id", "key": "k"},
	} {
		lines := s.Log.With("request_id", id)
		if len(lines) != 1 {
			t.Errorf("%s has %d lines", id, len(lines))
			continue
		}
		for field, value := range want {
			if lines[0][field] != value {
				t.Errorf("%s: %s is %v, want %v", id, field, lines[0][field], value)
			}
		}
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "with space", strings.Repeat("i", 129), "größe"} {
		id := c.Call(servertest.ConnectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "X-Request-ID",
			bad).Header.Get("X-Request-Id")
		if len(id) != 24 || seen[id] {
			t.Errorf("for %q: %q", bad, id)
		}
		seen[id] = true
	}
}

func TestMetricNames(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	c.Call(servertest.ConnectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	c.Call(servertest.ConnectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	c.Call(servertest.ConnectJSON, "Transfer", payment("a", "1000"), "Idempotency-Key", "k")
	code, page := servertest.Get(t, s.Base+"/metrics", watcher(c))
	if code != 200 {
		t.Fatal(code)
	}
	for _, want := range []string{
		`ledgerd_calls_total{code="ok",procedure="/ledgerd.ledger.v1.LedgerService/Transfer",reason=""} 2`,
		`ledgerd_calls_total{code="already_exists",procedure="/ledgerd.ledger.v1.LedgerService/Transfer",` +
			`reason="IDEMPOTENCY_KEY_REUSED"} 1`,
		`ledgerd_call_seconds_count{procedure="/ledgerd.ledger.v1.LedgerService/Transfer"} 3`,
		"ledgerd_commit_batch_commands_count", `ledgerd_commit_stage_seconds_count{stage="load"}`,
		`ledgerd_commit_stage_seconds_count{stage="flush"}`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="first"} 1`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="replayed"} 1`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="mismatch"} 1`,
		"ledgerd_commit_inflight_rows", `ledgerd_commit_attempts_total{ending="done"}`,
		"ledgerd_commit_lock_waits_total", "ledgerd_commit_unknown_outcomes_total",
		`ledgerd_pool_connections{pool="engine",state="max"}`, `ledgerd_pool_connections{pool="read",state="used"}`,
		`ledgerd_pool_waits_total{pool="engine"}`, "go_goroutines", "process_cpu_seconds_total",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(page, "mine") || strings.Contains(page, "u:a") {
		t.Error("the metrics contain tenants")
	}
}

func TestMetricsNeedAnAdminKey(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	for name, x := range map[string]struct {
		key  string
		code int
	}{"no key": {"", 401}, "a key that is none": {"x", 401}, "read": {s.Key("mine", "reader", access.Read), 403},
		"write": {s.Key("mine", "writer", access.Write), 403}, "admin": {watcher(c), 200}} {
		if code, _ := servertest.Get(t, s.Base+"/metrics", x.key); code != x.code {
			t.Errorf("%s: %d", name, code)
		}
	}
}

func TestMetricsListenNeedsNoKey(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	s.Server.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s.Start(server.Options{MetricsListen: address})
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		if code, _ := servertest.Get(t, "http://"+address+path, ""); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "rebound.example" // a foreign page whose name resolves to this machine
		res, err := servertest.HTTP1.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s for another host: %d", path, res.StatusCode)
		}
	}
}

func TestFailedStartReleasesThePort(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	_, err = server.Start(t.Context(), server.Options{DatabaseURL: s.DB.AppDSN, Listen: address,
		MetricsListen: taken.Addr().String()})
	if err == nil {
		t.Fatal("the server started")
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestStopAnswersCallsInFlight(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	ctx := context.Background()
	lock, err := s.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(ctx, "select from ledger_accounts where code = 'u:a' for update"); err != nil {
		t.Fatal(err)
	}
	answers := make(chan servertest.Answer, len(servertest.Protocols))
	for i, p := range servertest.Protocols {
		go func() {
			r := payment("a", "1")
			r.BizNo = string(rune('a' + i))
			answers <- c.Call(p, "Transfer", r, "Idempotency-Key", r.BizNo)
		}()
	}
	key := watcher(c)
	servertest.Eventually(t, 10*time.Second, "the calls wait", func() bool {
		_, page := servertest.Get(t, s.Base+"/metrics", key)
		return strings.Contains(page, "ledgerd_commit_inflight_rows 4")
	})
	ended := make(chan struct{})
	go func() { s.Server.Stop(); close(ended) }()
	servertest.Eventually(t, 10*time.Second, "new calls are refused", func() bool {
		conn, err := net.Dial("tcp", s.Server.Addr())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if err := lock.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for range servertest.Protocols {
		if a := <-answers; a.Code != "" || len(a.Raw) == 0 {
			t.Errorf("%s: %s", a.Code, a.Message)
		}
	}
	<-ended
	if n := s.Count("select count(*) from ledger_transfers where biz_no in ('a', 'b', 'c', 'd')"); n != 4 {
		t.Errorf("%d transfers", n)
	}
}

// A transaction that locks an account delays the expiry of this account's holds only.
func TestHoldsBehindALockedAccountExpire(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	fund(c, "b")
	ctx := t.Context()
	lock, err := s.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	insert := `insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at,
		created_at, principal, request_id)
		select tenant_id, account_id + 100 + i, code || i, account_id, '', 1, 1, clock_timestamp() - $3::interval,
		recorded_at, 'p', 'r'
		from ledger_accounts join commit_batches on batch_id = account_id >> 14, generate_series(1, $2) i
		where code = $1`
	update := `update ledger_accounts set held = held + $2::integer, next_expiry_at = clock_timestamp() - '1 ` +
		`h'::interval where code = $1`
	const many = 700 // more than dueBatch
	_, err1 := lock.Exec(ctx, update, "u:a", many)
	_, err2 := s.Pool.Exec(ctx, insert, "u:a", many, "1 h")
	_, err3 := s.Pool.Exec(ctx, update, "u:b", 1)
	_, err4 := s.Pool.Exec(ctx, insert, "u:b", 1, "1 s")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 20*time.Second, "b's hold expires", func() bool {
		return s.Count("select count(*) from ledger_holds where biz_no = 'u:b1' and state = 'expired'") == 1
	})
	if n := s.Count("select count(*) from ledger_holds where state = 'held' and life_ms = 1"); n != many {
		t.Errorf("%d are held behind the lock", n)
	}
	if err := lock.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 20*time.Second, "a's holds expire", func() bool {
		return s.Count("select count(*) from ledger_holds where state = 'held' and life_ms = 1") == 0
	})
}

// A transaction that locks an instance delays the timer of this instance only.
func TestTimersFire(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	c.OK("Machine.DefineMachine", &machinev1.DefineMachineRequest{Machine: "order", Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "open", Initial: true,
			Timer: &machinev1.Timer{After: durationpb.New(time.Hour), To: "closed", Reason: "timeout"}},
			{Name: "closed"}},
		Moves: []*machinev1.AllowedMove{{From: []string{"open"}, To: "closed",
			By: []machinev1.Actor{machinev1.Actor_ACTOR_TIMER}}}}}, new(machinev1.DefineMachineResponse))
	for _, key := range []string{"locked", "free"} {
		c.OK("Machine.CreateInstance", &machinev1.CreateInstanceRequest{Machine: "order", Key: key,
			Timer: durationpb.New(time.Second)}, new(machinev1.CreateInstanceResponse))
	}
	c.OK("Machine.CreateInstance", &machinev1.CreateInstanceRequest{Machine: "order", Key: "later"},
		new(machinev1.CreateInstanceResponse))
	ctx := t.Context()
	lock, err := s.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(ctx, "select from machine_instances where key = 'locked' for update"); err != nil {
		t.Fatal(err)
	}
	recorded := func(key string) bool {
		return s.Count(`select count(*) from machine_history where actor = 'timer'
			and key = '`+key+`' and cause = 'timer'
			and reason = 'timeout' and request_id = 'scheduler.' || instance_id and revision = 2`) == 1
	}
	servertest.Eventually(t, 20*time.Second, "the timer fires", func() bool { return recorded("free") })
	if recorded("locked") {
		t.Error("the timer of a locked instance fired")
	}
	if err := lock.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 20*time.Second, "the other timer fires", func() bool { return recorded("locked") })
	if n := s.Count("select count(*) from machine_history"); n != 5 {
		t.Errorf("%d rows of history", n)
	}
}

// Timers whose events are refused are retried after a pause, so that other timers fire too.
func TestTimersWhoseEventsAreRefusedPause(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	tenant := int32(s.Count("select tenant_id from access_tenants where name = 'mine'"))
	if _, err := notify.PutLimit(t.Context(), s.Pool, tenant, notify.Limit{Channel: send.Webhook,
		Scope: notify.PerRecipient, Window: time.Hour, MaxMessages: 1}); err != nil {
		t.Fatal(err)
	}
	c.OK("Machine.DefineMachine", &machinev1.DefineMachineRequest{Machine: "order", Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "open", Initial: true,
			Timer: &machinev1.Timer{After: durationpb.New(time.Second), To: "closed"}}, {Name: "closed"}},
		Moves: []*machinev1.AllowedMove{{From: []string{"open"}, To: "closed", Publish: "order.closed",
			By: []machinev1.Actor{machinev1.Actor_ACTOR_TIMER}}}}}, new(machinev1.DefineMachineResponse))
	c.OK("Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "shop", Url: "https://hooks.example.com/shop"},
		new(notifyv1.CreateEndpointResponse))
	const timers = 120
	for n := range timers {
		c.OK("Machine.CreateInstance", &machinev1.CreateInstanceRequest{Machine: "order", Key: fmt.Sprint(n)},
			new(machinev1.CreateInstanceResponse))
	}
	failures := func() int { return len(s.Log.With("msg", "fire timers failed")) }
	paused := func() bool {
		return s.Count("select count(*) from machine_instances where timer_at > now()") == 0 && failures() > 0
	}
	servertest.Eventually(t, 20*time.Second, "the timers are refused", paused)
	before, start := failures(), time.Now()
	servertest.Eventually(t, 20*time.Second, "five runs later",
		func() bool { return time.Since(start) > 5*time.Second })
	if n := failures() - before; n > 2 { // the run that saw the last ones fail, and one with the first ones
		t.Errorf("%d runs tried them again within 5 s", n)
	}
	if n := s.Count("select count(*) from machine_history where revision = 2"); n != 1 {
		t.Errorf("%d moves, 1 event", n)
	}
}

func TestBackgroundWorkExpiresHoldsReservationsKeysAndClaims(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	s.Server.Stop()
	s.Start(server.Options{KeyLife: time.Second})
	c := writer(s)
	fund(c, "a")
	c.OK("Idempotency.ClaimKey", &idempotencyv1.ClaimKeyRequest{Scope: "s", Key: "short",
		Life: durationpb.New(time.Second)}, new(idempotencyv1.ClaimKeyResponse))
	var hold map[string]any
	a := c.Send(servertest.ConnectJSON, servertest.Path(servertest.Method(t, "Hold")),
		[]byte(`{"bizNo":"short","from":"u:a","asset":"COIN","amount":"1","life":"1s"}`), "Idempotency-Key", "k")
	if err := json.Unmarshal(a.Raw, &hold); err != nil || a.Code != "" {
		t.Fatalf("%s %v", a.Raw, err)
	}
	c.OK("Stock.PutItem", &stockv1.PutItemRequest{Item: "tea"}, new(stockv1.PutItemResponse))
	c.OK("Stock.Restock", &stockv1.RestockRequest{Item: "tea", ChangeNo: "1", Quantity: 1},
		new(stockv1.RestockResponse))
	c.OK("Stock.Reserve", &stockv1.ReserveRequest{Item: "tea", ReservationNo: "1", Quantity: 1,
		Life: durationpb.New(time.Second)}, new(stockv1.ReserveResponse))
	servertest.Eventually(t, 20*time.Second, "the reservation expires", func() bool {
		return s.Count("select available from stock_items") == 1 &&
			s.Count("select count(*) from stock_reservations where state = 'expired' and closed_at = expires_at") == 1
	})
	servertest.Eventually(t, 20*time.Second, "the hold expires", func() bool {
		return s.Count("select count(*) from ledger_holds where biz_no = 'short' and state = 'expired'") == 1
	})
	if a := c.Call(servertest.ConnectJSON, "Hold",
		&ledgerv1.HoldRequest{BizNo: "other", From: "u:a", Asset: "COIN", Amount: "1"},
		"Idempotency-Key", "k"); a.Code != "" || a.Replayed() {
		t.Errorf("the expired key is still valid: %s", a.Raw)
	}
	servertest.Eventually(t, 30*time.Second, "the expired keys are deleted",
		func() bool { return s.Count("select count(*) from commit_keys") == 0 })
	servertest.Eventually(t, 30*time.Second, "the expired claim is deleted",
		func() bool { return s.Count("select count(*) from claim_keys where key = 'short'") == 0 })
}

// After an outage longer than the existing partitions, a server accepts messages immediately.
func TestServerCreatesMissingPartitionsAtStart(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	s.Server.Stop()
	if _, err := s.Pool.Exec(t.Context(), `do $$ declare part text; begin for part in select inhrelid::regclass
		from pg_inherits where inhparent in
		('notify_messages'::regclass, 'notify_events'::regclass, 'notify_contents'::regclass) loop
		execute 'drop table ' || part; end loop; end $$`); err != nil {
		t.Fatal(err)
	}
	s.Start(server.Options{})
	c.OK("Notify.Send", text(), new(notifyv1.SendResponse))
}

func TestAnyoneRequiresTheOption(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	tenant, err := access.EnsureTenant(context.Background(), s.Pool, "sample")
	if err != nil {
		t.Fatal(err)
	}
	s.Server.Stop()
	const page = "http://localhost:3000"
	s.Start(server.Options{Anyone: &access.Identity{Tenant: tenant, Principal: "dev", Role: access.Admin},
		Origins: []string{page}})
	if a := (&servertest.Caller{Site: s}).Call(servertest.ConnectJSON, "ListAssets",
		&ledgerv1.ListAssetsRequest{}); a.Code != "" {
		t.Errorf("%s: %s", a.Code, a.Message)
	}
	port := s.Base[strings.LastIndex(s.Base, ":"):]
	for host, want := range map[string]int{"localhost" + port: 200, "[::1]" + port: 200, "127.0.0.1": 200,
		"evil.example" + port: 403, "evil.example": 403, "10.0.0.1": 403} {
		req, _ := http.NewRequest(http.MethodGet, s.Base+"/healthz", nil)
		req.Host = host
		res, err := servertest.HTTP1.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("as %s: %d", host, res.StatusCode)
		}
	}
	for origin, want := range map[string]int{"": 200, page: 200, s.Base: 200, "http://localhost:4000": 403,
		"https://evil.example": 403, "null": 403} {
		req, _ := http.NewRequest(http.MethodGet, s.Base+"/healthz", nil)
		req.Header.Set("Origin", origin)
		res, err := servertest.HTTP1.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("of a page of %q: %d", origin, res.StatusCode)
		}
	}
}

// AdminService is off without a login of its own, which must be a member of ledgerd_admin in the same database.
func TestAdministrationNeedsItsOwnLogin(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	start := func(admin string) (*server.Server, error) {
		return server.Start(t.Context(), server.Options{DatabaseURL: s.DB.AppDSN, AdminDatabaseURL: admin,
			Secret: servertest.Secret, Listen: "127.0.0.1:0", Log: slog.New(slog.NewJSONHandler(s.Log, nil))})
	}
	for want, admin := range map[string]string{"a member of ledgerd_admin only": s.DB.AppDSN,
		"this is not the database of --database-url": pgtest.New(t).AdminDSN} {
		started, err := start(admin)
		if err == nil {
			started.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), "--admin-database-url: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	started, err := start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(started.Stop)
	off := *s
	off.Base = "http://" + started.Addr()
	for role, calls := range map[access.Role]map[string]string{
		access.Admin: {"CreateKey": `{"principal": "p", "role": "ROLE_READ"}`,
			"ListKeys": "{}", "RevokeKey": `{"keyName": "x"}`,
			"ListPolicies": "{}", "DeleteLimit": `{"limit": {"channel": "sms", "scope": "tenant", "window": "60s"}}`},
		access.Operator: {"CreateTenant": `{"name": "new"}`, "ListTenants": "{}"},
	} {
		c := &servertest.Caller{Site: &off, APIKey: s.Key("mine", "boss", role)}
		for call, body := range calls {
			a := c.Send(servertest.ConnectJSON, "/ledgerd.admin.v1.AdminService/"+call, []byte(body))
			if a.Reason(t) != "ADMINISTRATION_OFF" {
				t.Errorf("%s: %s %s", call, a.Code, a.Message)
			}
		}
	}
}

func TestServiceRefusesAPowerfulRole(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	if started, err := server.Start(context.Background(),
		server.Options{DatabaseURL: s.DB.SuperDSN, Listen: "127.0.0.1:0"}); err == nil {
		started.Stop()
		t.Error("the server started as a superuser")
	}
}

// The log says when calls fail and succeed again, and when the epoch of the database changes.
func TestTheLogReportsOutages(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	readOnly := func(setting string) {
		t.Helper()
		if _,
			err := s.Pool.Exec(t.Context(),
			"alter database "+s.DB.Name+" set default_transaction_read_only = "+setting); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
	}
	logged := func(text string) func() bool { return func() bool { return len(s.Log.With("msg", text)) > 0 } }
	readOnly("on")
	servertest.Eventually(t, 20*time.Second, "the log says not ready", logged("not ready"))
	readOnly("off")
	servertest.Eventually(t, 20*time.Second, "the log says ready again", logged("ready again"))
	// The effect of the restore of a disk snapshot.
	if _, err := s.Pool.Exec(t.Context(),
		"insert into commit_epochs (epoch) select greatest(max(epoch) + 1, commit_epoch()) "+
			"from commit_epochs"); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 30*time.Second, "the log names the epoch",
		logged("the database was promoted or restored: commits that it had not received may be lost"))
	// The effect of an old primary that is started again: the epoch is not known there.
	if _, err := s.Pool.Exec(t.Context(), "alter table commit_epochs disable trigger user; "+
		"delete from commit_epochs where epoch = (select max(epoch) from commit_epochs)"); err != nil {
		t.Fatal(err)
	}
	const old = "is one from before a failover or a restore that this server has seen"
	servertest.Eventually(t, 20*time.Second, "the server is not ready", func() bool {
		return slices.ContainsFunc(s.Log.With("msg", "not ready"), func(line map[string]any) bool {
			return strings.Contains(fmt.Sprint(line["problems"]), old)
		})
	})
}

// A development server gives a call without a key the identity Anyone. A call with a key is authenticated by it.
func TestKeysCountWhereNoneIsNeeded(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	tenant, err := access.EnsureTenant(t.Context(), s.Pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	s.Server.Stop()
	s.Start(server.Options{Anyone: &access.Identity{Tenant: tenant, Principal: "dev", Role: access.Admin}})
	assets := &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}}
	reader := servertest.Caller{Site: s, APIKey: s.Key("mine", "reader", access.Read)}
	for key, want := range map[string]string{"nope": "UNAUTHENTICATED", reader.APIKey: "PERMISSION_DENIED", "": ""} {
		c := servertest.Caller{Site: s, APIKey: key}
		if a := c.Call(servertest.ConnectJSON, "CreateAssets", assets); want != "" && a.Reason(t) != want ||
			want == "" && a.Code != "" {
			t.Errorf("key %q: %s %s", key, a.Code, a.Message)
		}
	}
}
