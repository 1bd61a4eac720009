package db_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

const keptKey = "LD005"

// withKey returns a database with a tenant and two API keys: one valid, one revoked.
func withKey(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	db.SkipChecks() // its keys are not in the audit log
	admin := connect(t, db.AdminDSN)
	do(t, admin, "insert into access_tenants (tenant_id, name) values (1, 'demo')")
	do(t, admin, `insert into access_api_keys (tenant_id, key_id, principal, role, scopes, secret_hash, created_by,
		expires_at)
		select 1, k, 'orders', 'write', '{ledger.get_*}', sha256('x'), 'test', '2100-01-01'
		from unnest(array['valid', 'revoked']) k`)
	do(t, admin, "update access_api_keys set revoked_at = now(), revoked_by = 'test' where key_id = 'revoked'")
	return db
}

func TestServiceMayNotAdminister(t *testing.T) {
	t.Parallel()
	db := withKey(t)
	conn := connect(t, db.AppDSN)
	for _, sql := range []string{
		"insert into access_tenants (tenant_id, name) values (2, 'mine')",
		`insert into access_api_keys (tenant_id, key_id, principal, role, secret_hash, created_by)
			values (1, 'mine', 'me', 'admin', sha256('x'), 'me')`,
		"update access_api_keys set revoked_at = null",
		"update access_api_keys set expires_at = null",
		"delete from access_api_keys",
		"insert into access_policies (tenant_id, operation) values (1, '*')",
		"delete from access_policies",
		"insert into notify_limits (tenant_id, channel, scope, window_s, max_messages) " +
			"values (1, '*', 'tenant', 60, 1)",
		"update notify_limits set max_messages = 1",
		"delete from notify_limits",
		"insert into commit_epochs (epoch) values (7)",
		"insert into commit_epochs (base) values (7)",
		"insert into commit_epochs (timeline) values (7)",
		"insert into commit_epochs (history) values ('of another database')",
		"insert into commit_epochs (xid) values ('7')",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
	do(t, conn, "update access_api_keys set used_at = now()")
	do(t, conn, "begin; savepoint s")
	refused(t, conn, "insert into commit_epochs default values", "25000", "")
	do(t, conn, "rollback")
	do(t, conn, "insert into commit_epochs (begun_at) values ('infinity') on conflict (epoch) do nothing")
	if began := lines(t, conn, "select min(begun_at)::text from commit_epochs"); began[0] == "infinity" {
		t.Error("an epoch begins at infinity")
	}
}

func TestAdministrationMayDoNothingElse(t *testing.T) {
	t.Parallel()
	db := withKey(t)
	conn := connect(t, db.AdminDSN)
	for _, table := range lines(t, conn, `select c.oid::regclass::text from pg_class c
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
			and has_any_column_privilege(c.oid, 'select, insert, update, references') and relname not like 'goose%'
			order by 1`) {
		switch table {
		case "access_api_keys", "access_policies", "access_tenants", "audit_events", "notify_limits",
			"commit_epochs": // for the numbers of audit_events
		default:
			t.Errorf("administration has rights to %s", table)
		}
	}
	for _, sql := range []string{
		"update access_tenants set name = 'other'",
		"delete from access_tenants",
		"insert into commit_epochs (epoch) values (7)",
		"insert into commit_epochs (base) values (7)",
		"update access_api_keys set role = 'admin'",
		"update access_api_keys set secret_hash = sha256('y')",
		"update access_api_keys set used_at = now()",
		"delete from access_api_keys",
		"truncate access_api_keys",
		"select setval('commit_batch_seq', 1)",
		"set role ledgerd_app",
		"set session_replication_role = replica",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
}

// TestRightsOfAKeyNeverGrow tries to change keys as a superuser.
func TestRightsOfAKeyNeverGrow(t *testing.T) {
	t.Parallel()
	db := withKey(t)
	conn := connect(t, db.SuperDSN)
	for _, change := range []string{
		"role = 'admin'", "scopes = null", "scopes = '{ledger.*}'", "principal = 'other'", "secret_hash = sha256('y')",
		"created_by = 'other'", "created_at = now()", "key_id = 'other'", "call_rate = 10", "call_limit = 10",
		"expires_at = null", "expires_at = '2100-01-02'",
	} {
		refused(t, conn, fmt.Sprintf("update access_api_keys set %s where key_id = 'valid'", change), keptKey, "")
	}
	for _, change := range []string{"revoked_at = null, revoked_by = null", "revoked_at = now() + '1 day'",
		"revoked_by = 'other'"} {
		refused(t, conn, fmt.Sprintf("update access_api_keys set %s where key_id = 'revoked'", change), keptKey, "")
	}
	do(t, conn, "update access_api_keys set expires_at = '2099-01-01', used_at = now()")
	do(t, conn, "update access_api_keys set revoked_at = now(), revoked_by = 'test' where key_id = 'valid'")
}

func TestAdministrationRunsAsItsRoleOnly(t *testing.T) {
	t.Parallel()
	// Roles are cluster-wide, and other tests verify that none has too many rights.
	db := pgtest.NewDurable(t).DB
	super := connect(t, db.SuperDSN)
	for name, groups := range map[string]string{"both_roles": "ledgerd_app, ledgerd_admin",
		"owning_admin": "ledgerd_admin, ledgerd_owner", "writing_admin": "ledgerd_admin, pg_write_all_data"} {
		do(t, super, fmt.Sprintf("create role %s login password '%[1]s' in role %s", name, groups))
	}
	as := func(role string) string {
		c, err := pgx.ParseConfig(db.SuperDSN)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=%[4]s sslmode=disable",
			c.Host, c.Port, db.Name, role)
	}
	for name, c := range map[string]struct {
		dsn         string
		admin, serv error
	}{
		"its own":       {db.AdminDSN, nil, pg.ErrExcessRights},
		"the service's": {db.AppDSN, pg.ErrAdminExcessRights, nil},
		"superuser":     {db.SuperDSN, pg.ErrAdminExcessRights, pg.ErrExcessRights},
		"both roles":    {as("both_roles"), pg.ErrAdminExcessRights, pg.ErrExcessRights},
		"owner":         {as("owning_admin"), pg.ErrAdminExcessRights, pg.ErrExcessRights},
		"all data":      {as("writing_admin"), pg.ErrAdminExcessRights, pg.ErrExcessRights},
	} {
		pool := pgtest.Pool(t, c.dsn)
		if err := pg.CheckAdminRole(t.Context(), pool); !errors.Is(err, c.admin) {
			t.Errorf("%s: administration: %v", name, err)
		}
		if err := pg.CheckRole(t.Context(), pool); !errors.Is(err, c.serv) {
			t.Errorf("%s: service: %v", name, err)
		}
	}
}
