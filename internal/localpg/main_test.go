package localpg

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childEnv makes this test binary a program that runs a server in the named directory until it is killed.
const childEnv = "LOCALPG_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		runChild(dir)
	}
	os.Exit(m.Run())
}

func runChild(dir string) {
	srv, err := Start(context.Background(), Options{Dir: dir, Durable: true, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(srv.Pid(), srv.DSN(Superuser, "postgres"))
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed, or until the parent test ends
	_ = srv.Stop()
	os.Exit(0)
}

// shortDir is a directory whose path leaves room for a socket name and which the account that runs Postgres can
// enter. t.TempDir has neither property.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ledgerd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start fails the test unless the server starts, and stops it at the end.
func start(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Log = t.Output()
	srv, err := Start(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Stop() })
	return srv
}

func stop(t *testing.T, srv *Server) {
	t.Helper()
	if err := srv.Stop(); err != nil {
		t.Fatal(err)
	}
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(testContext(t), sql); err != nil {
		t.Fatal(err)
	}
}

func queryText(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var text string
	if err := conn.QueryRow(testContext(t), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

const (
	storeSQL = "CREATE TABLE kept (v text); INSERT INTO kept VALUES ('still here')"
	fetchSQL = "SELECT v FROM kept"
)

func expectKept(t *testing.T, srv *Server) {
	t.Helper()
	if got := queryText(t, srv.DSN(Superuser, "postgres"), fetchSQL); got != "still here" {
		t.Fatalf("the table holds %q", got)
	}
}
