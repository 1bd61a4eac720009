package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func TestCORSAllowsConfiguredOrigins(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	key := s.Key("mine", "boss", access.Read)
	const shop, method = "https://shop.example.com", "/ledgerd.ledger.v1.LedgerService/ListAssets"
	send := func(verb, origin string, headers ...string) http.Header {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), verb, s.Base+method, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Origin", origin)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if verb == http.MethodPost && res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", origin, res.Status)
		}
		return res.Header
	}
	if h := send(http.MethodOptions, shop, "Access-Control-Request-Method",
		"POST"); h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("without origins the preflight got %v", h)
	}
	s.Server.Stop()
	s.Start(server.Options{Origins: []string{shop}})
	asked := []string{"authorization", "claim-key", "connect-protocol-version", "content-type", "idempotency-key",
		"submit-token", "x-request-id"}
	h := send(http.MethodOptions, shop, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers",
		strings.Join(asked, ","))
	if h.Get("Access-Control-Allow-Origin") != shop || h.Get("Access-Control-Allow-Credentials") != "" ||
		h.Get("Access-Control-Max-Age") == "" {
		t.Errorf("the preflight got %v", h)
	}
	allowed := strings.Split(strings.ToLower(strings.Join(h.Values("Access-Control-Allow-Headers"), ",")), ",")
	for _, name := range asked {
		if !slices.Contains(allowed, name) {
			t.Errorf("%s is not allowed: %v", name, allowed)
		}
	}
	h = send(http.MethodPost, shop, "Authorization", "Bearer "+key)
	exposed := strings.Join(h.Values("Access-Control-Expose-Headers"), ",")
	for _, name := range []string{"Claim-Count", "Idempotency-Replayed", "Submit-Token-Next", "X-Request-Id"} {
		if !strings.Contains(exposed, name) {
			t.Errorf("%s is not exposed: %s", name, exposed)
		}
	}
	for _, other := range []string{"https://evil.example.com", "https://shop.example.com.evil.example.com", "null"} {
		if h := send(http.MethodPost, other, "Authorization",
			"Bearer "+key); h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed", other)
		}
	}
}

func TestInvalidOriginsAreRefused(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	for _, origin := range []string{"", "shop.example.com", "https://shop.example.com/", "ftp://shop.example.com",
		"https://", "*",
		"http://*", "https://*.example.com"} { // the library would treat these as patterns
		o := server.Options{DatabaseURL: s.DB.AppDSN, Listen: "127.0.0.1:0", Origins: []string{origin},
			Anyone: &access.Identity{Tenant: 1, Principal: "dev", Role: access.Admin}}
		if started, err := server.Start(t.Context(), o); err == nil {
			started.Stop()
			t.Errorf("%q was accepted", origin)
		}
	}
}
