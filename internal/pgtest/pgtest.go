// Package pgtest gives every test its own database on a real PostgreSQL.
//
// The databases are copies of a migrated template, so one costs about 20 ms, and tests run in parallel, across
// packages too. Databases of successful tests are dropped after the invariants in db/checks were verified;
// those of failed tests are kept for inspection.
//
// The server is the one in LEDGERD_TEST_DSN (`make test` starts it once for all packages), or one that this
// process starts for its first test.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// patience bounds each step of creating and dropping a database.
const patience = 2 * time.Minute

// DB is a test's own database after all migrations.
type DB struct {
	// Name of the database.
	Name string
	// SuperDSN logs in as a superuser, for inspection and sabotage.
	SuperDSN string
	// AppDSN logs in with the rights of the server, and no more.
	AppDSN string
	// AllDSN is AppDSN with ledgerd.tenants set to all: for tests of packages, whose reads have no caller with a
	// tenant. Transactions that set their own tenants see these only.
	AllDSN string
	// AdminDSN logs in with the rights of administration, and no more.
	AdminDSN string

	cluster   *cluster
	unchecked bool // see SkipChecks
}

// Main is for TestMain: it runs the tests and stops the server if they started one.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New makes a database for the test. The test fails at its end if a row violates one of db/checks.
func New(t testing.TB) *DB {
	t.Helper()
	c, err := shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.newDB(t)
}

// Copy makes a database with the rows of another one, to which nothing may be connected.
func (db *DB) Copy(t testing.TB) *DB {
	t.Helper()
	return db.cluster.copyOf(t, db.Name)
}

// poolSize leaves connections for all tests that run in parallel.
const poolSize = 8

// Pool connects to a DSN like the server does, until the test ends.
func Pool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool, err := pg.Open(ctx, dsn, poolSize)
	if err == nil {
		err = pool.Ping(ctx)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// within runs a step of a test's set-up, which ends the test if it fails.
func within(t testing.TB, step string, do func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Fatalf("pgtest: %s: %v", step, err)
	}
}

// db names a database of the cluster.
func (c *cluster) db(name string) *DB {
	super := withDatabase(c.dsn, name)
	app := withUser(super, appRole)
	return &DB{Name: name, SuperDSN: super, AppDSN: app, AllDSN: withAllTenants(app),
		AdminDSN: withUser(super, adminRole), cluster: c}
}

func (c *cluster) newDB(t testing.TB) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	template, err := c.template(ctx)
	if err != nil {
		t.Fatalf("pgtest: prepare the template: %v", err)
	}
	return c.copyOf(t, template)
}

func (c *cluster) copyOf(t testing.TB, template string) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db := c.db(databaseName(t.Name()))
	name := pgx.Identifier{db.Name}.Sanitize()
	if err := c.execute(ctx,
		"CREATE DATABASE "+name+" TEMPLATE "+pgx.Identifier{template}.Sanitize()+" STRATEGY file_copy",
		// Privileges on a database are not copied; the migrations revoke this one.
		"REVOKE TEMPORARY ON DATABASE "+name+" FROM PUBLIC"); err != nil {
		t.Fatalf("pgtest: copy the template: %v", err)
	}
	t.Cleanup(func() { db.finish(t) })
	return db
}

// databaseName is unique, and names the test in pg_stat_activity.
func databaseName(test string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	var unique [6]byte
	_, _ = rand.Read(unique[:])
	return fmt.Sprintf("t_%.40s_%s", readable, hex.EncodeToString(unique[:]))
}

// finish verifies the invariants and drops the database, or keeps it if the test failed.
func (db *DB) finish(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !db.unchecked {
		violations, err := db.check(ctx)
		if err != nil {
			t.Errorf("pgtest: %v", err)
		}
		for _, v := range violations {
			t.Error(v)
		}
	}
	if t.Failed() {
		t.Logf("the database is kept for inspection: psql '%s'%s", db.SuperDSN, db.cluster.keepHint(t.Name()))
		return
	}
	// Connections left open by the test are no reason to fail.
	if err := db.cluster.execute(ctx, "DROP DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" WITH (FORCE)"); err != nil {
		t.Errorf("pgtest: drop the database: %v", err)
	}
}

// StopAutovacuum keeps autovacuum from the tables of a database: its ANALYZE would replan, which hides bad plans, and
// Touched would count the blocks that it reads.
func StopAutovacuum(t testing.TB, super *pgxpool.Pool) {
	t.Helper()
	if _, err := super.Exec(context.Background(), `do $$ declare r regclass; begin
		for r in select oid from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace loop
			execute format('alter table %s set (autovacuum_enabled = false)', r);
		end loop; end $$`); err != nil {
		t.Fatal(err)
	}
}

// Touched counts the table and index blocks that were read, from cache or disk, of tables whose names match a
// regular expression. It flushes the statistics of each pool first.
func Touched(t testing.TB, tables string, super *pgxpool.Pool, pools ...*pgxpool.Pool) (blocks int64) {
	t.Helper()
	for _, pool := range append(pools, super) {
		if _, err := pool.Exec(context.Background(), "select pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
	}
	err := super.QueryRow(context.Background(), `select
		coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)), 0)::bigint
		from pg_statio_user_tables where relname ~ $1`, tables).Scan(&blocks)
	if err != nil {
		t.Fatal(err)
	}
	return blocks
}

// TouchedBy counts the blocks that a call touches.
func TouchedBy(t testing.TB, tables string, super, pool *pgxpool.Pool, call func()) (blocks int64) {
	t.Helper()
	before := Touched(t, tables, super, pool)
	call()
	return Touched(t, tables, super, pool) - before
}

// TouchedAtRest counts the blocks that a function touches after vacuuming deleted rows away. Another session's
// snapshot may delay that, so it retries for some seconds while the count exceeds most.
func TouchedAtRest(t testing.TB, super *pgxpool.Pool, most int64, touched func() int64) (blocks int64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		if _, err := super.Exec(context.Background(), "vacuum"); err != nil {
			t.Fatal(err)
		}
		if blocks = touched(); blocks <= most || time.Now().After(end) {
			return blocks
		}
		<-time.After(100 * time.Millisecond)
	}
}
