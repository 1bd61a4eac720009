package localpg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultDir is the default server directory: one that survives reboots and, for root, that other accounts can enter.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/ledgerd", nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "ledgerd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the database: %w", err)
	}
	return filepath.Join(home, ".local", "state", "ledgerd"), nil
}

// Remove deletes a directory with its contents, after stopping an orphaned server. It refuses while a run owns
// the directory.
func Remove(dir string) error {
	lock, err := lockDir(dir)
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	defer lock.release()
	if err = clearOldPostmasters(context.Background(), dir, newLogTail(nil)); err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	return os.RemoveAll(dir)
}

// RemoveAbandoned deletes this user's directories that match a filepath.Glob pattern, are at least begun old,
// and whose owners are gone. Directories that cannot be removed are skipped.
func RemoveAbandoned(pattern string, begun time.Duration) {
	dirs, _ := filepath.Glob(pattern)
	for _, dir := range dirs {
		info, err := os.Lstat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(info.ModTime()) < begun {
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) == os.Geteuid() {
			_ = Remove(dir) // in use after all, or removed concurrently
		}
	}
}

// dirLock is exclusive ownership of a directory by flock. The kernel releases the lock with the process, so
// unlike a pid file it is never stale.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("%s is in use by another run (pid %s): stop that one first or choose another directory",
			dir, strings.TrimSpace(string(holder)))
	}
	// The pid is only for the error message above; ownership rests on the flock alone.
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write the lock: %w", err)
	}
	return &dirLock{file: f}, nil
}

// release unlocks before closing: closing alone would leave the lock with a child that another goroutine has
// forked and that has not called exec yet.
func (l *dirLock) release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}

var dataDirName = regexp.MustCompile(`^data-([0-9]+)$`)

// dataMajors lists the versions for which the directory holds a cluster, newest first.
func dataMajors(dir string) []int {
	entries, _ := os.ReadDir(dir)
	var majors []int
	for _, e := range entries {
		if m := dataDirName.FindStringSubmatch(e.Name()); m != nil && e.IsDir() {
			major, _ := strconv.Atoi(m[1])
			majors = append(majors, major)
		}
	}
	slices.Sort(majors)
	slices.Reverse(majors)
	return majors
}

// ensureCluster runs initdb if there is no data directory. It creates the cluster under a temporary name and
// renames it, so an existing data directory is always complete.
func (s *Server) ensureCluster(ctx context.Context) error {
	if _, err := os.Stat(s.dataDir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A killed initdb may still be writing, so every attempt uses a new name.
	stale, _ := filepath.Glob(s.dataDir + ".tmp*")
	for _, dir := range stale {
		_ = os.RemoveAll(dir) // a failure only wastes disk space
	}
	tmp, err := os.MkdirTemp(s.opts.Dir, filepath.Base(s.dataDir)+".tmp")
	if err != nil {
		return err
	}
	if err = s.initdb(ctx, tmp); err == nil {
		err = os.Rename(tmp, s.dataDir)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
		return err
	}
	if s.opts.Durable {
		return syncDir(s.opts.Dir)
	}
	return nil
}

func (s *Server) initdb(ctx context.Context, dir string) error {
	if err := s.account.own(dir); err != nil {
		return err
	}
	args := []string{
		"-D", dir, "-U", Superuser, "-E", "UTF8", "--locale=C", "--data-checksums",
		"--auth-local=trust", "--auth-host=scram-sha-256",
	}
	if !s.opts.Durable {
		args = append(args, "--no-sync")
	}
	s.log.printf("creating a PostgreSQL %s cluster in %s", s.Version, s.dataDir)
	cmd := s.account.command(s.opts.Dir, s.bin.path("initdb"), args...)
	// As in launch: keep the forking thread alive until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := combinedOutput(ctx, cmd)
	if err != nil {
		return fmt.Errorf("initdb: %w; output:\n%s", err, out)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// plainPath matches paths that need no quoting in a DSN or a list of directories.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._+-]+$`)

// socketDir makes the private directory for the socket: <dir>/run, or a short path in /tmp if the socket
// address would be too long. Call it only when old postmasters are gone.
func socketDir(dir, port string, a account) (string, error) {
	run := filepath.Join(dir, "run")
	if len(filepath.Join(run, ".s.PGSQL."+port)) > maxSocketPath || !plainPath.MatchString(run) {
		// The name is derived from the directory, so killed runs leave one directory, not many.
		run = fmt.Sprintf("/tmp/ledgerd-%d-%.8x", a.uid, sha256.Sum256([]byte(dir)))
	}
	if err := os.Mkdir(run, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// /tmp is world-writable: an existing directory may belong to an attacker.
	info, err := os.Lstat(run)
	if err != nil {
		return "", err
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || (uid != a.uid && uid != os.Geteuid()) {
		return "", fmt.Errorf("%s is not a private directory of %s: remove it", run, a.name)
	}
	// A killed postmaster leaves a lock file beside the socket. As with its pid file, Postgres would refuse to
	// start if that pid is a zombie or was reused.
	stale, _ := filepath.Glob(filepath.Join(run, ".s.PGSQL.*"))
	for _, file := range stale {
		if err := os.Remove(file); err != nil {
			return "", err
		}
	}
	return run, a.own(run)
}
