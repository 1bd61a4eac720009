package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// programEnv makes this test binary act as the program.
const programEnv = "WITHPG_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func withpg(t *testing.T, dsn string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), programEnv+"=1", pgtest.DSNEnv+"="+dsn)
	cmd.Stderr = t.Output()
	return cmd
}

const sayDSN = `echo "$` + pgtest.DSNEnv + `"`

func TestServerLivesAsLongAsTheCommand(t *testing.T) {
	t.Parallel()
	cmd := withpg(t, "", "--", "sh", "-c", sayDSN+"; exit 7")
	out, err := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("the exit code is %d (%v)", code, err)
	}
	expectGone(t, strings.TrimSpace(string(out)))
}

func expectGone(t *testing.T, dsn string) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil || config.User != "postgres" {
		t.Fatalf("the command was given %q (%v)", dsn, err)
	}
	if _, err := pgconn.Connect(t.Context(), dsn); err == nil {
		t.Error("the server is still running")
	}
	if _, err := os.Stat(filepath.Dir(config.Host)); err == nil {
		t.Error("its directory still exists")
	}
}

func TestExistingServerIsUsed(t *testing.T) {
	t.Parallel()
	out, err := withpg(t, "already there", "--", "sh", "-c", sayDSN).Output()
	if err != nil || string(out) != "already there\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestSignalReachesTheCommand(t *testing.T) {
	t.Parallel()
	cmd := withpg(t, "", "--", "sh", "-c", sayDSN+"; exec sleep 600")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1024)
	n, err := stdout.Read(line) // the command is running
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("the exit code is %d (%v)", code, err)
	}
	expectGone(t, strings.TrimSpace(string(line[:n])))
}

func TestHeldServerEndsWithASignal(t *testing.T) {
	t.Parallel()
	cmd := withpg(t, "", "-hold", "--", "sh", "-c", sayDSN+"; exit 3")
	cmd.Stderr = nil
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1024)
	n, err := stdout.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	dsn := strings.TrimSpace(string(line[:n]))
	// Signals go to the command until this line is printed.
	held := bufio.NewScanner(stderr)
	for held.Scan() && !strings.Contains(held.Text(), "is held") {
	}
	if err := held.Err(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.Connect(t.Context(), dsn)
	if err != nil {
		t.Errorf("the server is not held: %v", err)
	} else {
		_ = conn.Close(t.Context())
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("the exit code is %d", code)
	}
	expectGone(t, dsn)
}
