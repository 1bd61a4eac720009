// Package servertest starts servers for tests, and calls them over every protocol.
package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// Secret is the master key of all servers: servers on one database must share it.
var Secret = secret.New()

// Site is a server on a database of its own.
type Site struct {
	T      testing.TB
	DB     *pgtest.DB
	Pool   *pgxpool.Pool // of a superuser, for checks
	Server *server.Server
	Base   string
	Log    *Log
}

// New starts a server on a new database, until the test ends.
func New(t testing.TB) *Site {
	t.Helper()
	db := pgtest.New(t)
	s := &Site{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &Log{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("warnings and errors of the server:\n%s", s.Log.warnings())
		}
	})
	s.Start(server.Options{})
	return s
}

// Start starts a server. An earlier one must be stopped.
func (s *Site) Start(o server.Options) {
	s.T.Helper()
	if o.DatabaseURL == "" {
		o.DatabaseURL = s.DB.AppDSN
	}
	if o.AdminDatabaseURL == "" {
		o.AdminDatabaseURL = s.DB.AdminDSN
	}
	o.Secret = Secret
	o.Listen, o.Log = "127.0.0.1:0", slog.New(slog.NewJSONHandler(s.Log, nil))
	started, err := server.Start(context.Background(), o)
	if err != nil {
		s.T.Fatal(err)
	}
	s.Server, s.Base = started, "http://"+started.Addr()
	s.T.Cleanup(started.Stop)
}

// Second starts another server on the same database.
func (s *Site) Second() *Site {
	s.T.Helper()
	other := *s
	other.Start(server.Options{})
	return &other
}

// Key creates a tenant, unless it exists, and an API key.
func (s *Site) Key(tenant, principal string, role access.Role) string {
	s.T.Helper()
	id, err := access.EnsureTenant(context.Background(), s.Pool, tenant)
	if err != nil {
		s.T.Fatal(err)
	}
	key, err := access.Administer(s.Pool).CreateKey(context.Background(), id,
		access.NewKey{Principal: principal, Rights: access.Rights{Role: role}})
	if err != nil {
		s.T.Fatal(err)
	}
	return key.Secret
}

// Count counts rows.
func (s *Site) Count(query string, args ...any) (n int) {
	s.T.Helper()
	if err := s.Pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		s.T.Fatal(err)
	}
	return n
}

// Log is a log that tests read.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// warnings returns the first 50 lines above level INFO, without those about reused request keys.
func (l *Log) warnings() string {
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(l.String())), func(line string) bool {
		return strings.Contains(line, `"level":"DEBUG"`) || strings.Contains(line, `"level":"INFO"`) ||
			strings.Contains(line, `"msg":"request key reused`)
	})
	return strings.Join(lines[:min(50, len(lines))], "")
}

// With returns the lines in which a field has a value.
func (l *Log) With(field, value string) (found []map[string]any) {
	for line := range strings.Lines(l.String()) {
		m := map[string]any{}
		if json.Unmarshal([]byte(line), &m) == nil && m[field] == value {
			found = append(found, m)
		}
	}
	return found
}
