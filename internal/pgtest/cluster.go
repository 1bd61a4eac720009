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

// DSNEnv names the environment variable with a superuser's DSN of the server to use.
const DSNEnv = "LEDGERD_TEST_DSN"

const (
	dirPattern = "/tmp/ledgerd-test-*" // short, since it has to hold a socket
	// abandonedAfter is beyond go test's default limit for a package.
	abandonedAfter = time.Hour
)

// cluster is a server on which test databases are made.
type cluster struct {
	dsn    string
	server *localpg.Server // nil if it is not ours to stop

	mu           sync.Mutex
	templateName string
}

var (
	sharedMu      sync.Mutex
	sharedCluster *cluster
	errShared     error // the first failure is final: the next test would wait for the same one
)

// shared returns the server that all tests of this process use.
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
	sharedCluster = &cluster{dsn: srv.DSN(localpg.Superuser, "postgres"), server: srv}
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

// StartServer starts a server in a new temporary directory, for whoever brings a
// test database of its own. StopServer removes it.
func StartServer(ctx context.Context, opts localpg.Options) (*localpg.Server, error) {
	localpg.RemoveAbandoned(dirPattern, abandonedAfter)
	dir, err := os.MkdirTemp(filepath.Split(dirPattern))
	if err != nil {
		return nil, err
	}
	// Under root another account has to pass through.
	if err = os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	opts.Dir = dir
	if opts.Settings == nil { // packages and the tests within them run at the same time
		opts.Settings = map[string]string{"max_connections": "500"}
	}
	srv, err := localpg.Start(ctx, opts)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return srv, nil
}

// StopServer stops a server of StartServer and deletes what it held.
func StopServer(srv *localpg.Server) error {
	return errors.Join(srv.Stop(), localpg.Remove(srv.Dir()))
}

// execute runs statements outside of the test databases.
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

// keepHint says how to look into a database whose server ends with the tests.
func (c *cluster) keepHint(test string) string {
	if c.server == nil {
		return ""
	}
	top, _, _ := strings.Cut(test, "/")
	return fmt.Sprintf("\nits server ends with this run; to look inside run\n"+
		"go run ./internal/pgtest/cmd/withpg -hold -- go test -count=1 -run '^%s$' <package>", top)
}
