package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func through(u *url.URL, mode string) string {
	with := *u
	with.RawQuery = "sslmode=disable"
	if mode != "" {
		with.RawQuery += "&default_query_exec_mode=" + mode
	}
	return with.String()
}

// Behind a pooler in transaction or session mode, a server works in the documented modes, and refuses to start in
// others.
func TestServerBehindAPoolerWorksOrNamesTheSetting(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			behindPooler(t, mode)
		})
	}
}

func behindPooler(t *testing.T, poolMode string) {
	t.Helper()
	db := pgtest.New(t)
	u := pgtest.PoolerWith(t, db.AppDSN, poolMode)
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, db.SuperDSN), "shop")
	if err != nil {
		t.Fatal(err)
	}
	start := func(mode string) (*server.Server, error) {
		return server.Start(t.Context(), server.Options{DatabaseURL: through(u, mode), Listen: "127.0.0.1:0",
			Anyone: &access.Identity{Tenant: tenant, Principal: "shop", Role: access.Admin},
			Log:    slog.New(slog.DiscardHandler)})
	}
	for _, mode := range []string{"", "cache_statement", "exec", "simple_protocol", "describe_exec"} {
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
	s, err := start("cache_describe")
	if err != nil {
		t.Fatal(err)
	}
	transfers(t, client.New("http://"+s.Addr()))
	s.Stop()
}

// A pooler in statement mode allows no transactions: the server would be ready, and refuse every write.
func TestServerRefusesAPoolerOfStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	u := pgtest.PoolerWith(t, db.AppDSN, "statement")
	s, err := server.Start(t.Context(), server.Options{DatabaseURL: through(u, "cache_describe"),
		Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, pg.ErrPoolMode) {
		t.Errorf("the server: %v", err)
	}
	if err == nil {
		s.Stop()
	}
}

// transfers makes concurrent transfers.
func transfers(t *testing.T, c *client.Client) {
	t.Helper()
	const asset = "CNY"
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
					&ledgerv1.TransferRequest{BizNo: fmt.Sprint(i, "-", n),
						Postings: []*ledgerv1.Posting{{From: "world", To: fmt.Sprint("user:", i), Asset: asset,
							Amount: "1.00"}}}); err != nil {
					t.Error(err)
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
			t.Errorf("user %d has %v, %v", i, b, err)
		}
	}
}

// A server stops even if its synchronous standby is missing: its last commits, and the release of its worker number,
// wait for the standby.
func TestServerStopsWithoutItsStandby(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, d.SuperDSN), "shop")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(t.Context(), server.Options{DatabaseURL: d.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: tenant, Principal: "shop", Role: access.Admin}, DrainTimeout: time.Second,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c := client.New("http://" + s.Addr())
	if _, err := c.IDs.Generate(t.Context(), &idv1.GenerateRequest{}); err != nil {
		t.Fatal(err)
	}
	d.System(t, "synchronous_standby_names", "missing")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Ledger.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{
		Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}}); err == nil {
		t.Error("the commit did not wait for the standby")
	}
	began := time.Now()
	s.Stop()
	// 1 s for calls, 5 s for commits that continue, and 1 s for connections.
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it stopped after %v", took)
	}
	d.System(t, "synchronous_standby_names", "")
}
