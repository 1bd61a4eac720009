// Package pgtest gives every test a database of its own on a real PostgreSQL.
//
// The databases are copies of a template that has all migrations, so one costs
// about 20 ms and tests run in parallel, also those of other packages' processes.
// Copies of successful tests are dropped, after the invariants in db/checks have
// been verified in them; those of failed tests stay for a look.
//
// The server is the one LEDGERD_TEST_DSN names (`make test` starts it once for
// all packages), else one which this process starts when the first test asks.
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

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// patience bounds each step of making and dropping a database.
const patience = 2 * time.Minute

// DB is a test's own database with all migrations and no rows but theirs.
type DB struct {
	// Name of the database.
	Name string
	// SuperDSN logs in as a superuser, for looking and breaking.
	SuperDSN string
	// AppDSN logs in with the rights of the service and no more.
	AppDSN string

	cluster   *cluster
	unchecked bool // see SkipChecks
}

// Main is for TestMain: it runs the tests and stops the server they started, if any.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New makes a database for the test, which fails at its end if a row breaks one
// of db/checks.
func New(t testing.TB) *DB {
	t.Helper()
	c, err := shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.newDB(t)
}

// poolSize leaves room on the server for all the tests that run at once.
const poolSize = 8

// Pool connects to one of the DSNs, as the service does, until the test ends.
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

func (c *cluster) newDB(t testing.TB) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	template, err := c.template(ctx)
	if err != nil {
		t.Fatalf("pgtest: prepare the template: %v", err)
	}
	db := &DB{Name: databaseName(t.Name()), cluster: c}
	db.SuperDSN = withDatabase(c.dsn, db.Name)
	db.AppDSN = withUser(db.SuperDSN, appRole, appPassword)
	name := pgx.Identifier{db.Name}.Sanitize()
	if err = c.execute(ctx,
		"CREATE DATABASE "+name+" TEMPLATE "+pgx.Identifier{template}.Sanitize()+" STRATEGY file_copy",
		// As the migrations do: a copy has no privileges of its own.
		"REVOKE TEMPORARY ON DATABASE "+name+" FROM PUBLIC"); err != nil {
		t.Fatalf("pgtest: copy the template: %v", err)
	}
	t.Cleanup(func() { db.finish(t) })
	return db
}

// databaseName is unique, and tells in pg_stat_activity which test is at work.
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

// finish verifies the invariants and drops the database, or keeps it when the
// test has failed.
func (db *DB) finish(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !db.unchecked {
		violations, err := runChecks(ctx, db.SuperDSN, checks.FS)
		if err != nil {
			t.Errorf("pgtest: %v", err)
		}
		for _, v := range violations {
			t.Error(v)
		}
	}
	if t.Failed() {
		t.Logf("the database stays for a look: psql '%s'%s", db.SuperDSN, db.cluster.keepHint(t.Name()))
		return
	}
	// A test may leave connections open; they are not worth failing for.
	if err := db.cluster.execute(ctx, "DROP DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" WITH (FORCE)"); err != nil {
		t.Errorf("pgtest: drop the database: %v", err)
	}
}

// Touched counts the table and index blocks of the tables whose names match a regular expression that were read or
// found in memory, as the statistics tell, with what the last statement of each pool has not yet told.
func Touched(t testing.TB, tables string, super *pgxpool.Pool, pools ...*pgxpool.Pool) (blocks int64) {
	t.Helper()
	for _, pool := range append(pools, super) {
		if _, err := pool.Exec(context.Background(), "select pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
	}
	err := super.QueryRow(context.Background(), `select coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)), 0)::bigint
		from pg_statio_user_tables where relname ~ $1`, tables).Scan(&blocks)
	if err != nil {
		t.Fatal(err)
	}
	return blocks
}

// TouchedAtRest counts the blocks that something touches when what was deleted before is vacuumed away. Somebody's
// snapshot may keep that for a moment: it tries again, for some seconds, while it is more than most.
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
