package server_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestNothingIsReachableWithoutAGoodKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, mine := furnish(s, "mine")
	good := s.key("mine", "boss", access.Admin)
	part := strings.Split(good, "_")
	bad := map[string]string{
		"none": "", "empty": "Bearer ", "no scheme": good, "other scheme": "Basic " + good, "wrong secret": "Bearer " +
			good[:len(good)-1] + "!",
		"other tenant": "Bearer " + strings.Join([]string{part[0], "999", part[2], part[3]}, "_"),
		"garbage":      "Bearer x_y_z",
		"other id":     "Bearer " + strings.Join([]string{part[0], part[1], "nobody", part[3]}, "_"),
		"no number":    "Bearer ldg_x_" + part[2] + "_" + part[3],
		"too long":     "Bearer " + strings.Repeat("k", 20_000), "not ASCII": "Bearer schlüssel",
		"not UTF-8": "Bearer " + strings.Join([]string{part[0], part[1], "\xff", part[3]}, "_"),
	}
	before := s.dump("mine")
	for _, m := range methods(t) {
		for what, authorization := range bad {
			c := &caller{site: s}
			p := protocols[len(what)%len(protocols)]
			if m.IsStreamingServer() {
				p = grpc
			}
			var headers []string
			if authorization != "" {
				headers = []string{"Authorization", authorization}
			}
			a := c.call(p, callName(m), examples[callName(m)](mine)[0], headers...)
			if a.code != "unauthenticated" || a.reason(t) != "UNAUTHENTICATED" {
				t.Errorf("%s with %s over %s: %q %s", m.Name(), what, p.name, a.code, a.message)
			}
			if strings.Contains(a.message, part[3]) {
				t.Errorf("the secret is in the error: %s", a.message)
			}
		}
	}
	two := (&caller{site: s}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "Authorization",
		"Bearer "+good, "Authorization", "Bearer x")
	if two.code != "unauthenticated" {
		t.Errorf("two keys: %q", two.code)
	}
	if a := (&caller{site: s}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "Authorization",
		"bearer "+good); a.code != "" {
		t.Errorf("the scheme in lower case: %q", a.message)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 401, "/": 404,
		"/debug/pprof/": 404,
		"/ledgerd.ledger.v1.LedgerService/Nothing": 404} {
		res, err := http.Get(s.base + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || res.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %v", path, res.StatusCode, res.Header)
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	if log := s.log.String(); strings.Contains(log, part[3]) {
		t.Error("a secret is in the log")
	}
}

func TestKeysThatReadCannotChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, mine := furnish(s, "mine")
	reader := &caller{s, s.key("mine", "reader", access.Read)}
	writer := &caller{s, s.key("mine", "writer", access.Write)}
	before := s.dump("mine")
	for _, m := range methods(t) {
		for _, r := range examples[callName(m)](mine) {
			if hold, ok := r.(*lockv1.HoldRequest); ok {
				if got := holdOnce(reader, hold); !strings.Contains(got, "PERMISSION_DENIED") {
					t.Errorf("Hold with a key that reads: %s", got)
				}
				continue
			}
			if m.IsStreamingServer() {
				watchStarts(t, reader, r.(*ledgerv1.WatchEntriesRequest))
				continue
			}
			a := reader.call(connectJSON, callName(m), r)
			refused := a.code == "permission_denied"
			if refused == (reads(m) && !forAdmins(m)) || refused && a.reason(t) != "PERMISSION_DENIED" {
				t.Errorf("%s with a key that reads: %q %s", m.Name(), a.code, a.message)
			}
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for _, m := range methods(t) {
		if m.IsStreamingServer() {
			continue
		}
		if a := writer.call(connectJSON, callName(m),
			examples[callName(m)](mine)[0]); (a.code == "permission_denied") != forAdmins(m) {
			t.Errorf("%s with a key that writes: %q %s", m.Name(), a.code, a.message)
		}
	}
}

// forAdmins are the calls that need a key of an admin.
func forAdmins(m protoreflect.MethodDescriptor) bool {
	return m.Parent().Name() == "AdminService" || callName(m) == "Webhook.GetSecret"
}

func watchStarts(t *testing.T, c *caller, r *ledgerv1.WatchEntriesRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := c.client().WatchEntries(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Errorf("watch: %v", stream.Err())
	}
}

func TestRevokedKeyEndsWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Admin)}
	other := &caller{s, s.key("mine", "boss", access.Admin)}
	list := func(c *caller) string { return c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).code }
	if list(c) != "" || list(other) != "" {
		t.Fatal("the keys are not good")
	}
	tenant, err := access.Tenant(context.Background(), s.pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.Split(c.apiKey, "_")[2]
	if ok, err := access.Revoke(context.Background(), s.pool, tenant, id); err != nil || !ok {
		t.Fatal(ok, err)
	}
	revoked := time.Now()
	soon(t, 10*time.Second, "the key ends", func() bool { return list(c) == "unauthenticated" })
	if took := time.Since(revoked); took > 5200*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if list(other) != "" {
		t.Error("the other key ended as well")
	}
	if ok, err := access.Revoke(context.Background(), s.pool, tenant, id); err != nil || ok {
		t.Errorf("revoked twice: %v, %v", ok, err)
	}
	keys, err := access.List(context.Background(), s.pool, tenant)
	if err != nil || len(keys) != 2 || !slices.ContainsFunc(keys,
		func(k access.Key) bool { return k.KeyID == id && k.RevokedAt != nil }) {
		t.Errorf("list: %+v, %v", keys, err)
	}
	if n := s.count("select count(*) from access_api_keys where position($1 in access_api_keys::text) > 0",
		strings.Split(c.apiKey, "_")[3]); n != 0 {
		t.Error("the secret is in the database")
	}
}

func TestWatchEndsWithItsKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Read)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := c.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() { // its cursor
		t.Fatal(stream.Err())
	}
	tenant, err := access.Tenant(ctx, s.pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	if good, err := access.Revoke(ctx, s.pool, tenant, strings.Split(c.apiKey, "_")[2]); err != nil || !good {
		t.Fatal(good, err)
	}
	for stream.Receive() {
	}
	if code := connect.CodeOf(stream.Err()); code != connect.CodeUnauthenticated {
		t.Errorf("the watch ended with %v: %v", code, stream.Err())
	}
}

func TestAnyoneIsLetInOnlyWhenToldSo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tenant, err := access.EnsureTenant(context.Background(), s.pool, "sample")
	if err != nil {
		t.Fatal(err)
	}
	s.server.Stop()
	s.start(server.Options{Anyone: &access.Identity{Tenant: tenant, Principal: "dev", Role: access.Admin}})
	if a := (&caller{site: s}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}); a.code != "" {
		t.Errorf("%s: %s", a.code, a.message)
	}
	port := s.base[strings.LastIndex(s.base, ":"):]
	for host, want := range map[string]int{"localhost" + port: 200, "[::1]" + port: 200, "127.0.0.1": 200,
		"evil.example" + port: 403, "evil.example": 403, "10.0.0.1": 403} {
		req, _ := http.NewRequest(http.MethodGet, s.base+"/healthz", nil)
		req.Host = host
		res, err := http1.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("as %s: %d", host, res.StatusCode)
		}
	}
}

func TestServiceRefusesAPowerfulRole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if started, err := server.Start(context.Background(),
		server.Options{DatabaseURL: s.db.SuperDSN, Listen: "127.0.0.1:0"}); err == nil {
		started.Stop()
		t.Error("it serves as a superuser")
	}
}
