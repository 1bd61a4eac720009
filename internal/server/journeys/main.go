// Journeys writes the coverage of single calls, for tools/marks. `make marks` builds it with coverage counters, and
// runs it on a temporary Postgres:
//
//	journeys FOLDER
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// calls are the measured requests, by name. %s is unique for each call.
var calls = map[string][2]string{
	"Transfer": {"ledgerd.ledger.v1.LedgerService/Transfer",
		`{"bizNo":"%s","postings":[{"from":"world","to":"shop","asset":"CNY","amount":"1"}]}`},
	"Send": {"ledgerd.notify.v1.NotifyService/Send",
		`{"channel":"CHANNEL_SMS","recipient":"+8613812345678","bizNo":"%s","content":{"text":"%[1]s"}}`},
	"Begin": {"ledgerd.idempotency.v1.IdempotencyService/Begin", `{"scope":"journeys","key":"%s"}`},
}

func main() {
	if len(os.Args) != 2 || os.Getenv(pgtest.DSNEnv) == "" {
		fmt.Fprintln(os.Stderr, "usage: withpg -- journeys FOLDER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Getenv(pgtest.DSNEnv), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "journeys:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dsn, folder string) error {
	if err := pg.Migrate(ctx, dsn); err != nil {
		return err
	}
	pool, err := pg.Open(ctx, dsn, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	app, err := appRole(ctx, pool, dsn)
	if err != nil {
		return err
	}
	tenant, err := access.EnsureTenant(ctx, pool, "demo")
	if err != nil {
		return err
	}
	key, err := access.Administer(pool).CreateKey(ctx, tenant,
		access.NewKey{Principal: "demo", Rights: access.Rights{Role: access.Admin}})
	if err != nil {
		return err
	}
	s, err := server.Start(ctx, server.Options{DatabaseURL: app, Listen: "127.0.0.1:0", Secret: secret.New(),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer s.Stop()
	c := caller{"http://" + s.Addr(), key.Secret}
	if err := errors.Join(
		c.post("ledgerd.ledger.v1.LedgerService/CreateAssets", "assets", `{"assets":[{"code":"CNY","scale":2}]}`),
		c.post("ledgerd.ledger.v1.LedgerService/CreateAccounts", "accounts",
			`{"accounts":[{"code":"world","asset":"CNY","unbounded":true},{"code":"shop",`+
				`"asset":"CNY"}]}`)); err != nil {
		return err
	}
	for name, call := range calls {
		if err := c.follow(filepath.Join(folder, name), call[0], call[1]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// appRole creates the login role of the server, and returns its connection string.
func appRole(ctx context.Context, pool *pgxpool.Pool, dsn string) (string, error) {
	if _, err := pool.Exec(ctx, "create role journeys login in role ledgerd_app"); err != nil {
		return "", err
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	u.User = url.User("journeys")
	return u.String(), nil
}

type caller struct{ base, key string }

// follow calls once to fill plans and caches, then once with counters.
func (c caller) follow(folder, path, body string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	if err := c.post(path, "warm", fmt.Sprintf(body, "warm")); err != nil {
		return err
	}
	time.Sleep(time.Second) // wait for background work of the call
	// The server looks an API key up again every 3 s: this call does so before the measured one.
	if err := c.post("ledgerd.ledger.v1.LedgerService/ListAssets", "key", "{}"); err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := c.post(path, "one", fmt.Sprintf(body, "one")); err != nil {
		return err
	}
	return errors.Join(coverage.WriteCountersDir(folder), coverage.WriteMetaDir(folder))
}

func (c caller) post(path, key, body string) error {
	r, err := http.NewRequest(http.MethodPost, c.base+"/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return err
}
