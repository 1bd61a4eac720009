package main

import (
	"bytes"
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// command runs a subcommand in this process.
func command(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), args, &out, &errOut)
	return code, out.String() + errOut.String()
}

// emptyDatabase creates a database without a schema, and returns the DSNs of the superuser and of the service.
func emptyDatabase(t *testing.T) (super, app string) {
	t.Helper()
	db := pgtest.New(t)
	name := db.Name + "_empty"
	execute(t, db.SuperDSN, "create database "+name)
	t.Cleanup(func() { execute(t, db.SuperDSN, "drop database "+name+" with (force)") })
	return strings.ReplaceAll(db.SuperDSN, db.Name, name), strings.ReplaceAll(db.AppDSN, db.Name, name)
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// subcommands that need a database with a schema.
var subcommands = [][]string{
	{"serve", "--listen", "127.0.0.1:0"},
	{"verify"},
	{"apikey", "list", "--tenant", "acme"},
	{"apikey", "create", "--tenant", "acme", "--principal", "orders"},
	{"policy", "list", "--tenant", "acme"},
	{"limit", "list", "--tenant", "acme"},
	{"notify", "drop-proofs", "--months", "24"},
}

func on(args []string, dsn string) []string { return append(slices.Clone(args), "--database-url", dsn) }

func TestDatabasesWithoutASchemaAreRefused(t *testing.T) {
	t.Parallel()
	super, app := emptyDatabase(t)
	for _, args := range subcommands {
		if code, said := command(t, on(args, app)...); code != 1 ||
			!strings.Contains(said, "the database has no schema: run `ledgerd migrate`") {
			t.Errorf("%v: %d %s", args, code, said)
		}
	}
	if code, said := command(t, "migrate", "--database-url", super); code != 0 {
		t.Fatal(said)
	}
	execute(t, super, "delete from goose_db_version where version_id = (select max(version_id) from goose_db_version)")
	for _, args := range subcommands {
		if code, said := command(t, on(args, app)...); code != 1 ||
			!strings.Contains(said, "the database lacks the migrations [") {
			t.Errorf("%v: %d %s", args, code, said)
		}
	}
}

// A database that a newer ledgerd migrated, or one of a snapshot whose migrations had other numbers.
func TestDatabasesWithUnknownMigrationsAreRefused(t *testing.T) {
	t.Parallel()
	const newer = "install the ledgerd that migrated it, or a newer one"
	for name, c := range map[string]struct{ sql, want string }{
		"newer": {"insert into goose_db_version (version_id, is_applied) values (9999, true)", newer},
		"a snapshot's, by its numbers": {`delete from goose_db_version;
			insert into goose_db_version (version_id, is_applied) select n, true from generate_series(0, 99) n`, newer},
		"a snapshot's, when its numbers are used again": {"create schema notify_parts", "create a new database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			execute(t, db.SuperDSN, c.sql)
			dev := []string{"dev", "--listen", "127.0.0.1:0", "--dir", filepath.Join(t.TempDir(), "data")}
			for _, args := range append([][]string{{"migrate"}, dev}, subcommands...) {
				if code, said := command(t, on(args, db.SuperDSN)...); code != 1 ||
					!strings.Contains(said, "the database has a migration that this ledgerd does not know: ") ||
					!strings.Contains(said, c.want) {
					t.Errorf("%v: %d %s", args, code, said)
				}
			}
		})
	}
}

func TestMigrateNamesTheRightsThatItLacks(t *testing.T) {
	t.Parallel()
	super, app := emptyDatabase(t)
	config, err := pgx.ParseConfig(app)
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(wants ...string) {
		t.Helper()
		code, said := command(t, "migrate", "--database-url", app)
		_, missing, found := strings.Cut(said, "the role cannot migrate the database: it lacks ")
		if code != 1 || !found || strings.TrimSpace(missing) != strings.Join(wants, ", ") {
			t.Errorf("%d %s, want %v", code, said, wants)
		}
	}
	// Roles belong to the whole cluster, where they exist already.
	refuse("CREATE on database "+config.Database, "CREATE WITH GRANT OPTION on schema public",
		"membership in ledgerd_owner")
	execute(t, super, "grant create on database "+config.Database+" to public")
	refuse("CREATE WITH GRANT OPTION on schema public", "membership in ledgerd_owner")

	if code, said := command(t, "migrate", "--database-url", super); code != 0 {
		t.Fatal(said)
	}
	if code, said := command(t, "migrate", "--database-url", app); code != 0 {
		t.Errorf("without pending migrations: %d %s", code, said)
	}
	execute(t, super, "delete from goose_db_version where version_id = (select max(version_id) from goose_db_version)")
	refuse("membership in ledgerd_owner", "INSERT on table goose_db_version")
	// The last migration can be undone, and applied again, by another member.
	execute(t, super, "insert into goose_db_version (version_id, is_applied) select max(version_id) + 1, true "+
		"from goose_db_version")
	member := "member_" + config.Database
	execute(t, super, "create role "+member+" login in role ledgerd_owner")
	t.Cleanup(func() { execute(t, super, "drop role "+member) })
	own := strings.Replace(app, config.User, member, 1)
	if code, said := command(t, "migrate", "--database-url", own); code != 0 {
		t.Errorf("a member of ledgerd_owner: %d %s", code, said)
	}
	execute(t, super, "delete from goose_db_version where version_id = (select max(version_id) from goose_db_version)")
	if code, said := command(t, "migrate", "--database-url", own); code != 1 ||
		!strings.Contains(said, "already exists") {
		t.Errorf("a member of ledgerd_owner begins to migrate: %d %s", code, said)
	}
}

func TestVerifyNamesDisabledGuards(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verify := on([]string{"verify"}, db.AppDSN)
	code, said := command(t, verify...)
	if code != 0 || !strings.Contains(said, "\nno violations\n") ||
		!strings.Contains(said, " objects of the schema compared in ") ||
		!strings.Contains(said, "\nroles that can change or disable guards: ") {
		t.Errorf("%d %s", code, said)
	}
	execute(t, db.SuperDSN, "alter table ledger_entries disable trigger ledger_entries_append_only")
	code, said = command(t, verify...)
	if code != 1 || !strings.Contains(said, `schema_matches: kind=trigger object="ledger_entries_append_only on `+
		`ledger_entries" definition=`) ||
		!strings.Contains(said, "\nschema_matches: 1 violations\n") ||
		!strings.Contains(said, "the database violates 1 checks") {
		t.Errorf("%d %s", code, said)
	}
}

func TestVerifyNamesTheRoleThatItNeeds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db.SuperDSN, "revoke select on ledger_accounts from ledgerd_app")
	for _, refused := range []string{"ledger_accounts", "goose_db_version"} {
		code, said := command(t, on([]string{"verify"}, db.AppDSN)...)
		if code != 1 || !strings.Contains(said, "permission denied for table "+refused) ||
			!strings.Contains(said, "ledgerd_audit") {
			t.Errorf("%d %s", code, said)
		}
		execute(t, db.SuperDSN, "revoke select on goose_db_version "+
			"from public, ledgerd_app, ledgerd_admin, ledgerd_audit")
	}
}

func TestVersionNamesTheProgramAndItsCompiler(t *testing.T) {
	t.Parallel()
	if out := build(t).must("--version"); !strings.HasPrefix(out, "ledgerd ") ||
		!strings.HasSuffix(out, " "+runtime.Version()) {
		t.Error(out)
	}
}
