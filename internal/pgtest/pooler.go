package pgtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler starts PgBouncer in transaction mode before the server of a DSN, and returns a URL that logs in through it. A
// test is skipped where PgBouncer is not installed.
func Pooler(t *testing.T, dsn string) *url.URL {
	t.Helper()
	return PoolerWith(t, dsn, "transaction")
}

// PoolerWith is Pooler in another mode, such as session.
func PoolerWith(t *testing.T, dsn, mode string) *url.URL {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)")
	}
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ledgerd-pooler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	owner, err := os.Stat(c.Host) // of the socket's folder: pgbouncer refuses to run as root
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := owner.Sys().(*syscall.Stat_t).Uid, owner.Sys().(*syscall.Stat_t).Gid
	address, size := freeAddress(t), 6
	if mode == "session" {
		size = 60 // a connection for each client
	}
	settings := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s/users
pool_mode = %s
default_pool_size = %d
max_client_conn = 200
`, c.Host, c.Port, address.Port, dir, mode, size)
	for name, text := range map[string]string{"users": fmt.Sprintf("%q %q\n", c.User, c.Password), "ini": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, filepath.Join(dir, "ini"))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address.String())
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("pgbouncer does not listen: %v", err)
		}
	}
	return &url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: address.String(),
		Path: "/" + c.Database}
}

func freeAddress(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr)
}
