package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestParallelTestsHaveTheirOwnDatabase(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		names = map[string]bool{}
	)
	t.Run("group", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				db := New(t)
				pool := Pool(t, db.SuperDSN)
				// Fails in a database that another test has used.
				if _, err := pool.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
					t.Error(err)
				}
				if got := queryText(t, db.SuperDSN, "SELECT current_database()"); got != db.Name {
					t.Errorf("the DSN leads to %s, not %s", got, db.Name)
				}
				mu.Lock()
				defer mu.Unlock()
				names[db.Name] = true
			})
		}
	})
	if len(names) != 4 {
		t.Errorf("four tests had %d databases", len(names))
	}
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	for name := range names {
		left := queryText(t, c.dsn, "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'")
		if left != "0" {
			t.Errorf("%s was not dropped", name)
		}
	}
}

func TestDatabaseHasTheMigrations(t *testing.T) {
	t.Parallel()
	db := New(t)
	if got := queryText(t, db.SuperDSN, "SELECT (max(version_id) > 0)::text FROM goose_db_version"); got != "true" {
		t.Error("no migration was applied")
	}
}

func TestAppHasTheRightsOfTheServiceOnly(t *testing.T) {
	t.Parallel()
	db := New(t)
	got := queryText(t, db.AppDSN, `SELECT format('%s %s %s', current_user,
		pg_has_role('ledgerd_app', 'member'), rolsuper) FROM pg_roles WHERE rolname = current_user`)
	if got != appRole+" t f" {
		t.Errorf("got %q", got)
	}
	_, err := Pool(t, db.AllDSN).Exec(t.Context(), "CREATE TABLE mine ()")
	if err == nil {
		t.Error("the app role may create tables")
	}
}

func TestBrokenCheckIsNamed(t *testing.T) {
	t.Parallel()
	db := New(t)
	conn, err := pgx.Connect(t.Context(), db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	got, err := runChecks(t.Context(), conn, fstest.MapFS{
		"fine.sql":   {Data: []byte("SELECT 1 WHERE false")},
		"broken.sql": {Data: []byte("SELECT n AS account_id FROM generate_series(1, 7) n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !strings.Contains(got[0], "broken.sql is broken by 7 rows:\n  account_id=1\n") {
		t.Errorf("got %q", got)
	}
	if _, err = runChecks(t.Context(), conn, fstest.MapFS{"wrong.sql": {Data: []byte("SELEKT")}}); err == nil {
		t.Error("a check with a syntax error passes")
	}
}

// A test runs the checks of all tables with rows, including partitions.
func TestChecksOfUsedTablesAreRun(t *testing.T) {
	t.Parallel()
	db := New(t)
	db.SkipChecks() // the rows belong to nothing
	conn, err := pgx.Connect(t.Context(), db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	files := fstest.MapFS{"assets.sql": {Data: []byte("select from ledger_assets")},
		"events.sql": {Data: []byte("select from items join notify_events using (x)")}}
	for _, x := range []struct{ fill, want string }{
		{"select", ""},
		{`insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, at, instance)
			values (1, 1, date_trunc('month', now()), 1, 'sent', 1, now(), 'x')`, "events.sql"},
		{"insert into ledger_assets values (1, 'CNY', 2, now())", "assets.sql events.sql"},
	} {
		if _, err := conn.Exec(t.Context(), x.fill); err != nil {
			t.Fatal(err)
		}
		chosen, err := ofUsedTables(t.Context(), conn, files)
		if err != nil {
			t.Fatal(err)
		}
		names, err := fs.Glob(chosen, "*")
		if got := strings.Join(names, " "); err != nil || got != x.want {
			t.Errorf("after %s: %s, %v", x.fill, got, err)
		}
	}
}

func TestEditedMigrationsGetAnotherTemplate(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, files := range []fstest.MapFS{
		{"1.sql": {Data: []byte("a")}},
		{"1.sql": {Data: []byte("b")}},
		{"2.sql": {Data: []byte("a")}},
		{"1.sql": {Data: []byte("a")}, "2.sql": {}},
	} {
		name, err := templateName(files)
		if err != nil {
			t.Fatal(err)
		}
		seen[name] = true
	}
	if len(seen) != 4 {
		t.Errorf("four sets of migrations gave the names %v", seen)
	}
}

func TestDSNsOfBothFormsCanBeChanged(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://boss:secret@db.example:5433/postgres?sslmode=disable",
		"postgresql://boss@/postgres?host=/run/pg&port=5433&sslmode=disable",
		"host=/run/pg port=5433 user=boss password='a b' dbname=postgres",
	} {
		before, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		after, err := pgx.ParseConfig(withUser(withDatabase(dsn, "mine"), "me"))
		if err != nil {
			t.Fatal(err)
		}
		if after.Database != "mine" || after.User != "me" || after.Password != "me" ||
			after.Host != before.Host || after.Port != before.Port {
			t.Errorf("%s became %s", dsn, after.ConnString())
		}
	}
}

func TestDurableKeepsCommitsThroughACrash(t *testing.T) {
	t.Parallel()
	d := NewDurable(t)
	if got := queryText(t, d.SuperDSN, "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	conn, err := pgx.Connect(t.Context(), d.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'committed' AS v"); err != nil {
		t.Fatal(err)
	}
	d.Server.Kill()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection survived")
	}
	d.Restart(t)
	if got := queryText(t, d.SuperDSN, "SELECT v FROM kept"); got != "committed" {
		t.Errorf("got %q", got)
	}
	d.Server.Kill() // the end of the test restarts it for the checks
}

func queryText(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}
