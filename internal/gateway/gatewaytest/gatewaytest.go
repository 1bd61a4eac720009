// Package gatewaytest builds gateways for tests, from a settings file as the server reads it.
package gatewaytest

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
)

// New returns the gateway with these settings, named after its kind.
func New(t testing.TB, kind string, d gateway.Dialect, settings map[string]any) *gateway.Configured {
	t.Helper()
	c, err := Try(t, kind, d, settings)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Try returns the gateway, or the error of reading its settings.
func Try(t testing.TB, kind string, d gateway.Dialect, settings map[string]any) (*gateway.Configured, error) {
	t.Helper()
	all := map[string]any{"kind": kind, "tenant": "shop", "notify_url": "https://pay.shop.example"}
	for name, value := range settings {
		all[name] = value
	}
	text, err := json.Marshal(map[string]any{"gateways": []any{all}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "gateways.yaml")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gateway.ReadFile(name, gateway.Dialects{kind: d})
	if err != nil {
		return nil, err
	}
	set, err := f.Build(&gateway.Env{Tenant: func(string) (int32, error) { return 7, nil }})
	if err != nil {
		return nil, err
	}
	t.Cleanup(set.Close)
	return set.ByName[kind], nil
}

// Key returns a new RSA key, with its PEM in PKCS 8 and that of its public key.
func Key(t testing.TB) (key *rsa.PrivateKey, private, public string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
}

// OpenSSL runs openssl, another implementation, on text. It skips the test without the program.
func OpenSSL(t testing.TB, text []byte, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	c := exec.CommandContext(t.Context(), "openssl", args...)
	c.Stdin = bytes.NewReader(text)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Amount parses a decimal.
func Amount(t testing.TB, text string) amount.Decimal {
	t.Helper()
	d, err := amount.ParseDecimal(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Failed checks that err is a *gateway.CallError with this outcome and code.
func Failed(t testing.TB, err error, outcome gateway.Outcome, code string) {
	t.Helper()
	var e *gateway.CallError
	if !errors.As(err, &e) || e.Outcome != outcome || e.Code != code {
		t.Errorf("error %v, want %s (%v)", err, code, outcome)
	}
}
