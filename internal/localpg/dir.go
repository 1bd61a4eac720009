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

// DefaultDir is where a server lives when nobody says otherwise: a place that
// survives reboots and, for root, one which other accounts can pass through.
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

// Remove deletes a directory with everything in it, and ends a server that has
// lost its owner. It refuses while a run owns the directory.
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

// RemoveAbandoned deletes the directories that match a pattern of filepath.Glob and were this user's, whose runs were
// killed and had begun so long ago: their locks are gone with them. What cannot be removed stays.
func RemoveAbandoned(pattern string, begun time.Duration) {
	dirs, _ := filepath.Glob(pattern)
	for _, dir := range dirs {
		info, err := os.Lstat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(info.ModTime()) < begun {
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) == os.Geteuid() {
			_ = Remove(dir) // in use after all, or somebody was faster
		}
	}
}

// dirLock is the claim to a directory. The kernel drops it with the process, so
// it can never be stale, unlike any pid file.
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
	// The pid only helps whoever reads the error above; the flock alone counts.
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write the lock: %w", err)
	}
	return &dirLock{file: f}, nil
}

// release unlocks first: closing alone leaves the lock with a child which another
// goroutine has forked and which has not come to exec yet.
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

// ensureCluster runs initdb if there is no data directory. It works beside the
// final name and renames, so a data directory that exists is always complete.
func (s *Server) ensureCluster(ctx context.Context) error {
	if _, err := os.Stat(s.dataDir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A killed initdb may still be writing, hence new names instead of reuse.
	stale, _ := filepath.Glob(s.dataDir + ".tmp*")
	for _, dir := range stale {
		_ = os.RemoveAll(dir) // only disk space is at stake
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
	// The same rule as in launch: the thread which forks stays until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := combinedOutput(ctx, cmd)
	if err != nil {
		return fmt.Errorf("initdb: %w; it said:\n%s", err, out)
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

// plainPath holds nothing that needs quoting in a DSN or in a list of directories.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._+-]+$`)

// socketDir makes the private directory for the socket: <dir>/run, or a short
// one in /tmp when the path is more than a socket address can hold. Call it once
// old postmasters are gone.
func socketDir(dir, port string, a account) (string, error) {
	run := filepath.Join(dir, "run")
	if len(filepath.Join(run, ".s.PGSQL."+port)) > maxSocketPath || !plainPath.MatchString(run) {
		// Always the same name for the same directory: killed runs leave one, not many.
		run = fmt.Sprintf("/tmp/ledgerd-%d-%.8x", a.uid, sha256.Sum256([]byte(dir)))
	}
	if err := os.Mkdir(run, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// /tmp belongs to everybody: what is there already may be somebody's trap.
	info, err := os.Lstat(run)
	if err != nil {
		return "", err
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || (uid != a.uid && uid != os.Geteuid()) {
		return "", fmt.Errorf("%s is not a private directory of %s: remove it", run, a.name)
	}
	// A killed postmaster leaves a lock beside the socket, with the same trouble
	// as with its pid file: a zombie or a reused pid would make Postgres refuse.
	stale, _ := filepath.Glob(filepath.Join(run, ".s.PGSQL.*"))
	for _, file := range stale {
		if err := os.Remove(file); err != nil {
			return "", err
		}
	}
	return run, a.own(run)
}
