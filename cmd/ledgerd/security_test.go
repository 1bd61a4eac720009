package main

import (
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

const securityPage = "../../docs/security.md"

// TestSecurityPageWorks runs the commands of the page in a folder, against the real program.
func TestSecurityPageWorks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("SKIPPED, NOT TESTED: " + name + " is not installed (apt-get install " + name + ")")
		}
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	db := pgtest.New(t)
	app := build(t, "DATABASE_URL="+db.AppDSN, "LEDGERD_ADMIN_DATABASE_URL="+db.AdminDSN)
	app.must("apikey", "create", "--tenant", "acme", "--principal", "nobody")
	address, calls := "", 0
	for _, b := range blocks(t, securityPage) {
		switch {
		case b.info == "yaml":
			if err := os.WriteFile(in("oidc.yaml"), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if issuers, err := access.ReadIssuers(in("oidc.yaml")); err != nil || len(issuers) != 2 {
				t.Errorf("line %d: %v, %v", b.line, issuers, err)
			}
		case b.info == "sh" && strings.HasPrefix(b.text, "curl"):
			calls++
			s := app.start(listening, "serve", "--listen", "127.0.0.1:0", "--tls-cert", in("server.pem"), "--tls-key",
				in("server.key"), "--tls-client-ca", in("client-ca.pem"))
			address = strings.TrimPrefix(s.base, "http://")
			script := "cd " + dir + "\ncurl() { command curl --fail-with-body --connect-to ledger.example.com:8443:" +
				address + " \"$@\"; }\n"
			if out := runBlock(t, securityPage, script+b.text, false); !strings.Contains(out, "{") {
				t.Errorf("line %d: %s", b.line, out)
			}
			runBlock(t, securityPage, script+strings.ReplaceAll(b.text, "--cert orders.pem --key orders.key", ""), true)
			said := s.end()
			for _, want := range []string{`"tls":true`, "connections use TLS", "the database is on this machine"} {
				if !strings.Contains(said, want) {
					t.Errorf("%q is not in %s", want, said)
				}
			}
			if strings.Contains(said, `"WARN"`) {
				t.Errorf("a warning: %s", said)
			}
		case b.info == "sh":
			runBlock(t, securityPage, fmt.Sprintf("cd %s\nexport DATABASE_URL='%s'\nledgerd() { %s \"$@\"; }\n%s", dir,
				db.AdminDSN, app.file, b.text), false)
		}
	}
	if calls != 1 {
		t.Errorf("the page has %d calls", calls)
	}
}

func TestServeWarnsOfCleartextAndRefusesHalfOfTLS(t *testing.T) {
	t.Parallel()
	app := build(t, "DATABASE_URL="+pgtest.New(t).AppDSN)
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, flags := range map[string][]string{
		"set both":                            {"--tls-cert", file},
		"--tls-cert and --tls-key":            {"--tls-key", file},
		"--tls-client-ca needs both":          {"--tls-client-ca", file},
		"failed to find any PEM data":         {"--tls-cert", file, "--tls-key", file},
		"there are no issuers":                {"--oidc", file},
		"/nowhere: no such file or directory": {"--oidc", "/nowhere"},
	} {
		if out, code := app.run(append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...); code == 0 ||
			!strings.Contains(out, want) {
			t.Errorf("%v: %d %s", flags, code, out)
		}
	}
	const open = "metrics and profiles are served beyond this machine without a key"
	for listen, want := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		if said := app.start(listening, "serve", "--listen", "127.0.0.1:0", "--metrics-listen",
			listen).end(); strings.Contains(said,
			open) != want {
			t.Errorf("--metrics-listen %s: %s", listen, said)
		}
	}
	const warning = "the server listens beyond this machine without TLS"
	for listen, want := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		said := app.start(listening, "serve", "--listen", listen).end()
		if strings.Contains(said, warning) != want || !strings.Contains(said, `"tls":false`) {
			t.Errorf("%s: %s", listen, said)
		}
	}
	help := app.must("serve", "--help")
	for _, flag := range []string{"--tls-cert", "--tls-key", "--tls-client-ca", "--oidc", "LEDGERD_TLS_CERT",
		"docs/security.md"} {
		if !strings.Contains(help, flag) {
			t.Errorf("%s is not in the help", flag)
		}
	}
}

// An issuer on the network is asked over TLS, and its certificate is checked against the authorities of the system.
func TestTokensOfAnIssuerOverTLS(t *testing.T) {
	t.Parallel()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: "one"}
	mux := http.NewServeMux()
	issuer := httptest.NewUnstartedServer(mux)
	issuer.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that ledgerd ends
	issuer.StartTLS()
	t.Cleanup(issuer.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, issuer.URL, issuer.URL+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{"iss": issuer.URL, "aud": "ledgerd", "sub": "orders",
		"role": "read",
		"exp":  time.Now().Add(time.Hour).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	authorities, issuers := filepath.Join(dir, "authorities.pem"), filepath.Join(dir, "oidc.yaml")
	for file, text := range map[string]string{
		authorities: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})),
		issuers:     fmt.Sprintf("issuers: [{issuer: %q, audience: ledgerd, tenant: acme}]", issuer.URL),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db := pgtest.New(t)
	app := build(t, "DATABASE_URL="+db.AppDSN, "LEDGERD_ADMIN_DATABASE_URL="+db.AdminDSN, "SSL_CERT_DIR="+dir+"/none")
	app.must("apikey", "create", "--tenant", "acme", "--principal", "nobody")
	for file, want := range map[string]int{authorities: http.StatusOK, securityPage: http.StatusServiceUnavailable} {
		app.env = append(app.env, "SSL_CERT_FILE="+file)
		s := app.start(listening, "serve", "--listen", "127.0.0.1:0", "--oidc", issuers)
		if code, body := post(t, s.base+listAssets, token, "{}"); code != want ||
			want != http.StatusOK && !strings.Contains(body, "ISSUER_UNAVAILABLE") {
			t.Errorf("%s: %d %s", file, code, body)
		}
		if said := s.end(); strings.Contains(said,
			"certificate signed by unknown authority") == (want == http.StatusOK) {
			t.Errorf("%s: %s", file, said)
		}
	}
}
