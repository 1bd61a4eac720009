// Package consumertest is what every broker has to stand: messages that are delivered again, that are
// poison, and a consumer that is killed in the middle.
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

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// Broker is a running broker with something that messages can be sent to.
type Broker struct {
	// Settings are the fields of a consumer's entry that are the broker's, one a line.
	Settings []string
	// Send sends a message, with the header Message-Id unless id is empty, and waits until it is kept.
	Send func(id, body string)
	// Left is how many messages the broker still has to deliver, or has no acknowledgement of.
	Left func() int
}

// IDHeader names messages in these tests.
const IDHeader = "Message-Id"

// World is a database with a little money in it.
type World struct {
	T      *testing.T
	DB     *pgtest.DB
	Pool   *pgxpool.Pool // as superuser, for looking
	Tenant int32
	Log    *Log
}

// NewWorld makes the tenant shop, with an account bank of any depth and an account a that is empty.
func NewWorld(t *testing.T) *World {
	t.Helper()
	db := pgtest.New(t)
	w := &World{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &Log{}}
	var err error
	if w.Tenant, err = access.EnsureTenant(t.Context(), w.Pool, "shop"); err != nil {
		t.Fatal(err)
	}
	w.runOnce(t, `{"operations": [
		{"request": {"@type": "type.googleapis.com/ledgerd.ledger.v1.CreateAssetsRequest", "assets": [{"code": "CNY", "scale": 2}]}},
		{"request": {"@type": "type.googleapis.com/ledgerd.ledger.v1.CreateAccountsRequest", "accounts": [
			{"code": "bank", "asset": "CNY", "unbounded": true}, {"code": "a", "asset": "CNY"}, {"code": "b", "asset": "CNY"}]}}]}`)
	return w
}

// File writes a file of settings with one consumer.
func (w *World) File(b Broker, more ...string) string {
	w.T.Helper()
	lines := append([]string{"name: it", "group: billing", "tenant: shop", "message_id: header:" + IDHeader,
		"backoff: 20ms", "max_backoff: 100ms",
		"max_attempts: 3"}, append(b.Settings, more...)...)
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

// Serve starts a server that consumes, in this process.
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

// runOnce runs an Execute as a message would, without a broker.
func (w *World) runOnce(t *testing.T, body string) {
	t.Helper()
	source := &once{body: body, done: make(chan struct{})}
	file := w.File(Broker{Settings: []string{"broker: rabbitmq", "url: amqp://nowhere", "queue: q"}}, "group: setup",
		"message_id: broker")
	settings, err := consumer.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w.consumeFrom(t, settings[0], source)
}

// Eventually waits until something is so.
func (w *World) Eventually(limit time.Duration, what string, is func() bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			w.T.Fatalf("not within %v: %s\n%s\n%s", limit, what, w.Text(`select coalesce(string_agg(format('%s %s: %s, such as %s: %s', n, state, groups, example, error), E'\n'), 'no messages')
				from (select state, count(*) as n, string_agg(distinct consumer_group, ' ') as groups, max(message_id) as example, max(error) as error
					from inbox_messages group by state) m`), w.Log.last(10))
		case <-tick.C:
		}
	}
}

// Text runs a query for one text.
func (w *World) Text(sql string, args ...any) (s string) {
	w.T.Helper()
	if err := w.Pool.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return s
}

// Count runs a query for one number.
func (w *World) Count(sql string, args ...any) (n int) {
	w.T.Helper()
	if err := w.Pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Pay is a body that moves an amount under a biz_no.
func Pay(bizNo, from, to, amount string) string {
	return fmt.Sprintf(`{"@type": "type.googleapis.com/ledgerd.ledger.v1.TransferRequest", "bizNo": %q,
		"postings": [{"from": %q, "to": %q, "asset": "CNY", "amount": %q}]}`, bizNo, from, to, amount)
}

// Log keeps log lines for tests to read.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// last are the last lines.
func (l *Log) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Count tells how many lines have a text in them.
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
