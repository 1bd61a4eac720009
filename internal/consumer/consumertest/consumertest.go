// Package consumertest is the conformance suite for brokers: redelivered messages, poison messages, and a
// consumer that is killed midway.
package consumertest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// Broker is a running broker with a destination for messages.
type Broker struct {
	// Settings are the broker's fields of a consumer entry, one per line.
	Settings []string
	// Send sends a message, with header Message-Id unless id is empty, and waits until it is stored.
	Send func(id, body string)
	// Left is the number of messages that are undelivered or unacknowledged.
	Left func() int
}

// IDHeader is the header with the message id in these tests.
const IDHeader = "Message-Id"

// World is a database with some accounts.
type World struct {
	T      *testing.T
	DB     *pgtest.DB
	Pool   *pgxpool.Pool // as superuser, for inspection
	Tenant int32
	Log    *Log
}

// NewWorld makes the tenant shop with an unbounded account bank and empty accounts.
func NewWorld(t *testing.T) *World {
	t.Helper()
	db := pgtest.New(t)
	w := &World{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &Log{}}
	var err error
	if w.Tenant, err = access.EnsureTenant(t.Context(), w.Pool, "shop"); err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(t.Context(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: w.Tenant, Principal: "setup", Role: access.Admin},
		Log:    slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	c := client.New("http://" + s.Addr())
	defer c.Close()
	_, err = c.Ledger.CreateAssets(t.Context(),
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}})
	if err == nil {
		_, err = c.Ledger.CreateAccounts(t.Context(), &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
			{Code: "bank", Asset: "CNY", Unbounded: true}, {Code: "a", Asset: "CNY"}, {Code: "b", Asset: "CNY"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// File writes a consumer file with one entry.
func (w *World) File(b Broker, more ...string) string {
	w.T.Helper()
	lines := append([]string{"name: it", "group: billing", "tenant: shop", "message_id: header:" + IDHeader,
		"backoff: 20ms", "max_backoff: 100ms", "max_attempts: 3"}, append(b.Settings, more...)...)
	last := map[string]string{}
	var order []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ":")
		if last[name] == "" {
			order = append(order, name)
		}
		last[name] = line
	}
	text := "consumers:\n"
	for i, name := range order {
		lead := "    "
		if i == 0 {
			lead = "  - "
		}
		text += lead + last[name] + "\n"
	}
	file := filepath.Join(w.T.TempDir(), "consumers.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.T.Fatal(err)
	}
	return file
}

// Serve starts a consuming server in this process.
func (w *World) Serve(file string) *server.Server {
	w.T.Helper()
	settings, err := consumer.ReadFile(file)
	if err != nil {
		w.T.Fatal(err)
	}
	s, err := server.Start(context.Background(),
		server.Options{DatabaseURL: w.DB.AppDSN, Listen: "127.0.0.1:0", Consume: settings,
			Log: slog.New(slog.NewJSONHandler(w.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(s.Stop)
	return s
}

// Eventually polls until the condition holds.
func (w *World) Eventually(limit time.Duration, what string, is func() bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			w.T.Fatalf("not within %v: %s\n%s\n%s", limit, what, w.Text(`select
				coalesce(string_agg(format('%s %s: %s, such as %s: %s', n, state, groups, example, error), E'\n'),
				'no messages')
				from (select state, count(*) as n, string_agg(distinct consumer_group, ' ') as groups,
				max(message_id) as example, max(failure_text) as error
					from inbox_messages group by state) m`), w.Log.last(10))
		case <-tick.C:
		}
	}
}

// Text runs a query that returns a text.
func (w *World) Text(sql string, args ...any) (s string) {
	w.T.Helper()
	if err := w.Pool.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return s
}

// Count runs a query that returns a number.
func (w *World) Count(sql string, args ...any) (n int) {
	w.T.Helper()
	if err := w.Pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Pay is a message body that moves an amount under a biz_no.
func Pay(bizNo, from, to, amount string) string {
	return fmt.Sprintf(`{"@type": "type.googleapis.com/ledgerd.ledger.v1.TransferRequest", "bizNo": %q,
		"postings": [{"from": %q, "to": %q, "asset": "CNY", "amount": %q}]}`, bizNo, from, to, amount)
}

// Log collects log lines for tests.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// last returns the last lines.
func (l *Log) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Count is the number of lines that contain a text.
func (l *Log) Count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
