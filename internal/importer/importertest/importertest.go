// Package importertest gives tests of importers a real server, and real input files from beside the repository.
package importertest

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// Serve starts a server on its own database and returns its address. At the end of the test the database is
// checked against all invariants.
func Serve(t *testing.T) (url string) {
	t.Helper()
	db := pgtest.New(t)
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, db.AdminDSN), "import")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(context.Background(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: tenant, Principal: "import", Role: access.Admin},
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return "http://" + s.Addr()
}

// Dial makes a client without an API key.
func Dial(url string) *importer.Client { return importer.Dial(url, "") }

// Data is the path of a file in ../shared/data, beside the repository. Without the file the test is skipped.
func Data(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	path := filepath.Join(dir, "..", "shared", "data", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: the real input ../shared/data/%s does not exist", name)
	}
	return path
}

// Write writes a temporary file.
func Write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
