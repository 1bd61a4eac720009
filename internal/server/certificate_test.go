package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// reasonOf returns the reason of a call's error, "" for success, and "no answer" for a connection that failed.
func reasonOf(err error) string {
	var failed *connect.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failed):
		for _, d := range failed.Details() {
			if v, err := d.Value(); err == nil {
				if info, ok := v.(*errdetails.ErrorInfo); ok {
					return info.GetReason()
				}
			}
		}
	}
	return "no answer"
}

func newLedger(client *http.Client, s *servertest.Site, key string) ledgerv1connect.LedgerServiceClient {
	var options []connect.ClientOption
	if key != "" {
		options = append(options, connect.WithInterceptors(servertest.WithKey(key)))
	}
	return ledgerv1connect.NewLedgerServiceClient(client, s.Base, options...)
}

func createAsset(ctx context.Context, ledger ledgerv1connect.LedgerServiceClient) error {
	_, err := ledger.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN",
		Scale: 2}}})
	return err
}

func TestClientCertificateNamesTheCaller(t *testing.T) {
	t.Parallel()
	own, clients, foreign := newAuthority(t), newAuthority(t), newAuthority(t)
	s := secured(t, newFiles(t, own, clients))
	s.Key("mine", "nobody", access.Read) // creates the tenant
	const denied, unknown, refused = "PERMISSION_DENIED", "UNAUTHENTICATED", "no answer"
	expired := clients.issue(func(c *x509.Certificate) {
		c.NotAfter = time.Now().Add(-time.Minute)
		c.URIs = []*url.URL{{Scheme: "ledgerd", Host: "mine", Path: "/boss"}}
	})
	serverOnly := clients.issue(func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		c.URIs = []*url.URL{{Scheme: "ledgerd", Host: "mine", Path: "/boss"}}
	})
	for _, test := range []struct {
		what        string
		cert        tls.Certificate
		read, write string
	}{
		{"write", clients.named("ledgerd://mine/boss?role=write"), "", ""},
		{"admin", clients.named("ledgerd://mine/boss?role=admin"), "", ""},
		{"read", clients.named("ledgerd://mine/boss?role=read"), "", denied},
		{"no role", clients.named("ledgerd://mine/boss"), "", denied},
		{"scope of the write", clients.named("ledgerd://mine/boss?role=write&scope=ledger.create_assets"), denied, ""},
		{"two scopes", clients.named("ledgerd://mine/boss?role=write&scope=ledger.list_*&scope=ledger.create_assets(code%3DC*)"), "", ""},
		{"scope of other assets", clients.named("ledgerd://mine/boss?role=write&scope=ledger.*(code%3DX*)"), denied, denied},
		{"scope beyond the role", clients.named("ledgerd://mine/boss?scope=ledger.*"), "", denied},
		{"bad scope", clients.named("ledgerd://mine/boss?role=write&scope=everything"), unknown, unknown},
		{"empty scope", clients.named("ledgerd://mine/boss?role=write&scope="), unknown, unknown},
		{"other URIs", clients.named("spiffe://example.com/x", "ledgerd://mine/shop/eu?role=write"), "", ""},
		{"no URI", clients.issue(nil), unknown, unknown},
		{"other scheme", clients.named("spiffe://mine/boss?role=write"), unknown, unknown},
		{"two names", clients.named("ledgerd://mine/boss?role=write", "ledgerd://mine/boss"), unknown, unknown},
		{"unknown tenant", clients.named("ledgerd://other/boss?role=write"), unknown, unknown},
		{"no tenant", clients.named("ledgerd:///boss?role=write"), unknown, unknown},
		{"no principal", clients.named("ledgerd://mine/?role=write"), unknown, unknown},
		{"bad principal", clients.named("ledgerd://mine/the%20boss?role=write"), unknown, unknown},
		{"long principal", clients.named("ledgerd://mine/" + strings.Repeat("p", 65)), unknown, unknown},
		{"bad role", clients.named("ledgerd://mine/boss?role=king"), unknown, unknown},
		{"role beyond a tenant", clients.named("ledgerd://mine/boss?role=operator"), unknown, unknown},
		{"two roles", clients.named("ledgerd://mine/boss?role=write&role=read"), unknown, unknown},
		{"unknown parameter", clients.named("ledgerd://mine/boss?role=write&only=assets"), unknown, unknown},
		{"user", clients.named("ledgerd://me@mine/boss?role=write"), unknown, unknown},
		{"port", clients.named("ledgerd://mine:1/boss?role=write"), unknown, unknown},
		{"fragment", clients.named("ledgerd://mine/boss?role=write#x"), unknown, unknown},
		{"foreign authority", foreign.named("ledgerd://mine/boss?role=write"), refused, refused},
		{"expired", expired, refused, refused},
		{"for servers only", serverOnly, refused, refused},
	} {
		for _, h2 := range []bool{false, true} {
			ledger := newLedger(httpsClient(t, own, h2, test.cert), s, "")
			_, err := ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{})
			if got := reasonOf(err); got != test.read {
				t.Errorf("%s: a read gets %q: %v", test.what, got, err)
			}
			if got := reasonOf(createAsset(t.Context(), ledger)); got != test.write {
				t.Errorf("%s: a write gets %q", test.what, got)
			}
		}
	}
	if got := reasonOf(createAsset(t.Context(), newLedger(httpsClient(t, own, true), s, ""))); got != unknown {
		t.Errorf("without certificate and key: %q", got)
	}
}

func TestAuthorizationGoesBeforeTheCertificate(t *testing.T) {
	t.Parallel()
	own, clients := newAuthority(t), newAuthority(t)
	s := secured(t, newFiles(t, own, clients))
	reader, other := s.Key("mine", "reader", access.Read), s.Key("other", "boss", access.Admin)
	client := httpsClient(t, own, true, clients.named("ledgerd://mine/boss?role=admin"))
	if got := reasonOf(createAsset(t.Context(), newLedger(client, s, ""))); got != "" {
		t.Errorf("without a key: %s", got)
	}
	for key, want := range map[string]string{reader: "PERMISSION_DENIED", reader + "x": "UNAUTHENTICATED", other: ""} {
		if got := reasonOf(createAsset(t.Context(), newLedger(client, s, key))); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if code, text := body(t, client, s.Base+"/metrics"); code != 200 || !strings.Contains(text, "ledgerd_calls_total") {
		t.Errorf("metrics: %d", code)
	}
	if code, _ := body(t, httpsClient(t, own, true, clients.named("ledgerd://mine/boss")), s.Base+
		"/metrics"); code != 403 {
		t.Errorf("metrics for a reader: %d", code)
	}
	for tenant, want := range map[string]int{"mine": 1, "other": 1} {
		if n := s.Count("select count(*) from ledger_assets join access_tenants using (tenant_id) where name = $1",
			tenant); n != want {
			t.Errorf("tenant %s has %d assets", tenant, n)
		}
	}
}

// TestRequestKeysBelongToTheCertificatesPrincipal repeats a key with the principal's API key.
func TestRequestKeysBelongToTheCertificatesPrincipal(t *testing.T) {
	t.Parallel()
	own, clients := newAuthority(t), newAuthority(t)
	s := secured(t, newFiles(t, own, clients))
	call := func(key string, certs ...tls.Certificate) (replayed bool) {
		t.Helper()
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("Idempotency-Key", "k-1")
		if err := createAsset(ctx, newLedger(httpsClient(t, own, true, certs...), s, key)); err != nil {
			t.Fatal(err)
		}
		return info.ResponseHeader().Get("Idempotency-Replayed") == "true"
	}
	key := s.Key("mine", "orders", access.Write)
	if call("", clients.named("ledgerd://mine/orders?role=write")) || !call(key) ||
		call("", clients.named("ledgerd://mine/other?role=write")) {
		t.Error("the key is not the principal's")
	}
}

// TestWithdrawnAuthorityEndsOpenConnections keeps a connection and a stream open meanwhile.
func TestWithdrawnAuthorityEndsOpenConnections(t *testing.T) {
	t.Parallel()
	own, clients := newAuthority(t), newAuthority(t)
	files := newFiles(t, own, clients)
	s := secured(t, files)
	s.Key("mine", "nobody", access.Read)
	ledger := newLedger(httpsClient(t, own, true, clients.named("ledgerd://mine/boss")), s, "")
	list := func() string {
		_, err := ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{})
		return reasonOf(err)
	}
	if got := list(); got != "" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := ledger.WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	newAuthority(t).write(files.ClientCA)
	for stream.Receive() {
	}
	if got := reasonOf(stream.Err()); got != "UNAUTHENTICATED" {
		t.Errorf("the stream ended with %q: %v", got, stream.Err())
	}
	servertest.Eventually(t, 20*time.Second, "refused", func() bool { return list() == "UNAUTHENTICATED" })
}

// TestClientLibrarySpeaksTLS calls over every protocol of the client, with a key and with a certificate.
func TestClientLibrarySpeaksTLS(t *testing.T) {
	t.Parallel()
	own, clients := newAuthority(t), newAuthority(t)
	s := secured(t, newFiles(t, own, clients))
	key := s.Key("mine", "boss", access.Admin)
	for what, options := range map[string][]client.Option{"protobuf": nil, "JSON": {client.WithJSON()},
		"gRPC":     {client.WithGRPC()},
		"gathered": {client.WithGather()}} {
		trust := &tls.Config{RootCAs: own.pool()}
		known := &tls.Config{RootCAs: own.pool(),
			Certificates: []tls.Certificate{clients.named("ledgerd://mine/boss?role=write")}}
		for _, identity := range [][]client.Option{{client.WithTLS(trust), client.WithAPIKey(key)},
			{client.WithTLS(known)}} {
			c := client.New(s.Base, append(identity, options...)...)
			if err := createAsset(t.Context(), c.Ledger); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			c.Close()
		}
	}
	if err := createAsset(t.Context(), client.New(s.Base, client.WithAPIKey(key),
		client.WithRetry(1, 0, 0)).Ledger); err == nil ||
		!strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("an unknown authority: %v", err)
	}
}
