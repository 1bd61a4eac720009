package localpg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), "made", "on demand")
	first := start(t, Options{Dir: dir})
	execute(t, first.DSN(Superuser, "postgres"), storeSQL)
	stop(t, first)
	if err := first.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}

	expectKept(t, start(t, Options{Dir: dir}))
}

func TestNotesReportTheStart(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for _, want := range []string{"creating a PostgreSQL", ""} { // the second start has nothing to report
		var notes []string
		stop(t, start(t, Options{Dir: dir, Notes: func(note string) { notes = append(notes, note) }}))
		got := strings.Join(notes, "\n")
		if !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("the notes are %q, want %q", got, want)
		}
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		opts Options
		want map[string]string
	}{
		"durable": {Options{Durable: true}, map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
			"max_connections": "200", "shared_buffers": "256MB", "data_checksums": "on",
		}},
		"not durable": {Options{Settings: map[string]string{"max_connections": "33", "Work_Mem": "7MB"}},
			map[string]string{
				"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
				"max_connections": "33", "work_mem": "7MB", "listen_addresses": "",
			}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opts.Dir = shortDir(t)
			srv := start(t, c.opts)
			for setting, want := range c.want {
				if got := queryText(t, srv.DSN(Superuser, "postgres"), "SHOW "+setting); got != want {
					t.Errorf("%s is %q, want %q", setting, got, want)
				}
			}
			if got := queryText(t, srv.DSN(Superuser, "postgres"), "SHOW server_version"); !strings.HasPrefix(got,
				srv.Version) {
				t.Errorf("Version is %q, the server reports %q", srv.Version, got)
			}
		})
	}
}

func TestReservedSettingIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Start(testContext(t), Options{Dir: shortDir(t), Settings: map[string]string{"Port": "5433"}})
	expectError(t, err, `setting "Port" is managed by localpg`)
}

func TestWrongSettingShowsTheErrorOfPostgres(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	_, err := Start(testContext(t), Options{Dir: dir, Settings: map[string]string{"shared_buffers": "plenty"}})
	expectError(t, err, "postgres ended while starting", "plenty")

	stop(t, start(t, Options{Dir: dir})) // the failed start unlocked the directory
}

func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	first := start(t, Options{Dir: dir})
	_, err := Start(testContext(t), Options{Dir: dir})
	expectError(t, err, "in use by another run", "stop that one first")
	if err := Remove(dir); err == nil {
		t.Error("Remove deleted a running server's directory")
	}
	if got := queryText(t, first.DSN(Superuser, "postgres"), "SELECT 'unharmed'"); got != "unharmed" {
		t.Error("the first run did not survive the attempt")
	}
	stop(t, first)
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Remove left the directory")
	}
}

func TestReleasedLockIsFreeWhileOthersFork(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	first, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	// A forked child holds a second descriptor of the same open file until its exec.
	inherited, err := syscall.Dup(int(first.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	first.release()
	second, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.release()
}

func TestDataOfAnotherVersionIsNotHidden(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "data-99"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(testContext(t), Options{Dir: dir})
	expectError(t, err, "holds data of PostgreSQL 99", "install that version")
}

func TestLongPathUsesAShortSocketDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), strings.Repeat("long/", 25))
	first := start(t, Options{Dir: dir})
	t.Cleanup(func() { _ = os.RemoveAll(first.sockDir) })
	execute(t, first.DSN(Superuser, "postgres"), storeSQL)
	stop(t, first)

	second := start(t, Options{Dir: dir})
	expectKept(t, second)
	if first.sockDir != second.sockDir {
		t.Errorf("the address changed from %s to %s", first.sockDir, second.sockDir)
	}
}

func TestSocketDirectoryIsPrivate(t *testing.T) {
	t.Parallel()
	srv := start(t, Options{Dir: shortDir(t)})
	info, err := os.Stat(srv.sockDir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestTCPNeedsThePassword(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	first := start(t, Options{Dir: dir, Listen: "127.0.0.1:0"})
	dsn := first.TCPDSN("postgres")
	execute(t, dsn, storeSQL)

	wrong := strings.Replace(dsn, first.secret, "guess", 1)
	if conn, err := pgx.Connect(testContext(t), wrong); err == nil {
		conn.Close(context.Background())
		t.Error("a wrong password was accepted")
	}
	info, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the password's mode is %v", info.Mode())
	}
	stop(t, first)

	second := start(t, Options{Dir: dir, Listen: "localhost:0"})
	if second.secret != first.secret {
		t.Error("the password changed")
	}
	if got := queryText(t, second.TCPDSN("postgres"), fetchSQL); got != "still here" {
		t.Errorf("got %q", got)
	}
}

// cancelOnLog cancels a context at the first log write.
type cancelOnLog struct{ cancel context.CancelFunc }

func (c cancelOnLog) Write(p []byte) (int, error) {
	c.cancel()
	return len(p), nil
}

func TestCancelledStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	ctx, cancel := context.WithCancel(testContext(t))
	_, err := Start(ctx, Options{Dir: dir, Log: cancelOnLog{cancel}}) // initdb's start is logged first
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "data-*")); len(left) > 0 {
		t.Errorf("initdb left %v", left)
	}

	stop(t, start(t, Options{Dir: dir}))
	ctx, cancel = context.WithCancel(testContext(t))
	srv, err := Start(ctx, Options{Dir: dir, Log: cancelOnLog{cancel}}) // now the postmaster's start is logged first
	if err == nil {
		stop(t, srv) // ready before the cancellation was noticed
	} else if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "data-*", "postmaster.pid")); len(left) > 0 {
		t.Errorf("a postmaster is still running: %v", left)
	}
}

func expectError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not contain %q: %v", part, err)
		}
	}
}
