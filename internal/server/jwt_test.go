package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// issuer is an OpenID Connect issuer over HTTP on this machine.
type issuer struct {
	t    testing.TB
	http *httptest.Server
	mu   sync.Mutex
	keys []jose.JSONWebKey // published
	down bool
	hang chan struct{} // not nil: answers wait for its end
	hits int
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.http = httptest.NewServer(i)
	t.Cleanup(i.http.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.hits++
	keys, down, hang := jose.JSONWebKeySet{Keys: i.keys}, i.down, i.hang
	i.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}
	switch {
	case down:
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.http.URL, i.http.URL+"/keys")
	case r.URL.Path == "/keys":
		_ = json.NewEncoder(w).Encode(keys)
	}
}

// set changes the issuer under its lock.
func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// signer has a key of the issuer.
type signer struct {
	issuer *issuer
	key    jose.SigningKey
	id     string
}

func (i *issuer) newSigner(id string, algorithm jose.SignatureAlgorithm) *signer {
	i.t.Helper()
	var key any = newKey(i.t)
	var err error
	switch algorithm {
	case jose.RS256, jose.PS256:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case jose.ES384:
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	}
	if err != nil {
		i.t.Fatal(err)
	}
	return &signer{i, jose.SigningKey{Algorithm: algorithm, Key: key}, id}
}

func (s *signer) public() jose.JSONWebKey {
	k := jose.JSONWebKey{Key: s.key.Key, KeyID: s.id}
	return k.Public()
}

// token signs the usual claims with changes; nil removes a claim.
func (s *signer) token(changes map[string]any) string {
	s.issuer.t.Helper()
	claims := map[string]any{"iss": s.issuer.http.URL, "aud": "ledgerd", "sub": "orders", "tenant": "mine",
		"role": "write",
		"exp":  time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	with, err := jose.NewSigner(s.key, (&jose.SignerOptions{}).WithHeader("kid", s.id))
	if err != nil {
		s.issuer.t.Fatal(err)
	}
	text, err := jwt.Signed(with).Claims(claims).Serialize()
	if err != nil {
		s.issuer.t.Fatal(err)
	}
	return text
}

// trusting starts a server that accepts tokens of an issuer.
func trusting(t testing.TB, i *issuer, more ...access.Issuer) *servertest.Site {
	t.Helper()
	db := pgtest.New(t)
	s := &servertest.Site{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &servertest.Log{}}
	s.Start(server.Options{Issuers: append(more, access.Issuer{Issuer: i.http.URL, Audience: "ledgerd",
		TenantClaim: "tenant", PrincipalClaim: "sub", RoleClaim: "role"})})
	s.Key("mine", "nobody", access.Read) // creates the tenant
	return s
}

// tryWrite and tryRead return the reason of a refusal, "" for success.
func tryWrite(s *servertest.Site, token string) string {
	return try(s, token, servertest.ConnectJSON, "CreateAssets",
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}})
}

func tryRead(s *servertest.Site, token string) string {
	return try(s, token, servertest.GRPC, "ListAssets", &ledgerv1.ListAssetsRequest{})
}

func try(s *servertest.Site, token string, p servertest.Protocol, name string, m proto.Message) string {
	s.T.Helper()
	a := (&servertest.Caller{Site: s, APIKey: token}).Call(p, name, m)
	if a.Code == "" {
		return ""
	}
	return a.Reason(s.T)
}

func TestTokenNamesTheCaller(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good, other := i.newSigner("a", jose.ES256), i.newSigner("a", jose.ES256)
	i.keys = []jose.JSONWebKey{good.public()}
	single := newIssuer(t)
	fixed := single.newSigner("one", jose.RS256)
	single.keys = []jose.JSONWebKey{fixed.public()}
	listed := newIssuer(t)
	few := listed.newSigner("", jose.ES384)
	listed.keys = []jose.JSONWebKey{few.public()}
	scoped := newIssuer(t)
	narrow := scoped.newSigner("s", jose.ES256)
	scoped.keys = []jose.JSONWebKey{narrow.public()}
	s := trusting(t, i, access.Issuer{Issuer: scoped.http.URL, Audience: "ledgerd", Tenant: "mine",
		PrincipalClaim: "sub",
		RoleClaim:      "role", ScopesClaim: "scopes"},
		access.Issuer{Issuer: single.http.URL, Audience: "other", Tenant: "mine", PrincipalClaim: "client",
			RoleClaim: "https://example.com/roles"}, access.Issuer{Issuer: listed.http.URL, Audience: "ledgerd",
			TenantClaim: "org", Tenants: []string{"mine"}, PrincipalClaim: "sub", RoleClaim: "role"})
	s.Key("other", "nobody", access.Read)
	const denied, unknown = "PERMISSION_DENIED", "UNAUTHENTICATED"
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for _, test := range []struct {
		what        string
		token       string
		read, write string
	}{
		{"write", good.token(nil), "", ""},
		{"admin", good.token(map[string]any{"role": "admin"}), "", ""},
		{"read", good.token(map[string]any{"role": "read"}), "", denied},
		{"roles", good.token(map[string]any{"role": []string{"other", "read", "write"}}), "", ""},
		{"audiences", good.token(map[string]any{"aud": []string{"x", "ledgerd"}}), "", ""},
		{"expired within the leeway", good.token(map[string]any{"exp": in(-5 * time.Second)}), "", ""},
		{"not before within the leeway", good.token(map[string]any{"nbf": in(10 * time.Second)}), "", ""},
		{"expired", good.token(map[string]any{"exp": in(-time.Minute)}), unknown, unknown},
		{"no expiry", good.token(map[string]any{"exp": nil}), unknown, unknown},
		{"not yet", good.token(map[string]any{"nbf": in(time.Minute)}), unknown, unknown},
		{"issued in the future", good.token(map[string]any{"iat": in(time.Minute)}), unknown, unknown},
		{"other audience", good.token(map[string]any{"aud": "other"}), unknown, unknown},
		{"no audience", good.token(map[string]any{"aud": nil}), unknown, unknown},
		{"unknown issuer", good.token(map[string]any{"iss": "https://example.com"}), unknown, unknown},
		{"issuer with a slash", good.token(map[string]any{"iss": i.http.URL + "/"}), unknown, unknown},
		{"another configured issuer", good.token(map[string]any{"iss": listed.http.URL}), unknown, unknown},
		{"no issuer", good.token(map[string]any{"iss": nil}), unknown, unknown},
		{"no role", good.token(map[string]any{"role": nil}), unknown, unknown},
		{"unknown role", good.token(map[string]any{"role": "king"}), unknown, unknown},
		{"role beyond a tenant", good.token(map[string]any{"role": []string{"operator"}}), unknown, unknown},
		{"unknown roles", good.token(map[string]any{"role": []any{"king", 3}}), unknown, unknown},
		{"no roles", good.token(map[string]any{"role": []string{}}), unknown, unknown},
		{"unknown tenant", good.token(map[string]any{"tenant": "nobodys"}), unknown, unknown},
		{"no tenant", good.token(map[string]any{"tenant": nil}), unknown, unknown},
		{"tenant is no text", good.token(map[string]any{"tenant": 1}), unknown, unknown},
		{"no principal", good.token(map[string]any{"sub": nil}), unknown, unknown},
		{"long principal", good.token(map[string]any{"sub": strings.Repeat("p", 65)}), unknown, unknown},
		{"principal with a space", good.token(map[string]any{"sub": "the boss"}), unknown, unknown},
		{"other key of the same id", other.token(nil), unknown, unknown},
		{"large", good.token(map[string]any{"x": strings.Repeat("x", 13_000)}), unknown, unknown},
		{"changed", good.token(nil) + "A", unknown, unknown},
		{"no token", "x.y.z", unknown, unknown},
		{"fixed tenant", fixed.token(map[string]any{"aud": "other", "client": "c",
			"https://example.com/roles": "write"}), "", ""},
		{"fixed tenant, claim of another", fixed.token(map[string]any{"aud": "other", "client": "c",
			"tenant":                    "nobodys",
			"https://example.com/roles": "read"}), "", denied},
		{"fixed tenant, other claims", fixed.token(map[string]any{"aud": "other"}), unknown, unknown},
		{"listed tenant", few.token(map[string]any{"org": "mine"}), "", ""},
		{"tenant not listed", few.token(map[string]any{"org": "other"}), unknown, unknown},
		{"one scope", narrow.token(map[string]any{"scopes": "ledger.create_assets"}), denied, ""},
		{"scopes", narrow.token(map[string]any{"scopes": []string{"ledger.list_*", "ledger.create_assets(code=C*)"}}),
			"", ""},
		{"scope of other assets", narrow.token(map[string]any{"scopes": []string{"ledger.*(code=X*)"}}), denied,
			denied},
		{"scope beyond the role", narrow.token(map[string]any{"scopes": "ledger.*", "role": "read"}), "", denied},
		{"scopes are missing", narrow.token(nil), unknown, unknown},
		{"no scopes", narrow.token(map[string]any{"scopes": []string{}}), unknown, unknown},
		{"bad scopes", narrow.token(map[string]any{"scopes": []any{"ledger.*", 3}}), unknown, unknown},
		{"scopes without the claim's name", good.token(map[string]any{"scopes": "ledger.list_assets"}), "", ""},
		{"API key", s.Key("mine", "orders", access.Write), "", ""},
	} {
		if got := tryRead(s, test.token); got != test.read {
			t.Errorf("%s: a read gets %q", test.what, got)
		}
		if got := tryWrite(s, test.token); got != test.write {
			t.Errorf("%s: a write gets %q", test.what, got)
		}
	}
	if n := s.Count("select count(*) from ledger_assets join access_tenants using (tenant_id) " +
		"where name <> 'mine'"); n != 0 {
		t.Errorf("another tenant has %d assets", n)
	}
}

// TestForgedAlgorithmsAreRefused has tokens signed with the public key as an HMAC secret, and unsigned ones.
func TestForgedAlgorithmsAreRefused(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := i.newSigner("a", jose.RS256)
	// A symmetric key that an issuer publishes by mistake is not secret.
	mistake := jose.JSONWebKey{Key: []byte(strings.Repeat("s", 32)), KeyID: "shared"}
	i.keys = []jose.JSONWebKey{mistake, good.public()}
	s := trusting(t, i)
	if got := tryRead(s, good.token(nil)); got != "" {
		t.Fatalf("a good token: %s", got)
	}
	der, err := x509.MarshalPKIXPublicKey(&good.key.Key.(*rsa.PrivateKey).PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	forged := map[string]string{}
	for what, secret := range map[string][]byte{"DER": der, "published": mistake.Key.([]byte),
		"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
		for _, id := range []string{"a", "shared", ""} {
			forger := &signer{i, jose.SigningKey{Algorithm: jose.HS256, Key: secret}, id}
			forged["HS256 with the public key as "+what+" and id "+id] = forger.token(nil)
		}
	}
	part := strings.Split(good.token(nil), ".")
	for _, name := range []string{"none", "None", "NONE", ""} {
		header := jwtPart(t, map[string]any{"alg": name, "kid": "a", "typ": "JWT"})
		forged["alg "+name] = header + "." + part[1] + "."
		forged["alg "+name+", signed"] = header + "." + part[1] + "." + part[2]
	}
	forged["unsigned"] = part[0] + "." + part[1] + "."
	// The token embeds its own key.
	own := i.newSigner("mine", jose.ES256)
	with, err := jose.NewSigner(own.key, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	if forged["own key"], err = jwt.Signed(with).Claims(map[string]any{"iss": i.http.URL, "aud": "ledgerd", "sub": "x",
		"tenant": "mine", "role": "admin", "exp": time.Now().Add(time.Hour).Unix()}).Serialize(); err != nil {
		t.Fatal(err)
	}
	for what, token := range forged {
		if got := tryRead(s, token); got != "UNAUTHENTICATED" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

func jwtPart(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}
