package verify_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// weakenings are changes of a schema. Each lists its differences, all of them.
var weakenings = []struct {
	name, sql string
	named     []string
}{
	{"a trigger is dropped", `drop trigger ledger_entries_append_only on ledger_entries`,
		[]string{`kind=trigger object="ledger_entries_append_only on ledger_entries" definition=none (should be ` +
			`BEFORE DELETE OR UPDATE OR TRUNCATE`}},
	{"a trigger is disabled", `alter table commit_batches disable trigger commit_batches_append_only`,
		[]string{`object="commit_batches_append_only on commit_batches" definition="BEFORE DELETE OR UPDATE ` +
			`OR TRUNCATE FOR EACH STATEMENT EXECUTE FUNCTION commit_append_only() disabled" (should be BEFORE`}},
	{"a trigger runs in replicas only", `alter table commit_batches enable replica trigger commit_batches_append_only`,
		[]string{`commit_append_only() for replicas only" (should be BEFORE`}},
	{"a trigger always runs", `alter table commit_batches enable always trigger commit_batches_append_only`,
		[]string{`commit_append_only() always"`}},
	{"a trigger gets a condition", `create or replace trigger stock_changes_append_only before update
		or delete on stock_changes
		for each statement when (current_user <> 'me')
		execute function commit_append_only()`, []string{`WHEN (CURRENT_USER <> 'me'`}},
	{"a trigger calls a function elsewhere", `create schema evil; create function evil.commit_append_only() returns
		trigger language plpgsql as 'begin return null; end';
		create or replace trigger stock_changes_append_only before update or delete or truncate on stock_changes
			for each statement execute function
			evil.commit_append_only()`, []string{`EXECUTE FUNCTION evil.commit_append_only()" (should be`}},
	{"triggers of foreign keys are disabled", `alter table access_policies disable trigger all`,
		[]string{`kind=trigger object="of access_policies_tenant_fkey on access_policies" definition=disabled ` +
			`(should be none)`}},
	{"a trigger is added", `create trigger mine before insert on ledger_entries for each row
		execute function commit_append_only()`,
		[]string{`object="mine on ledger_entries" definition="BEFORE INSERT FOR EACH ROW EXECUTE FUNCTION ` +
			`commit_append_only()" (should be none)`}},
	{"a trigger runs when a server migrates", `create trigger mine before insert on goose_db_version for each row
		execute function commit_append_only()`,
		[]string{`object="mine on goose_db_version"`}},
	{"a rule swallows rows", `create rule mine as on insert to ledger_holds do instead nothing`,
		[]string{`kind=rule object="mine on ledger_holds" definition="CREATE RULE mine AS ON INSERT TO ledger_holds ` +
			`DO INSTEAD NOTHING;" (should be none)`}},
	{"the query of a view is disabled", `update pg_rewrite set ev_enabled = 'D'
		where ev_class = 'audit.batches'::regclass`,
		[]string{`kind=rule object="_RETURN on audit.batches" definition=disabled (should be none)`}},
	{"an event trigger is added", `create function pg_temp.f() returns event_trigger language plpgsql as 'begin end';
		create event trigger mine on ddl_command_start
		execute function pg_temp.f()`, []string{`kind="event trigger" object=mine`}},

	{"a constraint is dropped", `alter table ledger_entries drop constraint ledger_entries_sum_check`,
		[]string{`kind=constraint object="ledger_entries_sum_check on ledger_entries" definition=none ` +
			`(should be CHECK`}},
	{"a constraint is weaker", `alter table ledger_accounts drop constraint ledger_accounts_max_balance_check,
			add constraint ledger_accounts_max_balance_check check (true)`,
		[]string{`object="ledger_accounts_max_balance_check on ledger_accounts" definition="CHECK (true)" ` +
			`(should be CHECK`}},
	{"a constraint is not validated", `alter table access_api_keys drop constraint access_api_keys_role_check,
			add constraint access_api_keys_role_check check (role in ('read', 'write', 'admin')) not valid`,
		[]string{`'admin'::text])) NOT VALID" (should be CHECK`}},
	{"a foreign key is dropped", `alter table access_api_keys drop constraint access_api_keys_tenant_fkey`,
		[]string{`object="access_api_keys_tenant_fkey on access_api_keys" definition=none`}},
	{"a foreign key becomes deferrable", `alter table access_api_keys alter constraint access_api_keys_tenant_fkey
		deferrable`,
		[]string{`REFERENCES access_tenants(tenant_id) DEFERRABLE" (should be FOREIGN KEY`}},
	{"a unique key is dropped", `alter table access_tenants drop constraint access_tenants_name_key`,
		[]string{`kind=constraint object="access_tenants_name_key on access_tenants" definition=none (should be ` +
			`UNIQUE (name))`,
			`kind=index object="access_tenants_name_key on access_tenants" definition=none (should be unique USING ` +
				`btree (name))`}},
	{"a constraint is added", `alter table ledger_holds add constraint mine check (amount < 5)`,
		[]string{`object="mine on ledger_holds"`}},

	{"an index is dropped", `drop index commit_keys_expires_idx`,
		[]string{`kind=index object="commit_keys_expires_idx on commit_keys" definition=none`}},
	{"an index is invalid", `update pg_index set indisvalid = false where indexrelid = 'ledger_entries_pkey'::regclass`,
		[]string{`object="ledger_entries_pkey on ledger_entries" definition="unique USING btree (tenant_id, ` +
			`account_id, version) invalid" (should be unique`}},
	{"an index has other columns",
		`drop index commit_counts_hour_idx; create index commit_counts_hour_idx on commit_counts (count)`,
		[]string{`definition="USING btree (count)" (should be USING btree (hour))`}},
	{"an index is added", `create unique index mine on ledger_holds (tenant_id)`,
		[]string{`object="mine on ledger_holds" definition="unique USING btree`}},

	{"a column has another type", `alter table notify_fingerprints alter column message_id type numeric`,
		[]string{`kind=column object=notify_fingerprints.message_id definition="numeric not null" (should ` +
			`be bigint not null)`}},
	{"a column has another collation", `alter table notify_fingerprints alter column channel type text collate
		"default"`,
		[]string{`object=notify_fingerprints.channel definition="text not null" (should be text collate ` +
			`"C" not null)`}},
	{"a column may be null", `alter table commit_batches alter column xid drop not null`,
		[]string{`object=commit_batches.xid definition="xid8 default`}},
	{"a column has another default", `alter table commit_batches alter column epoch set default 1`,
		[]string{`object=commit_batches.epoch definition="integer not null default 1" (should be integer not null ` +
			`default commit_recorded_epoch())`}},
	{"a column is generated", `alter table ledger_holds add column mine text generated always as ('x') stored`,
		[]string{`object=ledger_holds.mine definition="text generated, stored 'x'::text" (should be none)`}},
	{"a column is dropped", `alter table stock_changes drop column reason cascade`,
		[]string{`object=stock_changes.reason definition=none (should be text not null)`,
			`object="stock_changes_reason_check on stock_changes" definition=none`,
			`kind=view object=audit.stock_changes definition=none (should be owner ledgerd_owner)`,
			`object="audit.stock_changes to ledgerd_audit" definition=none`,
			`kind=view object=audit.order_story definition=none (should be owner ledgerd_owner)`,
			`object="audit.order_story to ledgerd_audit" definition=none`}},

	{"a function has another body", `create
		or replace function commit_append_only() returns trigger language plpgsql set search_path = pg_catalog, pg_temp
		as 'begin return null; end'`, []string{`kind=function object=commit_append_only()`}},
	{"a function has another language", `create
		or replace function audit.decimal(minor numeric, scale integer) returns numeric
		language plpgsql immutable strict parallel
		safe as 'begin return 0; end'`, []string{`owner ledgerd_owner plpgsql immutable`}},
	{"a function has another owner", `alter function commit_epoch owner to ledgerd_app`,
		[]string{`owner ledgerd_app plpgsql`}},
	{"a function runs as its owner", `alter function commit_batch_before security definer`,
		[]string{`stable security definer set`}},
	{"a function runs as its caller", `alter function notify_keep_partitions security invoker`,
		[]string{`object=notify_keep_partitions()`}},
	{"a function searches the caller's path", `alter function notify_keep_partitions reset search_path`,
		[]string{`object=notify_keep_partitions()`}},
	{"a function searches another path", `alter function notify_keep_partitions set search_path = public`,
		[]string{`set search_path=public`}},
	{"a function has another setting", `alter function notify_keep_partitions set row_security = off`,
		[]string{`set row_security=off`}},
	{"a function is of another volatility", `alter function commit_epoch immutable`, []string{`plpgsql immutable set`}},
	{"a function is said to leak nothing", `alter function commit_epoch leakproof`, []string{`leakproof`}},
	{"a function is dropped", `drop function notify_drop_proofs`,
		[]string{`object=notify_drop_proofs(integer) definition=none`}},
	{"a function is added", `create function commit_epoch(integer) returns integer language sql return 1`,
		[]string{`kind=function object=commit_epoch(integer)`,
			`kind=grant object="function commit_epoch(integer) to PUBLIC"`}},

	{"a view shows something else", `create or replace view audit.batches as
		select b.batch_id, b.recorded_at, b.commands, b.commands = 0 as void, b.instance, b.xid from commit_batches b
		where b.batch_id > 5`,
		[]string{`kind=query object=audit.batches definition="sha256 `}},
	{"a view has another owner", `alter view audit.batches owner to postgres`,
		[]string{`kind=view object=audit.batches definition="owner postgres" (should be owner ledgerd_owner)`}},
	{"a view runs as its caller", `alter view audit.accounts set (security_invoker = true)`,
		[]string{`with security_invoker=true" (should be sha256`}},
	{"a view is dropped", `drop view audit.trial_balance`,
		[]string{`kind=view object=audit.trial_balance definition=none (should be owner ledgerd_owner)`,
			`object="audit.trial_balance to ledgerd_audit" definition=none`}},
	{"a view is added", `create view audit.mine as select * from notify_contents`,
		[]string{`kind=view object=audit.mine definition="owner postgres" (should be none)`}},

	{"a role may write a table", `grant delete on ledger_entries to ledgerd_app`,
		[]string{`kind=grant object="ledger_entries to ledgerd_app" definition="DELETE, INSERT, ` +
			`SELECT" (should be INSERT, SELECT)`}},
	{"a role may grant", `grant select on ledger_entries to ledgerd_app with grant option`,
		[]string{`definition="INSERT, SELECT with grant option"`}},
	{"a role may write a column", `grant update (balance_after) on ledger_entries to ledgerd_app`,
		[]string{`definition="INSERT, SELECT, UPDATE (balance_after)"`}},
	{"a role may read a column", `grant select (secret_hash) on access_api_keys to ledgerd_audit`,
		[]string{`SELECT (call_limit, call_rate, created_at, created_by, expires_at, key_id, principal, ` +
			`revoked_at, revoked_by, role, scopes, secret_digest, secret_hash, tenant_id, used_at)" ` +
			`(should be SELECT (call_limit`}},
	{"a right is missing", `revoke insert on ledger_entries from ledgerd_app`,
		[]string{`definition=SELECT (should be INSERT, SELECT)`}},
	{"everyone may read a table", `grant select on notify_contents to public`,
		[]string{`object="notify_contents to PUBLIC" definition=SELECT (should be none)`}},
	{"a login may write a table", `grant update on ledger_accounts to ledgerd_test_app`,
		[]string{`object="ledger_accounts to ledgerd_test_app" definition=UPDATE`}},
	{"everyone may run a function", `grant execute on function notify_drop_proofs to public`,
		[]string{`object="function notify_drop_proofs(integer) to PUBLIC"`}},
	{"a role may run a function of Postgres", `grant execute on function pg_read_file(text) to ledgerd_app`,
		[]string{`object="system function pg_read_file(text) to ledgerd_app" definition=EXECUTE (should be none)`}},
	{"everyone may run a function of Postgres", `grant execute on function pg_read_file(text) to public`,
		[]string{`object="system function pg_read_file(text) to PUBLIC" definition=EXECUTE (should be none)`}},
	{"everyone may read a catalog", `grant
		select on pg_authid to public`, []string{`object="system table pg_authid to PUBLIC" definition=SELECT`}},
	{"a role may write a catalog", `grant update on pg_class to ledgerd_audit`,
		[]string{`object="system table pg_class to ledgerd_audit" definition=UPDATE`}},
	{"a sequence may be set", `grant update on sequence lock_fence_seq to ledgerd_app`,
		[]string{`object="lock_fence_seq to ledgerd_app"`}},
	{"everyone may create objects", `grant create on schema public to public`,
		[]string{`object="schema main to PUBLIC" definition=CREATE (should be none)`}},
	{"a login may create objects", `grant create on schema public to ledgerd_test_app`,
		[]string{`object="schema main to ledgerd_test_app" definition=CREATE`}},
	{"a role may create views", `grant create on schema audit to ledgerd_audit`,
		[]string{`object="schema audit to ledgerd_audit" definition="CREATE, USAGE" (should be USAGE)`}},
	{"everyone may create temporary objects", `grant temporary on database {db} to public`,
		[]string{`object="database to PUBLIC" definition=TEMPORARY (should be none)`}},
	{"a login may create schemas", `grant create on database {db} to ledgerd_test_app`,
		[]string{`object="database to ledgerd_test_app" definition=CREATE`}},
	{"everyone may read new tables", `alter default privileges for role ledgerd_owner grant select on tables to public`,
		[]string{`object="new relations of ledgerd_owner to PUBLIC" definition=SELECT`}},
	{"everyone may read new tables in a schema", `alter default privileges in schema public grant
		select on tables to public`,
		[]string{`object="new relations of postgres in main to PUBLIC" definition=SELECT`}},

	{"row-level security is disabled", `alter table ledger_holds disable row level security; alter table ledger_entries
		force row level security`,
		[]string{`kind="row security" object=ledger_holds definition=none (should be enabled)`,
			`object=ledger_entries definition="enabled, forced" (should be enabled)`}},
	{"a policy is opened", `alter policy tenants on ledger_holds using (true)`,
		[]string{`kind=policy object="tenants on ledger_holds" definition="permissive all to ledgerd_app using true"`}},
	{"a policy is added", `create policy mine on ledger_holds as restrictive for
		select to ledgerd_app, ledgerd_audit using (tenant_id = 5);
			create policy other on ledger_holds with check (tenant_id = 6)`,
		[]string{`object="mine on ledger_holds" definition="restrictive ` +
			`select to ledgerd_app, ledgerd_audit using (tenant_id = 5)"`,
			`object="other on ledger_holds" definition="permissive all to PUBLIC check (tenant_id = 6)"`}},

	{"a table has another owner", `alter table ledger_holds owner to postgres`,
		[]string{`kind=table object=ledger_holds definition="owner postgres" (should be owner ledgerd_owner)`}},
	{"a table is not logged", `alter table lock_waiters set unlogged`, []string{`kind=table object=lock_waiters ` +
		`definition="owner ledgerd_owner, unlogged" (should be owner ledgerd_owner)`}},
	{"a table is dropped", `drop table notify_fingerprints`,
		[]string{`kind=table object=notify_fingerprints definition=none (should be owner ledgerd_owner)`,
			`object="notify_fingerprints to ledgerd_app" definition=none`,
			`object="notify_fingerprints to ledgerd_audit" definition=none`,
			`object="administrators on notify_fingerprints" definition=none`, `object="auditors on ` +
				`notify_fingerprints" definition=none`, `object="tenants on notify_fingerprints" definition=none`,
			`kind="row security" object=notify_fingerprints definition=none`}},
	{"a table is added", `create table mine ()`,
		[]string{`kind=table object=mine definition="owner postgres" (should be none)`}},
	{"a table inherits rows", `create schema evil; create table evil.mine () inherits (claim_keys)`,
		[]string{`kind=child object=evil.mine definition="of claim_keys" (should be none)`,
			`kind=table object=evil.mine`}},
	{"a sequence wraps", `alter sequence lock_fence_seq maxvalue 5 cycle`, []string{`kind=range ` +
		`object=lock_fence_seq definition="bigint from 1 to 5 start 1 increment 1 cycle" (should be`}},
	{"a type is added", `create domain mine as text`, []string{`kind=type object=mine`}},
	{"an operator is added", `create function pg_temp.f(integer, integer) returns boolean language sql return true;
			create operator public.= (leftarg = integer, rightarg = integer,
			function = pg_temp.f)`, []string{`kind=operator object=public.=(integer,integer)`}},
	{"a function of Postgres is added", `create function pg_catalog.my_now() returns timestamptz language sql return
		'epoch'::timestamptz`,
		[]string{`kind=function object=my_now() definition="in pg_catalog" (should be none)`}},
	{"a cast is added", `create cast (bytea as json) with inout as implicit`,
		[]string{`kind=cast object="bytea as json"`}},
	{"the schema of the views has another owner", `alter schema audit owner to postgres`,
		[]string{`kind=schema object=audit definition="owner postgres" (should be owner ledgerd_owner)`}},
	{"a login owns the schema", `alter schema public owner to ledgerd_test_app`,
		[]string{`kind=schema object=main definition="owner ledgerd_test_app" (should be none)`,
			`object="schema main to ledgerd_test_app" definition=CREATE`}},
	{"a login owns the database", `alter database {db} owner to ledgerd_test_app`,
		[]string{`kind=database object={db} definition="owner ledgerd_test_app"`,
			`object="database to ledgerd_test_app" definition="CREATE, TEMPORARY" (should be none)`}},
	{"another schema deceives", `create schema evil; create table evil.ledger_accounts ()`,
		[]string{`kind=schema object=evil definition="has a table ledger_accounts too" (should be none)`}},

	{"triggers are disabled in all sessions", `alter database {db} set session_replication_role = replica`,
		[]string{`kind=setting object=session_replication_role definition=replica (should be origin)`,
			`object="session_replication_role of all roles in this database" definition=replica (should be none)`}},
	{"triggers are disabled in sessions of a login",
		`alter role ledgerd_test_app in database {db} set session_replication_role = replica`,
		[]string{`kind=setting object=session_replication_role definition=replica (should be origin)`,
			`object="session_replication_role of ledgerd_test_app in this database"`}},
	{"sessions become the owner", `alter role ledgerd_test_app in database {db} set role = ledgerd_audit`,
		[]string{`object="role of ledgerd_test_app in this database" definition=ledgerd_audit`}},
	{"sessions search another schema first", `create schema evil; alter database {db} set search_path = evil, public`,
		[]string{`object="search_path of all roles in this database" definition="evil, public"`}},
	{"sessions search another schema with a similar name",
		`create schema "public, x"; alter database {db} set search_path = "public, x", public`,
		[]string{`object="search_path of all roles in this database" definition="\"public, x\", public"`}},
	{"a function searches a schema with a similar name",
		`alter function commit_append_only set search_path = "pg_catalog, pg_temp"`,
		[]string{`set search_path=\"pg_catalog, pg_temp\" sha256`}},
	{"sessions search pg_catalog last", `alter database {db} set search_path = public, pg_catalog`,
		[]string{`object="search_path of all roles in this database" definition="public, pg_catalog"`}},

	{"the trigger of a partition is disabled", `alter table {part} disable trigger notify_messages_append_only`,
		[]string{`kind=trigger object="notify_messages_append_only on {part}" definition="BEFORE DELETE OR UPDATE ` +
			`FOR EACH ROW EXECUTE FUNCTION commit_append_only() disabled" (should be BEFORE`}},
	{"a partition lets everyone read", `grant
		select on {part} to public`, []string{`object="{part} to PUBLIC" definition=SELECT (should be none)`}},
	{"a partition has another owner", `alter table {part} owner to postgres`,
		[]string{`kind=table object={part} definition="owner postgres" (should be owner ledgerd_owner)`}},
	{"a partition has a constraint of its own", `alter table {part} add constraint mine check (month > '2000-01-01')`,
		[]string{`object="mine on {part}" definition="CHECK (month > '2000-01-01'::date)" (should be none)`}},
	{"a partition has a trigger of its own", `create trigger mine before insert on {part} for each row
		execute function commit_append_only()`,
		[]string{`object="mine on {part}"`}},
	{"a column of a partition has another default", `alter table {part} alter column channel set default 'x'`,
		[]string{`kind=column object={part}.channel definition="text collate \"C\" not null default 'x'::text" ` +
			`(should be text collate "C" not null)`}},
	{"a partition is detached", `alter table notify_messages detach partition {part}`,
		[]string{`kind=table object={part} definition="owner ledgerd_owner" (should be none)`}},
	{"a partition has another name", `alter table {part} rename to mine`,
		[]string{`kind=child object=mine definition="of notify_messages" (should be none)`}},
	{"a partition is read elsewhere", `alter table {part} set schema audit`,
		[]string{`kind=child object=audit.{part} definition="of notify_messages" (should be none)`}},
	{"an index of all partitions is dropped", `drop index notify_messages_request_idx`,
		[]string{`kind=index object="notify_messages_request_idx on notify_messages" definition=none (should ` +
			`be USING brin`}},
}

func TestWeakeningsOfTheSchemaAreFoundAndNamed(t *testing.T) {
	t.Parallel()
	fresh := pgtest.New(t)
	for _, c := range weakenings {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := fresh.Copy(t)
			db.SkipChecks()
			part := "notify_messages_" + time.Now().UTC().Format("200601")
			fill := strings.NewReplacer("{db}", db.Name, "{part}", part).Replace
			weaken(t, db, fill(c.sql))
			got, err := verify.CompareSchema(t.Context(), connect(t, db.AllDSN))
			if err != nil {
				t.Fatal(err)
			}
			var named []string
			for _, text := range c.named {
				named = append(named, fill(text))
			}
			expect(t, got, []string{"schema_matches"}, named)
			if got.Found["schema_matches"] != len(named) {
				for _, v := range got.Violations {
					t.Errorf("not named: %s", v)
				}
			}
		})
	}
}

// weaken runs statements as a superuser who may change catalogs too.
func weaken(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := connect(t, db.SuperDSN).Exec(t.Context(), "set allow_system_table_mods = on; "+sql); err != nil {
		t.Fatal(err)
	}
}

// Attributes and memberships of roles belong to the cluster, so these tests have a cluster of their own.
var roleWeakenings = []struct{ name, sql, undo, named string }{
	{"a role is a superuser", `alter role ledgerd_app superuser`, `alter role ledgerd_app nosuperuser`,
		`kind=role object=ledgerd_app definition="nologin, inherit, superuser" (should be nologin, inherit)`},
	{"a role may log in", `alter role ledgerd_owner login`, `alter role ledgerd_owner nologin`,
		`definition="login, inherit" (should be nologin, inherit)`},
	{"a role passes row-level security", `alter role ledgerd_app bypassrls`, `alter role ledgerd_app nobypassrls`,
		`definition="nologin, inherit, bypassrls"`},
	{"a role may create roles", `alter role ledgerd_audit createrole`, `alter role ledgerd_audit nocreaterole`,
		`object=ledgerd_audit definition="nologin, inherit, createrole"`},
	{"a role is a member of the owner", `grant ledgerd_owner to ledgerd_app`, `revoke ledgerd_owner from ledgerd_app`,
		`kind=membership object="ledgerd_app in ledgerd_owner" definition=member (should be none)`},
	{"a role may read everything", `grant pg_read_all_data to ledgerd_audit`,
		`revoke pg_read_all_data from ledgerd_audit`,
		`object="ledgerd_audit in pg_read_all_data" definition=member`},
	{"the login of a server is a superuser", `create role strong login superuser in role ledgerd_app`,
		`drop role strong`,
		`kind=login object=strong definition="member of ledgerd_app, superuser" (should be none)`},
	{"the login of a server is a member of the owner", `create role strong login in role ledgerd_app, ledgerd_owner`,
		`drop role strong`,
		`kind=login object=strong definition="member of ledgerd_app, member of ledgerd_owner" (should be none)`},
	{"the login of a server may become the owner",
		`create role between in role ledgerd_owner; create role strong login noinherit in role ledgerd_app, between`,
		`drop role strong, between`, `kind=login object=strong definition="member of ledgerd_app, ` +
			`member of ledgerd_owner" (should be none)`},
	{"the login of a server administers", `create role strong login in role ledgerd_app, ledgerd_admin`,
		`drop role strong`,
		`object=strong definition="member of ledgerd_app, member of ledgerd_admin"`},
	{"the login of a server writes all data", `create role strong login in role ledgerd_app, pg_write_all_data`,
		`drop role strong`,
		`object=strong definition="member of ledgerd_app, member of pg_write_all_data"`},
	{"a role may disable triggers in its session", `grant set on parameter session_replication_role to ledgerd_app`,
		`revoke set on parameter session_replication_role from ledgerd_app`,
		`kind=grant object="parameter session_replication_role to ledgerd_app" definition=SET (should be none)`},
	{"a login disables triggers in all databases", `alter role ledgerd_app set session_replication_role = replica`,
		`alter role ledgerd_app reset session_replication_role`,
		`kind=setting object="session_replication_role of ledgerd_app" definition=replica`},
	{"a subscription writes a table", `create subscription mine connection 'host=none' publication p with
		(connect = false, slot_name = none);
			insert into pg_subscription_rel select oid, 'ledger_entries'::regclass, 'r'
			from pg_subscription`, `drop subscription mine`,
		`kind=subscription object="mine on ledger_entries" definition="writes it" (should be none)`},
	{"superusers pass row-level security", `alter role postgres set row_security = off`,
		`alter role postgres reset row_security`,
		`object="row_security of postgres" definition=off`},
}

func TestWeakeningsOfRolesAreFoundAndNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDurable(t).DB
	conn := connect(t, db.SuperDSN)
	pool := pgtest.Pool(t, db.AllDSN)
	execute := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("set allow_system_table_mods = on")
	for _, c := range roleWeakenings {
		for sql := range strings.SplitSeq(c.sql, ";") { // a subscription is created outside of transactions
			execute(sql)
		}
		got, err := verify.Run(t.Context(), pool, verify.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(c.name)
		expect(t, got, []string{"schema_matches"}, []string{c.named})
		for _, v := range got.Violations { // other violations may only be of logins that gained power
			if !strings.Contains(v.String(), c.named) && v.Fields[0].Value != "login" {
				t.Errorf("not named: %s", v)
			}
		}
		execute(c.undo)
	}

	// A role that is no superuser can migrate, and is then reported among the roles that can change everything.
	execute("create role migrator login createrole in role ledgerd_owner; create role above login in role migrator")
	execute("create database other owner migrator")
	app := strings.ReplaceAll(db.AppDSN, db.Name, "other")
	if err := pg.Migrate(t.Context(), strings.ReplaceAll(app, "ledgerd_test_app", "migrator")); err != nil {
		t.Fatal(err)
	}
	got := clean(t, app)
	if want := []string{"above", "migrator", "postgres (superuser)"}; !slices.Equal(got.Owners, want) {
		t.Errorf("owners are %v, not %v", got.Owners, want)
	}
}

// clean verifies a database without violations.
func clean(t *testing.T, dsn string) verify.Report {
	t.Helper()
	got, err := verify.Run(t.Context(), pgtest.Pool(t, dsn), verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range got.Violations {
		t.Error(v)
	}
	if got.Objects < 1000 || got.SchemaTook <= 0 {
		t.Errorf("%d objects were compared in %s", got.Objects, got.SchemaTook)
	}
	return got
}

func TestSchemasOfEveryNameMatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.SuperDSN)
	for i, schema := range []string{"ledger", "My ledger", "owned"} {
		name := fmt.Sprintf("%s_%d", db.Name, i)
		other := strings.ReplaceAll(db.SuperDSN, db.Name, name)
		quoted := pgx.Identifier{schema}.Sanitize()
		create := "create schema " + quoted
		if schema == "owned" {
			create += " authorization ledgerd_owner"
		}
		if _, err := conn.Exec(t.Context(), "create database "+name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := conn.Exec(context.Background(), "drop database "+name+" with (force)"); err != nil {
				t.Error(err)
			}
		})
		if _, err := connect(t, other).Exec(t.Context(), create+`;
			create extension pg_trgm schema `+quoted+`;
			create extension fuzzystrmatch schema pg_catalog;
			alter database `+name+` set quote_all_identifiers = on;
			alter database `+name+` set timezone = 'Asia/Tokyo';
			alter database `+name+" set search_path = "+quoted+", public"); err != nil {
			t.Fatal(err)
		}
		if err := pg.Migrate(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		clean(t, strings.ReplaceAll(db.AllDSN, db.Name, name))
	}
}

// A dump creates views and constraints from the definitions that Postgres prints.
func TestRestoredDatabasesMatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := connect(t, db.SuperDSN).Exec(t.Context(), `
		set role ledgerd_owner;
		do $$
		declare
			d record;
		begin
			for d in select oid::regclass as name, pg_get_viewdef(oid) as query from pg_class where relkind = 'v'
			and relnamespace = 'audit'::regnamespace loop
				execute format('create or replace view %s as %s', d.name, d.query);
			end loop;
			for d in select conrelid::regclass as name, conname, pg_get_constraintdef(oid) as definition
			from pg_constraint
				where contype = 'c' and connamespace = 'public'::regnamespace
				and conrelid::regclass::text !~ '^notify_(messages|events|contents)'
			loop
				execute format('alter table %s drop constraint %I, add constraint %2$I %s', d.name, d.conname,
				d.definition);
			end loop;
		end $$`); err != nil {
		t.Fatal(err)
	}
	clean(t, db.AllDSN)
}

func TestPartitionsOfManyWeeksMatchTheirParents(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := connect(t, db.SuperDSN).Exec(t.Context(), `set role ledgerd_owner;
		select notify_add_partition(p, to_char(d, 'YYYYMM'), d::date, (d + interval '1 month')::date)
		from generate_series(timestamp '2020-01-01', '2024-01-01', '1 month') d, unnest(array['notify_messages',
		'notify_events']) p;
		select notify_add_partition('notify_contents', to_char(d, 'YYYYMMDD'), d::date, d::date + 7)
		from generate_series(timestamp '2023-01-02', '2024-01-01', '7 days') d`); err != nil {
		t.Fatal(err)
	}
	clean(t, db.AllDSN)
}

// Partitions are created and dropped while the comparison runs.
func TestPartitionsThatAreDroppedGiveNoFalseAlarm(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.SuperDSN)
	if _, err := conn.Exec(t.Context(), "set role ledgerd_owner"); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for running, err := true, error(nil); ; {
			select {
			case <-stop:
				running = false
			default:
			}
			if !running || err != nil {
				done <- err
				return
			}
			_, err = conn.Exec(t.Context(), `
				select notify_add_partition('notify_contents', to_char(d, 'YYYYMMDD'), d::date, d::date + 7)
				from generate_series(timestamp '2020-01-06', '2020-03-01', '7 days') d`)
			for day := 6; day < 28 && err == nil; day += 7 {
				_, err = conn.Exec(t.Context(), fmt.Sprintf("drop table notify_contents_202001%02d", day))
			}
		}
	}()
	verifier := connect(t, db.AllDSN)
	for range 20 {
		got, err := verify.CompareSchema(t.Context(), verifier)
		if err != nil || !got.OK() {
			t.Errorf("%v, %v", got.Violations, err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
