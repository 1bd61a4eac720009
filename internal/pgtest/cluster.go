package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/localpg"
)

// DSNEnv is the environment variable for the superuser DSN of the server to use.
const DSNEnv = "LEDGERD_TEST_DSN"

const (
	dirName = "ledgerd-test-*"
	// abandonedAfter exceeds go test's default timeout.
	abandonedAfter = time.Hour
)

// dirParent is short, because it must hold a socket path. In memory a template is copied ten times faster than on a
// disk: half of a second less for each test.
var dirParent = sync.OnceValue(func() string {
	if memoryFree("/dev/shm") >= 8<<30 {
		return "/dev/shm"
	}
	return "/tmp"
})

// cluster is a server with test databases.
type cluster struct {
	dsn    string
	server *localpg.Server // nil if another process owns it

	mu           sync.Mutex
	templateName string
}

func newCluster(srv *localpg.Server) *cluster {
	return &cluster{dsn: srv.DSN(localpg.Superuser, "postgres"), server: srv}
}

var (
	sharedMu      sync.Mutex
	sharedCluster *cluster
	errShared     error // the first failure is final: retrying would only repeat it
)

// shared returns the server for all tests of this process.
func shared() (*cluster, error) {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if sharedCluster != nil || errShared != nil {
		return sharedCluster, errShared
	}
	if dsn := os.Getenv(DSNEnv); dsn != "" {
		sharedCluster = &cluster{dsn: dsn}
		return sharedCluster, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	srv, err := StartServer(ctx, localpg.Options{})
	if err != nil {
		errShared = err
		return nil, err
	}
	sharedCluster = newCluster(srv)
	return sharedCluster, nil
}

func stopShared() error {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if sharedCluster == nil || sharedCluster.server == nil {
		return nil
	}
	srv := sharedCluster.server
	sharedCluster, errShared = nil, errors.New("the tests are over")
	return StopServer(srv)
}

// StartServer starts a server in a new temporary directory, for tests that manage their own databases.
// StopServer removes it.
func StartServer(ctx context.Context, opts localpg.Options) (*localpg.Server, error) {
	localpg.RemoveAbandoned(filepath.Join(dirParent(), dirName), abandonedAfter)
	dir, err := newDir()
	if err != nil {
		return nil, err
	}
	opts.Dir = dir
	if opts.Settings == nil { // packages and their tests run in parallel, with many short connections
		opts.Settings = map[string]string{"max_connections": "500", "jit": "off", "shared_preload_libraries": "plpgsql"}
	}
	srv, err := localpg.Start(ctx, opts)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return srv, nil
}

// newDir makes a directory for a server.
func newDir() (string, error) {
	dir, err := os.MkdirTemp(dirParent(), dirName)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711) // under root another account must be able to enter
}

// StopServer stops a server of StartServer and deletes its directory.
func StopServer(srv *localpg.Server) error {
	return errors.Join(srv.Stop(), localpg.Remove(srv.Dir()))
}

// execute runs statements outside the test databases.
func (c *cluster) execute(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err = conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// keepHint explains how to inspect a database whose server ends with the tests.
func (c *cluster) keepHint(test string) string {
	if c.server == nil {
		return ""
	}
	top, _, _ := strings.Cut(test, "/")
	return fmt.Sprintf("\nits server ends with this run; to inspect it, run\n"+
		"go run ./internal/pgtest/cmd/withpg -hold -- go test -count=1 -run '^%s$' <package>", top)
}
