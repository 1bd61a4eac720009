package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// pooler starts PgBouncer in transaction mode for a database, and returns its URL.
func pooler(t *testing.T, db *pgtest.DB) *url.URL {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: pgbouncer is not installed (apt-get install pgbouncer)")
	}
	c, err := pgx.ParseConfig(db.AppDSN)
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
	port := freePort(t)
	write(t, filepath.Join(dir, "users"), fmt.Sprintf("%q %q\n", c.User, c.Password))
	write(t, filepath.Join(dir, "ini"), fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s/users
pool_mode = transaction
default_pool_size = 6
max_client_conn = 200
`, c.Host, c.Port, port, dir))
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
	u := &url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: fmt.Sprint("127.0.0.1:", port),
		Path: "/" + c.Database}
	servertest.Eventually(t, 20*time.Second, "pgbouncer listens", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return u
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func through(u *url.URL, mode string) string {
	with := *u
	with.RawQuery = "sslmode=disable"
	if mode != "" {
		with.RawQuery += "&default_query_exec_mode=" + mode
	}
	return with.String()
}

// Behind a pooler in transaction mode, a server works in the documented modes, and refuses to start in others.
func TestServerBehindAPoolerWorksOrNamesTheSetting(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	u := pooler(t, db)
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, db.SuperDSN), "shop")
	if err != nil {
		t.Fatal(err)
	}
	start := func(mode string) (*server.Server, error) {
		return server.Start(t.Context(), server.Options{DatabaseURL: through(u, mode), Listen: "127.0.0.1:0",
			Anyone: &access.Identity{Tenant: tenant, Principal: "shop", Role: access.Admin},
			Log:    slog.New(slog.DiscardHandler)})
	}
	for _, mode := range []string{"", "exec", "simple_protocol"} {
		if s, err := start(mode); !errors.Is(err, pg.ErrMode) {
			t.Errorf("mode %q: %v", mode, err)
			if err == nil {
				s.Stop()
			}
		}
	}
	reads, err := pg.OpenReads(t.Context(), through(u, "cache_describe"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer reads.Close()
	timeout := ""
	if err := reads.QueryRow(t.Context(), "show statement_timeout").Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("a connection that others use has the statement timeout %q of reads, %v", timeout, err)
	}
	for mode, asset := range map[string]string{"cache_describe": "CNY", "describe_exec": "USD"} {
		s, err := start(mode)
		if err != nil {
			t.Fatal(mode, err)
		}
		transfers(t, client.New("http://"+s.Addr()), mode, asset)
		s.Stop()
	}
}

// transfers makes concurrent transfers.
func transfers(t *testing.T, c *client.Client, mode, asset string) {
	t.Helper()
	if _, err := c.Ledger.CreateAssets(t.Context(),
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: asset, Scale: 2}}}); err != nil {
		t.Fatal(err)
	}
	accounts := []*ledgerv1.NewAccount{{Code: "world", Asset: asset, Unbounded: true}}
	for i := range 8 {
		accounts = append(accounts, &ledgerv1.NewAccount{Code: fmt.Sprint("user:", i), Asset: asset})
	}
	if _, err := c.Ledger.CreateAccounts(t.Context(), &ledgerv1.CreateAccountsRequest{Accounts: accounts}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if _, err := c.Ledger.Transfer(context.Background(),
					&ledgerv1.TransferRequest{BizNo: fmt.Sprint(mode, i, "-", n),
						Postings: []*ledgerv1.Posting{{From: "world", To: fmt.Sprint("user:", i), Asset: asset,
							Amount: "1.00"}}}); err != nil {
					t.Errorf("mode %s: %v", mode, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		b, err := c.Ledger.GetBalance(t.Context(),
			&ledgerv1.GetBalanceRequest{Account: &ledgerv1.AccountRef{Code: fmt.Sprint("user:", i), Asset: asset}})
		if err != nil || b.Balance != "50.00" {
			t.Errorf("mode %s: user %d has %v, %v", mode, i, b, err)
		}
	}
}
