package localpg

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestOrdinaryUser runs the other tests again without root privileges.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not running as root")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skipf("no account to run as: %v", err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	home := shortDir(t)
	if err := os.Chown(home, uid, gid); err != nil {
		t.Fatal(err)
	}
	// go test builds the binary in a directory that only the current user can enter.
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(home, "localpg.test")
	// Not by this process: a program that another test starts meanwhile would inherit the file, open for writing.
	if text, err := exec.CommandContext(t.Context(), "cp", exe, binary).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.v",
		"-test.run=^(TestRestart|TestSecondRun|TestKilled|TestReused|TestTCP|TestSocket)")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "GOCOVERDIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
}

func TestClosedParentDirectoryIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's Postgres runs under another account")
	}
	closed := filepath.Join(shortDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(testContext(t), Options{Dir: filepath.Join(closed, "state")})
	expectError(t, err, "may not pass through "+closed)
}

func TestClusterKeepsItsOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root selects an account")
	}
	dir := shortDir(t)
	first := start(t, Options{Dir: dir})
	stop(t, first)
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skipf("no second account: %v", err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	chown := func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	}
	if err := filepath.WalkDir(first.DataDir(), chown); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(first.sockDir, chown); err != nil {
		t.Fatal(err)
	}
	if second := start(t, Options{Dir: dir}); second.account.uid != uid {
		t.Errorf("runs as %s", second.account.name)
	}
}

func TestDefaultDirFollowsTheUser(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/somewhere/state")
	got, err := DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	want := "/somewhere/state/ledgerd"
	if os.Geteuid() == 0 {
		want = "/var/lib/ledgerd"
	}
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
