package server_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// site is a server on a database of its own, as callers find it.
type site struct {
	t      testing.TB
	db     *pgtest.DB
	pool   *pgxpool.Pool // as superuser, for looking
	server *server.Server
	base   string
	log    *logLines
	fences *sync.Map // of locks, by name, for requests that do not know them
}

func newSite(t testing.TB) *site {
	t.Helper()
	db := pgtest.New(t)
	s := &site{t: t, db: db, pool: pgtest.Pool(t, db.SuperDSN), log: &logLines{}, fences: new(sync.Map)}
	s.start(server.Options{})
	return s
}

// start starts a server; the one before, if any, has to be stopped.
func (s *site) start(o server.Options) {
	s.t.Helper()
	if o.DatabaseURL == "" {
		o.DatabaseURL = s.db.AppDSN
	}
	o.Secret = testSecret
	o.Listen, o.Log = "127.0.0.1:0", slog.New(slog.NewJSONHandler(s.log, nil))
	started, err := server.Start(context.Background(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.server, s.base = started, "http://"+started.Addr()
	s.t.Cleanup(started.Stop)
}

// key makes a tenant and an API key of it.
func (s *site) key(tenant, principal string, role access.Role) string {
	s.t.Helper()
	id, err := access.EnsureTenant(context.Background(), s.pool, tenant)
	if err == nil {
		var key string
		if key, err = access.Create(context.Background(), s.pool, id, principal, role); err == nil {
			return key
		}
	}
	s.t.Fatal(err)
	return ""
}

// notByItself are the rows of tables that change only by calls: webhooks are tried meanwhile.
var notByItself = map[string]string{
	"notify_queue":  "channel <> 'webhook'",
	"notify_events": "kind in ('cancelled', 'requeued', 'delivered', 'undelivered')",
}

// dump is every row that a tenant has, by table.
func (s *site) dump(tenant string) map[string]string {
	s.t.Helper()
	ctx := context.Background()
	rows, _ := s.pool.Query(ctx, `select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
			and c.relname <> 'commit_counts' order by 1`) // which is written some time later
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	// One statement, whose plans take most of the time.
	var all []string
	for _, table := range tables {
		all = append(all, `select '`+table+`', coalesce(string_agg(row, E'\n' order by row), '')
			from (select (to_jsonb(t) - '{failing_since,failed_at}'::text[])::text as row from `+table+` t
				where tenant_id = (select tenant_id from access_tenants where name = $1) and `+cmp.Or(notByItself[table], "true")+`) r`)
	}
	rows, _ = s.pool.Query(ctx, strings.Join(all, " union all "), tenant)
	found := map[string]string{}
	var table, text string
	if _, err := pgx.ForEachRow(rows, []any{&table, &text},
		func() error { found[table] = text; return nil }); err != nil {
		s.t.Fatal(err)
	}
	if len(found) < 8 {
		s.t.Fatalf("only these tables have tenants: %v", tables)
	}
	return found
}

// count counts rows.
func (s *site) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// logLines is a log that tests read.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// with returns the lines in which a field has a value.
func (l *logLines) with(field, value string) (found []map[string]any) {
	for line := range strings.Lines(l.String()) {
		m := map[string]any{}
		if json.Unmarshal([]byte(line), &m) == nil && m[field] == value {
			found = append(found, m)
		}
	}
	return found
}

// methods are the calls of all services of ours that the binary knows.
func methods(t testing.TB) []protoreflect.MethodDescriptor {
	t.Helper()
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if s := f.Services().Get(i); strings.HasPrefix(string(s.FullName()), "ledgerd.") {
				for j := range s.Methods().Len() {
					all = append(all, s.Methods().Get(j))
				}
			}
		}
		return true
	})
	if len(all) < 24 {
		t.Fatalf("only %d methods were found", len(all))
	}
	return all
}

// services are the full names of all services of ours, sorted.
func services() (names []protoreflect.FullName) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if s := f.Services().Get(i); strings.HasPrefix(string(s.FullName()), "ledgerd.") {
				names = append(names, s.FullName())
			}
		}
		return true
	})
	slices.Sort(names)
	return names
}

// callName is what tests call a call: Transfer of the ledger, and Batch.Execute of any other service.
func callName(m protoreflect.MethodDescriptor) string {
	service := strings.TrimSuffix(string(m.Parent().Name()), "Service")
	if service == "Ledger" {
		return string(m.Name())
	}
	return service + "." + string(m.Name())
}

func method(t testing.TB, name string) protoreflect.MethodDescriptor {
	t.Helper()
	for _, m := range methods(t) {
		if callName(m) == name {
			return m
		}
	}
	t.Fatalf("there is no method %s", name)
	return nil
}

// reads tells a call without side effects.
func reads(m protoreflect.MethodDescriptor) bool {
	return m.Options().ProtoReflect().Get(m.Options().ProtoReflect().Descriptor().Fields().ByName("idempotency_level")).Enum() == 1
}

// recordsNothing tells a call that answers otherwise each time, and takes no key.
func recordsNothing(m protoreflect.MethodDescriptor) bool {
	return slices.Contains([]string{"Idempotency.IssueTokens", "Id.Generate"}, callName(m))
}

// fill makes a message of the type that a call answers with.
func fill(t testing.TB, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return typ.New().Interface()
}

// soon waits until something is so.
func soon(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}
