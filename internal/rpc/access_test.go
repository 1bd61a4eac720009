package rpc_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestEveryCallRequiresAValidKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, mine := createResources(s, "mine")
	good := s.Key("mine", "boss", access.Admin)
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
			if a.Code != "unauthenticated" || a.Reason(t) != "UNAUTHENTICATED" {
				t.Errorf("%s with %s over %s: %q %s", m.Name(), what, p.Name, a.Code, a.Message)
			}
			if strings.Contains(a.Message, part[3]) {
				t.Errorf("the secret is in the error: %s", a.Message)
			}
		}
	}
	two := (&caller{site: s}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "Authorization",
		"Bearer "+good, "Authorization", "Bearer x")
	if two.Code != "unauthenticated" {
		t.Errorf("two keys: %q", two.Code)
	}
	if a := (&caller{site: s}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "Authorization",
		"bearer "+good); a.Code != "" {
		t.Errorf("scheme in lower case: %q", a.Message)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 401, "/": 404,
		"/debug/pprof/": 404,
		"/ledgerd.ledger.v1.LedgerService/Nothing": 404} {
		res, err := http.Get(s.Base + path)
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
	if log := s.Log.String(); strings.Contains(log, part[3]) {
		t.Error("a secret is in the log")
	}
}

func TestReadKeysCannotCallMutations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, mine := createResources(s, "mine")
	reader := &caller{s, s.Key("mine", "reader", access.Read)}
	writer := &caller{s, s.Key("mine", "writer", access.Write)}
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
			refused := a.Code == "permission_denied"
			if refused == (reads(m) && !slices.Contains(administrative, callName(m))) || refused &&
				a.Reason(t) != "PERMISSION_DENIED" {
				t.Errorf("%s with a key that reads: %q %s", m.Name(), a.Code, a.Message)
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
		a := writer.call(connectJSON, callName(m), examples[callName(m)](mine)[0])
		refused := a.Code == "permission_denied" && a.Reason(t) == "PERMISSION_DENIED" // not MOVE_NOT_YOURS
		if refused != slices.Contains(administrative, callName(m)) {
			t.Errorf("%s with a key that writes: %q %s", m.Name(), a.Code, a.Message)
		}
	}
}

// administrative lists the calls that refuse a key with the role write.
var administrative = []string{"FreezeAccount", "UnfreezeAccount", "CloseAccount",
	"Machine.DefineMachine", "Payment.PutGateway", "Webhook.CreateEndpoint", "Webhook.UpdateEndpoint",
	"Webhook.RotateSecret", "Webhook.DeleteEndpoint", "Webhook.GetSecret", "Notify.PutTemplate",
	"Notify.DeleteTemplate",
	"Sale.PutSale", "Audit.ListEvents"}

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
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	other := &caller{s, s.Key("mine", "boss", access.Admin)}
	list := func(c *caller) string { return c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).Code }
	if list(c) != "" || list(other) != "" {
		t.Fatal("the keys are not valid")
	}
	tenant, err := access.Tenant(context.Background(), s.Pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.Split(c.apiKey, "_")[2]
	if _, _, err := access.Administer(s.Pool).RevokeKey(context.Background(), tenant, id); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	last := revoked // the start of the last call that succeeded
	eventually(t, 20*time.Second, "the key ends", func() bool {
		begun := time.Now()
		if list(c) == "unauthenticated" {
			return true
		}
		last = begun
		return false
	})
	if took := last.Sub(revoked); took > 5200*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if list(other) != "" {
		t.Error("the other key ended as well")
	}
	k, existed, err := access.Administer(s.Pool).RevokeKey(context.Background(), tenant, id)
	if err != nil || !existed || k.Revoked.IsZero() || k.RevokedBy != "postgres" {
		t.Errorf("revoked twice: %+v, %v, %v", k, existed, err)
	}
	if _, _, err := access.Administer(s.Pool).RevokeKey(context.Background(), tenant, id+"x"); !fault.Is(err,
		access.KeyNotFound) {
		t.Errorf("revoked another: %v", err)
	}
	keys, err := access.ListKeys(context.Background(), s.Pool, tenant, access.KeyPlace{}, 10)
	if err != nil || len(keys) != 2 || !slices.ContainsFunc(keys,
		func(k access.Key) bool { return k.ID == id && !k.Revoked.IsZero() && k.RevokedBy == "postgres" }) {
		t.Errorf("list: %+v, %v", keys, err)
	}
	if n := s.Count("select count(*) from access_api_keys where position($1 in access_api_keys::text) > 0",
		strings.Split(c.apiKey, "_")[3]); n != 0 {
		t.Error("the secret is in the database")
	}
}

func TestWatchEndsWhenItsKeyIsRevoked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Read)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := c.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() { // the cursor
		t.Fatal(stream.Err())
	}
	tenant, err := access.Tenant(ctx, s.Pool, "mine")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := access.Administer(s.Pool).RevokeKey(ctx, tenant, strings.Split(c.apiKey, "_")[2]); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if code := connect.CodeOf(stream.Err()); code != connect.CodeUnauthenticated {
		t.Errorf("the watch ended with %v: %v", code, stream.Err())
	}
}
