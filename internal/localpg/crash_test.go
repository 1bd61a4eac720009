package localpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestKilledPostmasterRecovers(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	first := start(t, Options{Dir: dir, Durable: true})
	execute(t, first.DSN(Superuser, "postgres"), storeSQL)
	first.Kill()

	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
}

func TestOwnerNoticesThatPostgresDied(t *testing.T) {
	t.Parallel()
	srv := start(t, Options{Dir: shortDir(t)})
	if err := syscall.Kill(srv.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-srv.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("Done is not closed")
	}
	expectError(t, srv.Err(), "killed")
	expectError(t, srv.Stop(), "had already ended", "killed")
}

// startChild runs a server in another process and stores a row in it.
func startChild(t *testing.T, dir string) (parent *exec.Cmd, postmaster int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // a surviving child stops its server
		_ = cmd.Wait()
	})
	var dsn string
	if _, err := fmt.Fscan(stdout, &postmaster, &dsn); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	execute(t, dsn, storeSQL)
	return cmd, postmaster
}

func TestKillingTheParentEndsPostgres(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	parent, postmaster := startChild(t, dir)
	_, err := Start(testContext(t), Options{Dir: dir})
	expectError(t, err, "in use by another run", strconv.Itoa(parent.Process.Pid))

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" { // on other systems only the next start ends it
		dataDir := filepath.Join(dir, fmt.Sprintf("data-%d", dataMajors(dir)[0]))
		ended, err := waitUntil(testContext(t), 30*time.Second,
			func() bool { return !isPostmaster(postmaster, dataDir) })
		if !ended || err != nil {
			t.Fatalf("postgres %d outlived its parent (%v)", postmaster, err)
		}
	}
	waitForLock(t, dir)
	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
}

func TestKilledParentIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	parent, _ := startChild(t, dir)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waitForLock(t, dir)
	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
}

func TestKilledParentAndPostmaster(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	parent, postmaster := startChild(t, dir)
	for _, pid := range []int{parent.Process.Pid, postmaster} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	waitForLock(t, dir)
	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
}

// waitForLock waits until the kernel has released a killed owner's lock.
func waitForLock(t *testing.T, dir string) {
	t.Helper()
	free, err := waitUntil(testContext(t), 10*time.Second, func() bool {
		lock, err := lockDir(dir)
		if err == nil {
			lock.release()
		}
		return err == nil
	})
	if !free || err != nil {
		t.Fatalf("the directory stays locked (%v)", err)
	}
}

// crashedWithPid leaves the directory as after a crash, with pid files that name another process of the same
// account.
func crashedWithPid(t *testing.T, dir string, pid func(*Server) int) {
	t.Helper()
	srv := start(t, Options{Dir: dir, Durable: true})
	execute(t, srv.DSN(Superuser, "postgres"), storeSQL)
	path := filepath.Join(srv.DataDir(), "postmaster.pid")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	srv.Kill()
	_, rest, _ := strings.Cut(string(text), "\n")
	text = []byte(strconv.Itoa(pid(srv)) + "\n" + rest)
	for _, file := range []string{path, filepath.Join(srv.sockDir, ".s.PGSQL.5432.lock")} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// bystander is an unrelated process of Postgres' account.
func bystander(t *testing.T, srv *Server) *exec.Cmd {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no sleep program")
	}
	cmd := srv.account.command("/", sleep, "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cmd.SysProcAttr.Credential} // without the parent death signal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestReusedPidDoesNotBlockTheStart(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	var other *exec.Cmd
	crashedWithPid(t, dir, func(srv *Server) int {
		other = bystander(t, srv)
		return other.Process.Pid
	})
	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
	if state, _ := inspect(other.Process.Pid); state != processRuns {
		t.Error("the unrelated process was killed")
	}
}

func TestZombiePostmasterDoesNotBlockTheStart(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	crashedWithPid(t, dir, func(srv *Server) int {
		pid := bystander(t, srv).Process.Pid
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // and no parent reaps it yet
			t.Fatal(err)
		}
		dead, err := waitUntil(testContext(t), 10*time.Second, func() bool {
			state, _ := inspect(pid)
			return state == processZombie
		})
		if !dead || err != nil {
			t.Fatalf("%d is not a zombie (%v)", pid, err)
		}
		return pid
	})
	expectKept(t, start(t, Options{Dir: dir, Durable: true}))
}

func TestIncompleteClusterIsRecreated(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	b, err := findBinaries(testContext(t), account{}, nil, newLogTail(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	leftover := filepath.Join(dir, fmt.Sprintf("data-%d.tmp1", b.major))
	if err := os.MkdirAll(filepath.Join(leftover, "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, Options{Dir: dir, Durable: true})
	if _, err := os.Stat(leftover); err == nil {
		t.Error("the remains of a killed initdb are still there")
	}
}
