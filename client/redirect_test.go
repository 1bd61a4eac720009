package client_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

func TestNoRedirectReceivesTheKey(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer other.Close()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
	}))
	defer server.Close()
	for name, options := range map[string][]client.Option{
		"default client": nil, "another client": {client.WithHTTPClient(&http.Client{})}} {
		calls.Store(0)
		c := client.New(server.URL, append(options, client.WithAPIKey("ldg_key"))...)
		_, err := c.Ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{})
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || calls.Load() != 1 ||
			!strings.Contains(err.Error(), "redirected to "+other.URL) {
			t.Errorf("%s: %v after %d calls", name, err, calls.Load())
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d calls reached the other server", n)
	}
}
