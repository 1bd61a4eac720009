package db_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/ledgerd/ledgerd/db/migrations"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// escapes are statements that create temporary objects, which shadow names used in a function of the owner. Each of
// them calls pg_temp.escape.
var escapes = map[string]string{
	"a view in the place of a system table": `
		create view pg_temp.pg_inherits as select * from pg_catalog.pg_inherits where pg_temp.escape(true);
		grant select on pg_temp.pg_inherits to public`,
	"a domain in the place of a type": `
		create domain pg_temp.date as pg_catalog.date check (pg_temp.escape(true))`,
	"a view in the place of a table": `
		create view pg_temp.lock_locks as select * from public.lock_locks where pg_temp.escape(true);
		grant select on pg_temp.lock_locks to public`,
}

func TestServiceCannotRunItsOwnCodeAsTheOwner(t *testing.T) {
	t.Parallel()
	for name, escape := range escapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			super := connect(t, db.SuperDSN)
			// The first protection is the missing privilege on the database. This test removes it to test the second
			// one.
			do(t, super, "grant temporary on database "+pgx.Identifier{db.Name}.Sanitize()+" to ledgerd_app")
			do(t, super, "grant execute on function lock_check to ledgerd_app")
			conn := connect(t, db.AllDSN)
			do(t, conn, `create function pg_temp.escape(boolean) returns boolean language plpgsql as $$
				begin
					if current_user = 'ledgerd_owner' then
						alter table public.commit_batches disable trigger all;
					end if;
					return true;
				end $$`)
			do(t, conn, escape)
			do(t, conn, "select notify_keep_partitions()")
			_, _ = conn.Exec(t.Context(), "select lock_check(1, 'none', 1)") // LF002: the lock is not held
			for _, guard := range lines(t, super, `select tgname::text from pg_trigger
				where tgrelid = 'commit_batches'::regclass and tgenabled = 'D'`) {
				t.Errorf("ledgerd_app has disabled %s", guard)
			}
		})
	}
}

func TestFunctionsOfTheOwnerSearchTemporaryObjectsLast(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	const functions = `from pg_proc p join pg_language l on l.oid = p.prolang
		where p.pronamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
			and (p.prosecdef or l.lanname <> 'sql')`
	if n := len(lines(t, conn, "select proname::text "+functions+" and prosecdef")); n < 2 {
		t.Fatalf("only %d are SECURITY DEFINER", n)
	}
	for _, f := range lines(t, conn, "select p.oid::regprocedure::text "+functions+`
		and not exists (select from unnest(p.proconfig) c where c ~ '^search_path=.*, pg_temp$')`) {
		t.Errorf("%s: its search_path does not end with pg_temp", f)
	}
	for _, f := range lines(t, conn, "select p.oid::regprocedure::text "+functions+`
		and p.prosecdef and p.proowner <> 'ledgerd_owner'::regrole`) {
		t.Errorf("%s: SECURITY DEFINER, and not of ledgerd_owner", f)
	}
	for _, f := range lines(t, conn, "select p.oid::regprocedure::text "+functions+` and p.prosecdef
		and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)`) {
		t.Errorf("%s: SECURITY DEFINER, and PUBLIC may run it", f)
	}
}

func TestOnlyTheOwnerCreatesObjects(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.SuperDSN)
	// A new database with default privileges, and a public schema as before Postgres 15. Copies have no
	// privileges, so the migrations must run in it.
	do(t, conn, "grant temporary on database "+pgx.Identifier{db.Name}.Sanitize()+" to public")
	do(t, conn, "grant create on schema public to public")
	pool, err := sql.Open("pgx", db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"ledgerd_app", "ledgerd_admin", "ledgerd_audit", "ledgerd_test_app",
		"ledgerd_test_admin"} {
		for _, right := range lines(t, conn, `
			select what from unnest(array['temporary', 'create']) what
			where has_database_privilege($1, current_database(), what)
			union all
			select 'create in schema ' || nspname from pg_namespace
			where has_schema_privilege($1, oid, 'create')`, role) {
			t.Errorf("%s may %s", role, right)
		}
	}
	refused(t, connect(t, db.AllDSN), "create temporary table mine ()", noPrivilege, "")
}
