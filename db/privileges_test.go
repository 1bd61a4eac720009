package db_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

var update = flag.Bool("update", false, "write testdata anew")

// privileges lists every relation with its owner and each role's privileges, even if there are none, so that a
// new table changes the list.
const privileges = `
	with relations as (
		select oid, relnamespace::regnamespace || '.' || relname as name, relowner, relacl from pg_class
		where relnamespace in ('public'::regnamespace, 'audit'::regnamespace)
		and relkind in ('r', 'v', 'm', 'p', 'f', 'S')
			and not relispartition and relname not like 'goose\_%'
	), granted as (
		select r.oid, a.grantee, a.privilege_type as what, a.is_grantable from relations r, aclexplode(r.relacl) a
		union all
		select r.oid, a.grantee, a.privilege_type || ' (' || string_agg(c.attname, ', '
		order by c.attnum) || ')', a.is_grantable
		from relations r join pg_attribute c on c.attrelid = r.oid, aclexplode(c.attacl) a
		group by r.oid, a.grantee, a.privilege_type, a.is_grantable
	), schemas as (
		select n.nspname as name, n.nspowner, a.grantee, string_agg(a.privilege_type, ', '
		order by a.privilege_type) as what
		from pg_namespace n, aclexplode(n.nspacl) a
		where nspname in ('public', 'audit') and a.grantee in ('ledgerd_app'::regrole, 'ledgerd_admin'::regrole,
		'ledgerd_audit'::regrole) group by 1, 2, 3
	), who as (
		select 'ledgerd_app'::regrole::oid as grantee
		union select 'ledgerd_admin'::regrole::oid
		union select 'ledgerd_audit'::regrole::oid
		union select grantee from granted where grantee <> 'ledgerd_owner'::regrole
	)
	select format('schema %s: %s: %s', name, grantee::regrole, what) from schemas
	union all
	select format('%s of %s: %s: %s', r.name, r.relowner::regrole, case w.grantee when 0 then 'PUBLIC' else
		w.grantee::regrole::text end, coalesce(string_agg(g.what || case when g.is_grantable then ' WITH GRANT OPTION'
		else '' end, ', ' order by g.what), 'nothing'))
	from relations r cross join who w left join granted g on g.oid = r.oid and g.grantee = w.grantee
	group by r.name, r.relowner, w.grantee
	order by 1`

const golden = "testdata/privileges.txt"

func TestPrivilegesAreTheListedOnes(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	got := strings.Join(lines(t, conn, privileges), "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("privileges are not those of %s; if intended, run go test ./db -update\n%s", golden,
			difference(string(want), got))
	}
}

// difference returns the lines that only one of two texts contains.
func difference(want, got string) string {
	var text strings.Builder
	for _, line := range strings.Split(want, "\n") {
		if !strings.Contains("\n"+got, "\n"+line+"\n") {
			text.WriteString("- " + line + "\n")
		}
	}
	for _, line := range strings.Split(got, "\n") {
		if !strings.Contains("\n"+want, "\n"+line+"\n") {
			text.WriteString("+ " + line + "\n")
		}
	}
	return text.String()
}

func TestAuditorsReadEverythingButSecretsAndDoNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	super := connect(t, db.SuperDSN)
	conn := asAuditor(t, db)
	relations := lines(t, super, `select relnamespace::regnamespace || '.' || relname from pg_class
		where relnamespace in ('public'::regnamespace, 'audit'::regnamespace) and relkind in ('r', 'p', 'v')
			and not relispartition and relname not like 'goose\_%'`)
	if len(relations) < 20 {
		t.Fatalf("only %d relations", len(relations))
	}
	for _, relation := range relations {
		columns := "*"
		if relation == "public.access_api_keys" {
			columns = "tenant_id, key_id, principal, role, scopes, call_rate, call_limit, created_at, created_by, " +
				"expires_at, revoked_at, revoked_by, used_at"
		}
		if relation == "public.commit_keys" {
			columns = "tenant_id, principal, operation, key, refused, request_id, created_at, expires_at"
		}
		if relation == "public.notify_contents" {
			columns = "tenant_id, message_id, contents_until"
		}
		if relation == "public.notify_codes" {
			columns = "tenant_id, type, recipient_hash, channel, recipient_hint, state, tries, max_tries, " +
				"message_id, sent_at, expires_at, forget_at, principal, request_id"
		}
		if relation == "public.work_records" {
			columns = "tenant_id, scope, key, fingerprint, state, fence, attempt, lease_expires_at, principal, " +
				"request_id, status, body_bytes, answer_hash"
		}
		if relation == "public.secret_roots" {
			columns = "root, key_id, created_at, sealed_at"
		}
		if relation == "public.inbox_messages" {
			columns = "tenant_id, consumer_group, message_id, part, state, failure_text"
		}
		if relation == "public.inbox_contents" {
			columns = "tenant_id, consumer_group, message_id, part, expires_at"
		}
		if relation == "public.approval_requests" {
			columns = "tenant_id, approval_id, state, operation, details, reason, principal, key_id, request_id, " +
				"created_at, expires_at, decided_by, decided_key_id, decided_request_id, decided_at, note"
		}
		if relation == "public.payment_payments" {
			columns = "tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset, scale, " +
				"amount, payee, description, expires_at, principal, request_id, created_at, transaction_id, paid_at, " +
				"failure_code, failure_text"
		}
		if _, err := conn.Exec(t.Context(), "select "+columns+" from "+relation); err != nil {
			t.Errorf("%s: %v", relation, err)
		}
		if strings.HasPrefix(relation, "audit.") || relation == "public.payment_money" {
			continue // a view without write privileges
		}
		for _, sql := range []string{"delete from %s", "truncate %s", "drop table %s",
			"insert into %s default values"} {
			refused(t, conn, fmt.Sprintf(sql, relation), noPrivilege, "")
		}
	}
	refused(t, conn, "delete from audit.batches", noPrivilege, "") // the only view that Postgres could write through
	refused(t, conn, "select secret_hash from access_api_keys", noPrivilege, "")
	refused(t, conn, "select * from access_api_keys", noPrivilege, "")
	refused(t, conn, "select answer from commit_keys", noPrivilege, "")
	refused(t, conn, "select fingerprint from commit_keys", noPrivilege, "")
	refused(t, conn, "select request from approval_requests", noPrivilege, "")
	refused(t, conn, "select response from approval_requests", noPrivilege, "")
	refused(t, conn, "select recipient from notify_contents", noPrivilege, "")
	refused(t, conn, "select content from notify_contents", noPrivilege, "")
	refused(t, conn, "select content from inbox_contents", noPrivilege, "")
	refused(t, conn, "select result from inbox_messages", noPrivilege, "")
	refused(t, conn, "select headers from work_records", noPrivilege, "")
	refused(t, conn, "select sealed from secret_roots", noPrivilege, "")
	refused(t, conn, "select body from work_records", noPrivilege, "")
	if shown := lines(t, super, `select attrelid::regclass || '.' || attname from pg_attribute
		where attrelid in ('audit.inbox'::regclass, 'audit.works'::regclass)
		and attname in ('content', 'result', 'headers', 'body')`); len(shown) > 0 {
		t.Errorf("auditors read %v", shown)
	}
	for _, column := range []string{"credential", "payer", "payer_ip", "return_url", "token_hash"} {
		refused(t, conn, "select "+column+" from payment_payments", noPrivilege, "")
	}
	refused(t, conn, "select * from notify_messages_"+time.Now().UTC().Format("200601"), noPrivilege, "")
	refused(t, conn, "select nextval('commit_batch_seq')", noPrivilege, "")
	refused(t, conn, "create table public.mine ()", noPrivilege, "")
	refused(t, conn, "create view audit.mine as select 1", noPrivilege, "")
	refused(t, conn, "set session_replication_role = replica", noPrivilege, "")
	for _, column := range lines(t, super, `select attrelid::regclass || '.' || attname from pg_attribute a
		join pg_class c on c.oid = attrelid
		where relnamespace in ('public'::regnamespace, 'audit'::regnamespace) and attnum > 0 and relkind in ('r', 'v')
			and has_column_privilege('ledgerd_audit', attrelid, attnum, 'insert, update, references')`) {
		t.Errorf("auditors may write %s", column)
	}
}

// asAuditor connects with the rights of ledgerd_audit.
func asAuditor(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn := connect(t, db.SuperDSN)
	if _, err := conn.Exec(t.Context(), "set role ledgerd_audit"); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServiceRefusesToRunWithTooManyRightsOrNone(t *testing.T) {
	t.Parallel()
	// Roles are cluster-wide, and other tests verify that none has too many rights.
	db := pgtest.NewDurable(t).DB
	super := connect(t, db.SuperDSN)
	name := db.Name[len(db.Name)-12:]
	direct, indirect, maker, writer := name+"_owner", name+"_through", name+"_maker", name+"_writer"
	auditor, owner := name+"_auditor", name+"_schema"
	powers := map[string]string{"replication": "replication", "bypassrls": "bypassrls"}
	groups := []string{"pg_read_server_files", "pg_write_server_files", "pg_execute_server_program", "pg_read_all_data"}
	var more []string
	made := []string{direct, indirect, maker, writer, auditor, owner}
	for role, power := range powers {
		more = append(more, fmt.Sprintf("create role %q login %s password '%[1]s' in role ledgerd_app",
			name+"_"+role, power))
		made = append(made, name+"_"+role)
	}
	for _, group := range groups {
		more = append(more, fmt.Sprintf("create role %q login password '%[1]s' in role ledgerd_app, %s",
			name+"_"+group, group))
		made = append(made, name+"_"+group)
	}
	more = append(more, fmt.Sprintf("create role %q login password '%[1]s' in role ledgerd_app", owner),
		fmt.Sprintf("alter schema audit owner to %q", owner))
	for _, sql := range append([]string{
		"create role " + pgx.Identifier{direct}.Sanitize() + " login noinherit password '" + direct +
			"' in role ledgerd_owner, ledgerd_app",
		"create role " + pgx.Identifier{indirect}.Sanitize() + " login password '" + indirect + "' in role " +
			pgx.Identifier{direct}.Sanitize(),
		"create role " + pgx.Identifier{maker}.Sanitize() + " login createrole password '" + maker +
			"' in role ledgerd_app",
		"create role " + pgx.Identifier{writer}.Sanitize() + " login password '" + writer +
			"' in role ledgerd_app, pg_write_all_data",
		"create role " + pgx.Identifier{auditor}.Sanitize() + " login password '" + auditor + "' in role ledgerd_audit",
	}, more...) {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	as := func(role string) string { return strings.ReplaceAll(db.AppDSN, "ledgerd_test_app", role) }
	cases := map[string]struct {
		dsn  string
		want error
	}{
		"superuser":                       {db.SuperDSN, pg.ErrExcessRights},
		"member of the owner":             {as(direct), pg.ErrExcessRights},
		"member of the owner's member":    {as(indirect), pg.ErrExcessRights},
		"role that may create roles":      {as(maker), pg.ErrExcessRights},
		"role that may write all data":    {as(writer), pg.ErrExcessRights},
		"superuser with another role set": {asRole(db.SuperDSN, "ledgerd_app"), pg.ErrExcessRights},
		"an auditor":                      {as(auditor), pg.ErrExcessRights},
		"owner of a schema":               {as(owner), pg.ErrExcessRights},
		"the service's own":               {db.AppDSN, nil},
	}
	for _, role := range made[6:] {
		cases["role "+strings.TrimPrefix(role, name)] = struct {
			dsn  string
			want error
		}{as(role), pg.ErrExcessRights}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := pg.CheckRole(t.Context(), pgtest.Pool(t, c.dsn)); !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// asRole returns a DSN whose sessions start with another role.
func asRole(dsn, role string) string {
	if !strings.Contains(dsn, "://") {
		return dsn + " options=-crole=" + role
	}
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + "options=-crole%3D" + role
}
