package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BinEnv is the environment variable for Postgres' bin directory.
const BinEnv = "LEDGERD_PG_BIN"

// minMajor is the oldest supported major version.
const minMajor = 15

// wellKnownBins are installation directories of packages, which may not be in PATH.
var wellKnownBins = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // the PostgreSQL project's RPMs
	"/usr/libexec/postgresql*",                           // Alpine
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew, Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew, Linux
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/Library/PostgreSQL/*/bin",                          // the EDB installer
}

// binaries is a directory with the initdb and postgres programs of one version.
type binaries struct {
	dir          string
	version      string
	major, minor int
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// findBinaries selects the Postgres to run: the one named by LEDGERD_PG_BIN, else one that fits the existing
// data, else the newest installed one, else a pinned download. Data of a version that is not installed is an
// error: starting an empty cluster beside it would look like data loss.
func findBinaries(ctx context.Context, a account, data []int, log *logTail) (binaries, error) {
	if dir := os.Getenv(BinEnv); dir != "" {
		b, err := inspectBin(ctx, dir, a)
		if err != nil {
			return b, fmt.Errorf("%s=%s: %w", BinEnv, dir, err)
		}
		return b, nil
	}
	found, rejected := systemBinaries(ctx, a)
	if ctx.Err() != nil { // candidates may have been rejected because the context ended
		return binaries{}, ctx.Err()
	}
	for _, major := range data {
		for _, b := range found {
			if b.major == major {
				return b, nil
			}
		}
		if major == npmMajor {
			return npmBinaries(ctx, a, log)
		}
	}
	if len(data) > 0 {
		return binaries{}, fmt.Errorf("the directory holds data of PostgreSQL %d, which is not installed (found: %s): "+
			"install that version, or move data-%d away to start with an empty database", data[0], describe(found),
			data[0])
	}
	if len(found) > 0 {
		return found[0], nil
	}
	b, err := npmBinaries(ctx, a, log)
	if err != nil {
		return b, errors.Join(fmt.Errorf("no PostgreSQL %d or later: install one (`apt-get install postgresql`, "+
			"`brew install postgresql@17`, `apk add postgresql`) or set %s to its bin directory", minMajor, BinEnv),
			rejected, fmt.Errorf("download: %w", err))
	}
	return b, nil
}

// systemBinaries returns the installed versions, newest first, and why other candidates were rejected.
func systemBinaries(ctx context.Context, a account) ([]binaries, error) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range wellKnownBins {
		matches, _ := filepath.Glob(pattern)
		dirs = append(dirs, matches...)
	}
	var (
		found    []binaries
		rejected []error
		seen     = map[string]bool{}
	)
	for _, dir := range dirs {
		if dir == "" || !isFile(filepath.Join(dir, "postgres")) {
			continue
		}
		if dir = resolveBin(dir); seen[dir] {
			continue
		}
		seen[dir] = true
		b, err := inspectBin(ctx, dir, a)
		if err != nil {
			rejected = append(rejected, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		found = append(found, b)
	}
	slices.SortStableFunc(found, func(x, y binaries) int {
		return cmp.Or(cmp.Compare(y.major, x.major), cmp.Compare(y.minor, x.minor))
	})
	return found, errors.Join(rejected...)
}

// resolveBin follows symbolic links, such as /usr/local/bin/postgres, to the installation directory, which has
// Postgres' libraries and initdb's input files.
func resolveBin(dir string) string {
	target, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err == nil && isFile(filepath.Join(filepath.Dir(target), "initdb")) {
		return filepath.Dir(target)
	}
	return dir
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)(?:\.([0-9]+))?`)

// inspectBin checks a directory by its contents, not by its name.
func inspectBin(ctx context.Context, dir string, a account) (binaries, error) {
	b := binaries{dir: resolveBin(dir)}
	for _, program := range []string{"initdb", "postgres"} {
		if !isFile(b.path(program)) {
			return b, fmt.Errorf("has no %s", program)
		}
	}
	if err := a.canReach(b.dir); err != nil {
		return b, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, b.path("postgres"), "--version").CombinedOutput()
	if err != nil {
		return b, fmt.Errorf("postgres --version: %w: %s", err, strings.TrimSpace(string(out)))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return b, fmt.Errorf("postgres --version says %q", strings.TrimSpace(string(out)))
	}
	b.major, _ = strconv.Atoi(string(m[1]))
	b.minor, _ = strconv.Atoi(string(m[2])) // absent in a beta version
	b.version = fmt.Sprintf("%d.%d", b.major, b.minor)
	if b.major < minMajor {
		return b, fmt.Errorf("is PostgreSQL %s, too old (%d or later is needed)", b.version, minMajor)
	}
	return b, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func describe(found []binaries) string {
	if len(found) == 0 {
		return "none on this " + runtime.GOOS + " machine"
	}
	var versions []string
	for _, b := range found {
		versions = append(versions, b.version)
	}
	return strings.Join(versions, ", ")
}
