package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/jackc/pgx/v5"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server"
)

// get reads a plain page.
func get(t testing.TB, url, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http1.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// closeDatabase lets the service into its database no more, until the returned function lets it in again.
func (s *site) closeDatabase() (reopen func()) {
	s.t.Helper()
	limit := func(n string) {
		s.t.Helper()
		if _, err := s.pool.Exec(context.Background(),
			"alter database "+pgx.Identifier{s.db.Name}.Sanitize()+" connection limit "+n); err != nil {
			s.t.Fatal(err)
		}
	}
	limit("0") // not for superusers
	s.count(`select count(pg_terminate_backend(pid)) from pg_stat_activity a
		where datname = current_database() and not (select rolsuper from pg_roles where rolname = a.usename)`)
	return func() { s.t.Helper(); limit("-1") }
}

func TestReadyTellsWhatIsNotReady(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	if code, body := get(t, s.base+"/readyz", ""); code != 200 || !strings.Contains(body, `"ready":true`) {
		t.Fatalf("%d %s", code, body)
	}
	reopen := s.closeDatabase()
	soon(t, 20*time.Second, "not ready", func() bool { code, _ := get(t, s.base+"/readyz", ""); return code == 503 })
	if _, body := get(t, s.base+"/readyz", ""); !strings.Contains(body, `"database":"cannot be reached"`) {
		t.Errorf("%s", body)
	}
	if code, _ := get(t, s.base+"/healthz", ""); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	if status := c.healthCheck("").GetStatus(); status != health.HealthCheckResponse_NOT_SERVING {
		t.Errorf("gRPC health: %v", status)
	}
	for name, r := range map[string]proto.Message{"ListAssets": &ledgerv1.ListAssetsRequest{},
		"Transfer": payment("a", "5")} {
		a := c.call(connectJSON, name, r, "Idempotency-Key", "k", "Connect-Timeout-Ms", "500")
		if reason := a.reason(t); reason != "DATABASE_UNAVAILABLE" && reason != "NOT_RUN" ||
			strings.Contains(a.message, "connect") {
			t.Errorf("%s without a database: %s %s %s", name, a.code, reason, a.message)
		}
	}
	reopen()
	soon(t, 20*time.Second, "ready again", func() bool { code, _ := get(t, s.base+"/readyz", ""); return code == 200 })
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k"); a.code != "" || a.replayed() {
		t.Errorf("afterwards: %s", a.raw)
	}
}

func (s *site) healthCheck(service string) *health.HealthCheckResponse {
	s.t.Helper()
	client := connect.NewClient[health.HealthCheckRequest, health.HealthCheckResponse](http2,
		s.base+health.Health_Check_FullMethodName, connect.WithGRPC())
	res, err := client.CallUnary(context.Background(), connect.NewRequest(&health.HealthCheckRequest{Service: service}))
	if err != nil {
		if connect.CodeOf(err) != connect.CodeNotFound {
			s.t.Fatal(err)
		}
		return nil
	}
	return res.Msg
}

func TestHealthAndReflectionSpeakGRPC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, name := range []string{"", ledgerv1connect.LedgerServiceName} {
		if status := s.healthCheck(name).GetStatus(); status != health.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v", name, status)
		}
	}
	if s.healthCheck("other") != nil {
		t.Error("a service that is not there has health")
	}
	client := connect.NewClient[health.HealthCheckRequest, health.HealthCheckResponse](http2,
		s.base+health.Health_Watch_FullMethodName, connect.WithGRPC())
	stream, err := client.CallServerStream(context.Background(), connect.NewRequest(&health.HealthCheckRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().GetStatus() != health.HealthCheckResponse_SERVING {
		t.Errorf("watch: %v, %v", stream.Msg(), stream.Err())
	}
	for key, good := range map[string]bool{s.key("mine", "boss", access.Read): true, "": false} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		reflection := grpcreflect.NewClient(http2, s.base, connect.WithGRPC(),
			connect.WithInterceptors(withKey(key))).NewStream(ctx)
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

func TestRequestIDIsInEveryAnswerRowAndLogLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	a := c.call(grpc, "Transfer", payment("a", "5"), "Idempotency-Key", "k", "X-Request-ID", "my-id")
	if a.header.Get("X-Request-Id") != "my-id" {
		t.Errorf("answer: %v", a.header)
	}
	for _, table := range []string{"ledger_transfers", "commit_keys"} {
		if s.count("select count(*) from "+table+" where request_id = 'my-id'") != 1 {
			t.Errorf("%s does not have it", table)
		}
	}
	c.call(grpc, "Transfer", payment("a", "5"), "Idempotency-Key", "k", "X-Request-ID", "later-id")
	no := payment("a", "1000")
	no.BizNo = "no"
	c.call(connectJSON, "Transfer", no, "Idempotency-Key", "no", "X-Request-ID", "no-id")
	c.call(connectJSON, "Transfer", no, "Idempotency-Key", "no", "X-Request-ID", "no-again-id")
	c.call(connectJSON, "Transfer", no, "Idempotency-Key", "k", "X-Request-ID", "other-id")
	for id, want := range map[string]map[string]any{
		"later-id":    {"msg": "request key replayed", "first_request_id": "my-id", "key": "k"},
		"no-id":       {"msg": "call refused", "reason": "INSUFFICIENT_FUNDS", "key": "no"},
		"no-again-id": {"msg": "request key replayed", "first_request_id": "no-id", "key": "no"},
		"other-id":    {"msg": "request key reused with other content", "first_request_id": "my-id", "key": "k"},
	} {
		lines := s.log.with("request_id", id)
		if len(lines) != 1 {
			t.Errorf("%s has %d lines", id, len(lines))
			continue
		}
		for field, value := range want {
			if lines[0][field] != value {
				t.Errorf("%s: %s is %v, not %v", id, field, lines[0][field], value)
			}
		}
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "with space", strings.Repeat("i", 129), "größe"} {
		id := c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "X-Request-ID",
			bad).header.Get("X-Request-Id")
		if len(id) != 24 || seen[id] {
			t.Errorf("for %q: %q", bad, id)
		}
		seen[id] = true
	}
}

func TestMetricsHaveTheirNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	c.call(connectJSON, "Transfer", payment("a", "1000"), "Idempotency-Key", "k")
	code, page := get(t, s.base+"/metrics", c.apiKey)
	if code != 200 {
		t.Fatal(code)
	}
	for _, want := range []string{
		`ledgerd_calls_total{code="ok",procedure="/ledgerd.ledger.v1.LedgerService/Transfer",reason=""} 2`,
		`ledgerd_calls_total{code="already_exists",procedure="/ledgerd.ledger.v1.LedgerService/Transfer",reason="IDEMPOTENCY_KEY_REUSED"} 1`,
		`ledgerd_call_seconds_count{procedure="/ledgerd.ledger.v1.LedgerService/Transfer"} 3`,
		"ledgerd_commit_batch_commands_count", `ledgerd_commit_stage_seconds_count{stage="load"}`, `ledgerd_commit_stage_seconds_count{stage="flush"}`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="first"} 1`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="replayed"} 1`,
		`ledgerd_commit_keys_total{operation="ledger.transfer",outcome="mismatch"} 1`,
		"ledgerd_commit_waiting_rows", `ledgerd_commit_attempts_total{ending="committed"}`, "ledgerd_commit_lock_waits_total", "ledgerd_commit_unknown_outcomes_total",
		`ledgerd_pool_connections{pool="engine",state="max"}`, `ledgerd_pool_connections{pool="read",state="used"}`,
		`ledgerd_pool_waits_total{pool="engine"}`, "go_goroutines", "process_cpu_seconds_total",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(page, "mine") || strings.Contains(page, "u:a") {
		t.Error("the metrics tell of tenants")
	}
}

func TestMetricsOnAPortOfTheirOwnNeedNoKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.server.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s.start(server.Options{MetricsListen: address})
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		if code, _ := get(t, "http://"+address+path, ""); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestServerThatDoesNotStartLeavesItsPort(t *testing.T) {
	t.Parallel()
	s := newSite(t)
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
	_, err = server.Start(t.Context(), server.Options{DatabaseURL: s.db.AppDSN, Listen: address,
		MetricsListen: taken.Addr().String()})
	if err == nil {
		t.Fatal("it started")
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestCallsInFlightAreAnsweredAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	ctx := context.Background()
	lock, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(ctx, "select from ledger_accounts where code = 'u:a' for update"); err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer, len(protocols))
	for i, p := range protocols {
		go func() {
			r := payment("a", "1")
			r.BizNo = string(rune('a' + i))
			answers <- c.call(p, "Transfer", r, "Idempotency-Key", r.BizNo)
		}()
	}
	soon(t, 10*time.Second, "the calls wait", func() bool {
		_, page := get(t, s.base+"/metrics", c.apiKey)
		return strings.Contains(page, "ledgerd_commit_waiting_rows 4")
	})
	ended := make(chan struct{})
	go func() { s.server.Stop(); close(ended) }()
	soon(t, 10*time.Second, "nobody new gets in", func() bool {
		conn, err := net.Dial("tcp", s.server.Addr())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if err := lock.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for range protocols {
		if a := <-answers; a.code != "" || len(a.raw) == 0 {
			t.Errorf("%s: %s", a.code, a.message)
		}
	}
	<-ended
	if n := s.count("select count(*) from ledger_transfers where biz_no in ('a', 'b', 'c', 'd')"); n != 4 {
		t.Errorf("%d transfers", n)
	}
}

// Somebody who holds an account's row keeps its holds from lapsing, and no others.
func TestHoldsBehindALockedAccountLapse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	c.prepare("b")
	ctx := t.Context()
	lock, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	insert := `insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at, created_at, principal, request_id)
		select tenant_id, account_id + 100 + i, code || i, account_id, '', 1, 1, clock_timestamp() - $3::interval, committed_at, 'p', 'r'
		from ledger_accounts join commit_batches on batch_id = account_id >> 14, generate_series(1, $2) i where code = $1`
	update := `update ledger_accounts set held = held + $2::integer, next_lapse_at = clock_timestamp() - '1 h'::interval where code = $1`
	const many = 700 // more than one look finds
	_, err1 := lock.Exec(ctx, update, "u:a", many)
	_, err2 := s.pool.Exec(ctx, insert, "u:a", many, "1 h")
	_, err3 := s.pool.Exec(ctx, update, "u:b", 1)
	_, err4 := s.pool.Exec(ctx, insert, "u:b", 1, "1 s")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	soon(t, 20*time.Second, "b's hold lapses", func() bool {
		return s.count("select count(*) from ledger_holds where biz_no = 'u:b1' and state = 'expired'") == 1
	})
	if n := s.count("select count(*) from ledger_holds where state = 'held' and life_ms = 1"); n != many {
		t.Errorf("%d are held behind the lock", n)
	}
	if err := lock.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	soon(t, 20*time.Second, "a's holds lapse", func() bool {
		return s.count("select count(*) from ledger_holds where state = 'held' and life_ms = 1") == 0
	})
}

func TestHoldsLapseAndKeysAndClaimsGoByThemselves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.server.Stop()
	s.start(server.Options{KeyLife: time.Second})
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	c.claim(&idempotencyv1.ClaimKeyRequest{Scope: "s", Key: "short", Life: durationpb.New(time.Second)})
	var hold map[string]any
	a := c.send(connectJSON, path(method(t, "Hold")), []byte(`{"bizNo":"short","from":"u:a","asset":"COIN","amount":"1","life":"1s"}`), "Idempotency-Key", "k")
	if err := json.Unmarshal(a.raw, &hold); err != nil || a.code != "" {
		t.Fatalf("%s %v", a.raw, err)
	}
	soon(t, 20*time.Second, "the hold lapses", func() bool {
		return s.count("select count(*) from ledger_holds where biz_no = 'short' and state = 'expired'") == 1
	})
	if a := c.call(connectJSON, "Hold", &ledgerv1.HoldRequest{BizNo: "other", From: "u:a", Asset: "COIN", Amount: "1"},
		"Idempotency-Key", "k"); a.code != "" || a.replayed() {
		t.Errorf("the expired key counts still: %s", a.raw)
	}
	soon(t, 30*time.Second, "the keys go", func() bool { return s.count("select count(*) from commit_keys") == 0 })
	soon(t, 30*time.Second, "the claim goes",
		func() bool { return s.count("select count(*) from claim_keys where key = 'short'") == 0 })
}
