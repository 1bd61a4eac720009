package db_test

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver that goose runs on
	"github.com/pressly/goose/v3"

	"github.com/ledgerd/ledgerd/db/migrations"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// goose_db_version belongs to goose, which creates it before the first migration.
const ours = " not in ('goose_db_version', 'goose_db_version_pkey') "

func TestEverythingHasAComment(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	for _, name := range lines(t, conn, `
		select 'schema ' || nspname from pg_namespace where nspname in ('public', 'audit')
		and obj_description(oid, 'pg_namespace') is null
		union all
		select 'relation ' || oid::regclass from pg_class
		where relnamespace in ('public'::regnamespace, 'audit'::regnamespace) and relkind in ('r', 'v', 'm', 'p', 'f')
			and not relispartition and obj_description(oid, 'pg_class') is null and relname `+ours+`
		union all
		select 'column ' || attrelid::regclass || '.' || attname from pg_attribute a
		join pg_class c on c.oid = a.attrelid
		where relnamespace in ('public'::regnamespace, 'audit'::regnamespace) and relkind in ('r', 'v', 'm', 'p', 'f')
			and attnum > 0 and not attisdropped and not relispartition
			and col_description(attrelid, attnum) is null and relname `+ours+`
		union all
		select 'function ' || oid::regprocedure from pg_proc
		where pronamespace in ('public'::regnamespace, 'audit'::regnamespace)
			and obj_description(oid, 'pg_proc') is null`) {
		t.Errorf("%s has no comment", name)
	}
}

func TestConstraintsAndIndexesAreNamedByConvention(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	// Kind of a constraint or index, its table, its name.
	all := lines(t, conn, `
		select contype::text || ' ' || relname || ' ' || conname from pg_constraint join pg_class c on c.oid = conrelid
		where connamespace = 'public'::regnamespace and contype in ('c', 'f', 'p', 'u', 'x') and not relispartition
		and relname `+ours+`
		union all
		select case when indisunique then 'u ' else 'i ' end || t.relname || ' ' || i.relname
		from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class t on t.oid = x.indrelid
		where i.relnamespace = 'public'::regnamespace and not t.relispartition and t.relname `+ours+`
			and not exists (select from pg_constraint where conindid = x.indexrelid and contype in ('p', 'u', 'x'))`)
	if len(all) < 40 {
		t.Fatalf("only %d found", len(all))
	}
	endings := map[string]string{"c": "_[a-z0-9_]+_check", "f": "_[a-z0-9_]+_fkey", "p": "_pkey",
		"u": "_[a-z0-9_]+_key",
		"x": "_[a-z0-9_]+_excl", "i": "_[a-z0-9_]+_idx"}
	for _, line := range all {
		f := strings.Fields(line)
		if kind, table, name := f[0], f[1],
			f[2]; !regexp.MustCompile("^" + table + endings[kind] + "$").MatchString(name) {
			t.Errorf("%s of %s does not match %s", name, table, endings[kind])
		}
	}
}

// objects are all relations, functions, triggers and constraints, except goose's.
const objects = `
	select 'relation ' || oid::regclass || ' ' || relkind::text from pg_class
	where relnamespace in (select oid from pg_namespace where nspname in ('public', 'audit'))
	and relname not like 'goose%'
		and not relispartition
	union all
	select 'function ' || oid::regprocedure from pg_proc
	where pronamespace in (select oid from pg_namespace where nspname in ('public', 'audit'))
	union all
	select 'trigger ' || tgname from pg_trigger where not tgisinternal
	union all
	select 'constraint ' || conname from pg_constraint join pg_class c on c.oid = conrelid
	where connamespace = 'public'::regnamespace and relname not like 'goose%' and not relispartition
	union all
	select 'schema ' || nspname from pg_namespace where nspname = 'audit'
	union all
	select 'grant ' || oid::regclass || ' ' || relacl::text from pg_class
	where relnamespace in (select oid from pg_namespace where nspname in ('public', 'audit')) and relacl is not null
	and relname not like 'goose%'
	order by 1`

func TestMigrationsGoDownAndUpAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	conn := connect(t, d.SuperDSN)
	before := lines(t, conn, objects)
	pool, err := sql.Open("pgx", d.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	down, err := provider.DownTo(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(down) != len(provider.ListSources()) {
		t.Errorf("%d of %d migrations were reverted", len(down), len(provider.ListSources()))
	}
	for _, left := range lines(t, conn, objects) {
		t.Errorf("down leaves %s", left)
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := lines(t, conn, objects); !slices.Equal(before, after) {
		t.Errorf("migrating up again gives\n%s\nwant\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}
