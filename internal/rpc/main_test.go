package rpc_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type protocol = servertest.Protocol

// Short names for what almost every test uses.
var (
	connectJSON, connectProto = servertest.ConnectJSON, servertest.ConnectProto
	grpc, grpcWeb, protocols  = servertest.GRPC, servertest.GRPCWeb, servertest.Protocols
	method                    = servertest.Method
	callName, path            = servertest.CallName, servertest.Path
	eventually                = servertest.Eventually
)

// methods returns the methods of all services of a tenant. Those of AdminService have other callers, and no records.
func methods(t testing.TB) []protoreflect.MethodDescriptor {
	return slices.DeleteFunc(servertest.Methods(t),
		func(m protoreflect.MethodDescriptor) bool { return m.Parent().Name() == "AdminService" })
}

// site is a server on a database of its own.
type site struct {
	*servertest.Site
	fences *sync.Map           // of locks and work, and ids of messages and flags, by name: see fenced
	engine func() *flow.Engine // commits notices of gateways: see says
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := servertest.New(t)
	return &site{s, new(sync.Map), sync.OnceValue(func() *flow.Engine { return engineOn(t, s.DB.AllDSN) })}
}

// watcher is an API key that may read metrics.
func (s *site) watcher() string { return s.Key("watchers", "watcher", access.Admin) }

// second starts another server on the same database.
func (s *site) second() *site { return &site{s.Second(), s.fences, s.engine} }

// caller has an API key.
type caller struct {
	*site
	apiKey string
}

// second calls another server on the same database.
func (c *caller) second() *caller { return &caller{c.site.second(), c.apiKey} }

// answer is a response.
type answer struct{ servertest.Answer }

// call calls a method by name. More headers come as name, value, ...
func (c *caller) call(p protocol, name string, m proto.Message, headers ...string) answer {
	c.T.Helper()
	return c.send(p, path(method(c.T, name)), p.Encode(c.T, c.fenced(m)), headers...)
}

func (c *caller) send(p protocol, path string, body []byte, headers ...string) answer {
	c.T.Helper()
	return answer{(&servertest.Caller{Site: c.Site, APIKey: c.apiKey}).Send(p, path, body, headers...)}
}

// ok calls over Connect with protobuf, and fails the test on an error.
func ok[R proto.Message](c *caller, name string, m proto.Message, res R, headers ...string) R {
	c.T.Helper()
	a := c.call(connectProto, name, m, headers...)
	if a.Code != "" {
		c.T.Fatalf("%s: %s: %s", name, a.Code, a.Message)
	}
	connectProto.Decode(c.T, a.Raw, res)
	return res
}

// changedByCalls restricts tables to rows that only calls change: webhooks are attempted in the background, and locks
// that have been free for a minute are deleted.
var changedByCalls = map[string]string{
	"lock_locks":    "freed_at is null",
	"notify_queue":  "channel <> 'webhook'",
	"notify_events": "kind in ('cancelled', 'requeued', 'delivered', 'undelivered')",
}

// dump returns all rows of a tenant, by table.
func (s *site) dump(tenant string) map[string]string {
	s.T.Helper()
	ctx := context.Background()
	rows, _ := s.Pool.Query(ctx, `select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
		and a.attname = 'tenant_id'
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
			and c.relname <> 'commit_counts' order by 1`) // written with a delay
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.T.Fatal(err)
	}
	// One statement, because planning takes most of the time.
	var all []string
	for _, table := range tables {
		all = append(all, `select '`+table+`', coalesce(string_agg(row, E'\n' order by row), '')
			from (select (to_jsonb(t) - '{failing_since,failed_at,used_at}'::text[])::text as row from `+table+` t
				where tenant_id = (select tenant_id from access_tenants where name = $1) and `+
			cmp.Or(changedByCalls[table], "true")+`) r`)
	}
	rows, _ = s.Pool.Query(ctx, strings.Join(all, " union all "), tenant)
	found := map[string]string{}
	var table, text string
	if _, err := pgx.ForEachRow(rows, []any{&table, &text},
		func() error { found[table] = text; return nil }); err != nil {
		s.T.Fatal(err)
	}
	if len(found) < 8 {
		s.T.Fatalf("only these tables have tenants: %v", tables)
	}
	return found
}

// reads reports whether a call has no side effects.
func reads(m protoreflect.MethodDescriptor) bool {
	return m.Options().ProtoReflect().Get(m.Options().ProtoReflect().Descriptor().Fields().
		ByName("idempotency_level")).Enum() == 1
}

// keyless reports whether the response of a call is not recorded, so that it refuses a key.
func keyless(m protoreflect.MethodDescriptor) bool {
	return slices.Contains([]string{"Idempotency.IssueTokens", "Id.Generate"}, callName(m)) || relays(m)
}

// relays reports whether a call commits notices of a gateway, whose ids make repeats harmless.
func relays(m protoreflect.MethodDescriptor) bool {
	return slices.Contains([]string{"Payment.AskGateway", "Payment.HandleCallback"}, callName(m))
}

// fill returns an empty response of a call.
func fill(t testing.TB, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return typ.New().Interface()
}
