package access_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestIssuersAreReadFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "oidc.yaml")
	read := func(text string) ([]access.Issuer, error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return access.ReadIssuers(file)
	}
	got, err := read(`issuers:
- {issuer: "https://a.example.com", audience: x, tenant: acme}
- {issuer: "http://localhost:5556/dex", audience: y, tenants: [b], tenant_claim: org,
   principal_claim: client, role_claim: r}
- {issuer: "http://[::1]:5556", audience: y}`)
	want := []access.Issuer{
		{Issuer: "https://a.example.com", Audience: "x", Tenant: "acme", TenantClaim: "tenant", PrincipalClaim: "sub",
			RoleClaim: "role"},
		{Issuer: "http://localhost:5556/dex", Audience: "y", Tenants: []string{"b"}, TenantClaim: "org",
			PrincipalClaim: "client", RoleClaim: "r"},
		{Issuer: "http://[::1]:5556", Audience: "y", TenantClaim: "tenant", PrincipalClaim: "sub", RoleClaim: "role"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	const begin, both = "must begin with https://", "cannot be combined"
	const twice = "issuers[1]: issuer: https://a occurs twice"
	for text, want := range map[string]string{
		"":                                 "no issuers",
		"issuers: []":                      "no issuers",
		`issuers: [{issuer: "https://a"}]`: "issuers[0]: audience",
		`issuers: [{audience: x}]`:         "issuers[0]: issuer",
		`issuers: [{issuer: "http://a.example.com", audience: x}]`:                                   begin,
		`issuers: [{issuer: "http://127.0.0.1.example.com", audience: x}]`:                           begin,
		`issuers: [{issuer: "https://me@a", audience: x}]`:                                           "not a URL",
		`issuers: [{issuer: "a.example.com", audience: x}]`:                                          "not a URL",
		`issuers: [{issuer: "https://a", audience: x, tenant: t, tenants: [t]}]`:                     both,
		`issuers: [{issuer: "https://a", audience: x, tenant: t, tenant_claim: c}]`:                  both,
		`issuers: [{issuer: "https://a", audience: x, rolle: t}]`:                                    "rolle",
		`issuers: [{issuer: "https://a", audience: x}, {issuer: "https://a", audience: y}]`:          twice,
		`issuers: [{issuer: "https://a", audience: x}, {issuer: "https://b", audience: y, role: x}]`: "role",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// rotating is an issuer whose discovery document can be spoilt.
type rotating struct {
	*httptest.Server
	keys     atomic.Pointer[[]jose.JSONWebKey]
	name     atomic.Value
	keysURL  atomic.Value
	location atomic.Value // where the keys redirect to
}

func newRotating(t *testing.T) *rotating {
	t.Helper()
	r := &rotating{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		location := r.location.Load().(string)
		switch {
		case req.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, r.name.Load(), r.keysURL.Load())
		case location != "":
			http.Redirect(w, req, location, http.StatusFound)
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": r.keys.Load()})
		}
	}))
	t.Cleanup(r.Close)
	r.name.Store(r.URL)
	r.keysURL.Store(r.URL + "/keys")
	r.location.Store("")
	return r
}

// trusted configures the issuer.
func (r *rotating) trusted() []access.Issuer {
	return []access.Issuer{{Issuer: r.URL, Audience: "ledgerd", Tenant: "acme", PrincipalClaim: "sub",
		RoleClaim: "role"}}
}

// signed publishes a new key instead of all others, and returns a function that signs tokens with it.
func (r *rotating) signed(t *testing.T) (token func(id string) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r.keys.Store(&[]jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k"}})
	with, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key},
		(&jose.SignerOptions{}).WithHeader("kid", "k"))
	if err != nil {
		t.Fatal(err)
	}
	return func(id string) string {
		t.Helper()
		text, err := jwt.Signed(with).Claims(map[string]any{"iss": r.URL, "aud": "ledgerd", "sub": "orders",
			"role": "read",
			"exp":  time.Now().Add(time.Hour).Unix(), "jti": id}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
}

func TestRefreshForgetsWithdrawnKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, db.AdminDSN), "acme")
	if err != nil {
		t.Fatal(err)
	}
	r := newRotating(t)
	old := r.signed(t)
	issuers := access.NewIssuers(pool, r.trusted(), slog.New(slog.DiscardHandler))
	id, err := issuers.Authenticate(t.Context(), old("1"))
	if left := time.Until(id.Expires); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the identity ends in %v, its token in an hour", left)
	}
	id.Expires = time.Time{}
	if want := (access.Identity{Tenant: tenant, Principal: "orders", Role: access.Read}); err != nil || id != want {
		t.Fatalf("%+v, %v", id, err)
	}
	r.signed(t)
	if _, err := issuers.Authenticate(t.Context(), old("2")); err != nil {
		t.Errorf("the key is not known any more: %v", err)
	}
	if err := issuers.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := time.Now().Add(10 * time.Second)
	for n := 0; err == nil && time.Now().Before(ended); n++ {
		_, err = issuers.Authenticate(t.Context(), old(fmt.Sprint("again-", n)))
	}
	if !fault.Is(err, access.Unauthenticated) {
		t.Errorf("after the refresh: %v", err)
	}
}

// TestForeignKeysAreNotFetched has issuers whose discovery document is wrong, or leads to an untrusted URL.
func TestForeignKeysAreNotFetched(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.New(t).AllDSN)
	for want, spoil := range map[string]func(*rotating){
		"configure exactly that name":     func(r *rotating) { r.name.Store(r.URL + "/") },
		"192.0.2.1/keys":                  func(r *rotating) { r.keysURL.Store("http://192.0.2.1/keys") },
		"192.0.2.1/redirected":            func(r *rotating) { r.location.Store("http://192.0.2.1/redirected") },
		"is not a URL such as https":      func(r *rotating) { r.keysURL.Store("") },
		"there are more than 3 redirects": func(r *rotating) { r.location.Store(r.URL + "/keys") },
		"has no keys for signatures":      func(r *rotating) { r.keys.Store(&[]jose.JSONWebKey{}) },
	} {
		r := newRotating(t)
		token := r.signed(t)
		spoil(r)
		var log strings.Builder
		issuers := access.NewIssuers(pool, r.trusted(),
			slog.New(slog.NewTextHandler(&log, nil)))
		if _, err := issuers.Authenticate(t.Context(), token("1")); !fault.Is(err, access.IssuerUnavailable) {
			t.Errorf("%s: %v", want, err)
		}
		if strings.HasPrefix(want, "192.0.2.1/") && !strings.Contains(log.String(), "must begin with https://") ||
			!strings.Contains(log.String(), want) {
			t.Errorf("%s: log %q", want, log.String())
		}
	}
}
