package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// account is the OS user that runs Postgres: the current user or, because Postgres refuses to run as root, an
// unprivileged one.
type account struct {
	name     string
	uid, gid int
	drop     bool
}

func serverAccount(dir string) (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "this user", uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	// An existing cluster keeps its owner: a system package may create the postgres user after the cluster was
	// created as nobody.
	for _, major := range dataMajors(dir) {
		info, err := os.Stat(filepath.Join(dir, fmt.Sprintf("data-%d", major)))
		if err != nil {
			return account{}, err
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 {
			return account{name: "uid " + strconv.Itoa(int(st.Uid)), uid: int(st.Uid), gid: int(st.Gid), drop: true},
				nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if err = errors.Join(errUID, errGID); err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{name: "user " + name, uid: uid, gid: gid, drop: true}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root and there is neither a user " +
		"\"postgres\" nor \"nobody\" to run it as: create one, or run as an ordinary user")
}

// canReach returns an error naming the first directory on the path that the account may not enter.
func (a account) canReach(path string) error {
	if !a.drop {
		return nil
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		st, bit := info.Sys().(*syscall.Stat_t), os.FileMode(0o001)
		if int(st.Uid) == a.uid {
			bit = 0o100
		} else if int(st.Gid) == a.gid {
			bit = 0o010
		}
		if info.Mode()&bit == 0 {
			return fmt.Errorf("PostgreSQL runs as %s, which may not pass through %s: "+
				"choose a directory elsewhere, such as /var/lib/ledgerd, or chmod o+x it", a.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// own changes the owner of a path to the account.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// command prepares a Postgres program to run under the account, with a clean environment: an inherited PGPORT,
// PGDATA or locale would change its behaviour.
func (a account) command(home, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	if lib, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib)
	}
	cmd.SysProcAttr = childAttributes()
	if a.drop {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}

// combinedOutput runs a short-lived command. When the context ends, the command is interrupted rather than
// killed, so that initdb removes its unfinished cluster.
func combinedOutput(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second // children of a killed command may keep the pipe open
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGINT) })
	defer stop()
	err := cmd.Wait()
	return out.Bytes(), errors.Join(err, ctx.Err())
}
