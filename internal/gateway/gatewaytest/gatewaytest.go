// Package gatewaytest builds gateways for tests, from a settings file as the server reads it.
package gatewaytest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

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
