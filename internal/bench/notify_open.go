package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// notifyBench is what RunNotify runs on.
type notifyBench struct {
	options *NotifyOptions
	cluster *cluster
	super   *pgx.Conn
	url     string // of the database, as the service
	pool    *pgxpool.Pool
	tenant  int32
	sink    *notifySink
	// snapshot holds an old one open, once it is there.
	snapshot *pgx.Conn
	sent     int // messages so far, so that each says something else
}

func openNotifyBench(ctx context.Context, o *NotifyOptions) (b *notifyBench, err error) {
	b = &notifyBench{options: o}
	if b.cluster, err = startCluster(ctx, &o.Options); err != nil {
		return nil, err
	}
	if err = b.open(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *notifyBench) open(ctx context.Context) (err error) {
	const database = "bench_notify"
	if err := b.cluster.exec(ctx, "postgres", "create database "+database); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, b.cluster.postgres.DSN(localpg.Superuser, database)); err != nil {
		return err
	}
	if b.super, err = b.cluster.connect(ctx, database); err != nil {
		return err
	}
	if _, err := b.super.Exec(ctx, "grant ledgerd_app to "+loginRole); err != nil {
		return err
	}
	b.url = b.cluster.postgres.DSN(loginRole, database)
	if b.pool, err = pg.Open(ctx, b.url, enginePool+deliverPool); err != nil {
		return err
	}
	if b.tenant, err = access.EnsureTenant(ctx, b.pool, tenantName); err != nil {
		return err
	}
	b.sink, err = newNotifySink()
	return err
}

const deliverPool = 4

func (b *notifyBench) close() {
	if b.sink != nil {
		b.sink.close()
	}
	if b.pool != nil {
		b.pool.Close()
	}
	for _, conn := range []*pgx.Conn{b.snapshot, b.super} {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}
	b.cluster.stop()
}

func (b *notifyBench) lease() time.Duration {
	if b.options.Lease > 0 {
		return b.options.Lease
	}
	return send.Lease
}

// empty fails if a case has left messages.
func (b *notifyBench) empty(ctx context.Context) error {
	var left int
	if err := b.super.QueryRow(ctx, sql("notify_left")).Scan(&left); err != nil {
		return err
	}
	if left > 0 && b.sink.expected() > 0 {
		return fmt.Errorf("%w: %d are left in the queue", errNotDelivered, left)
	}
	return nil
}

// process is an engine that accepts messages, with a pool that delivers them or only hands hints on.
type process struct {
	engine *flow.Engine
	pool   *deliver.Pool
	stop   func()
}

// startProcess starts one in this process. Without delivers it has no Sender, and what it accepts waits for others.
func (b *notifyBench) startProcess(delivers bool) *process {
	senders := map[send.Channel]send.Sender{}
	if delivers {
		senders[send.Webhook] = newSinkSender(b.sink.url)
	}
	pool := deliver.New(deliver.Config{DB: b.pool, Senders: senders, Instance: tenantName, Lease: b.options.Lease})
	engine := flow.NewSendingEngine(b.pool, tenantName, nil, nil,
		&notify.Outbox{Master: secret.New(), Handoff: pool, Instance: tenantName,
			Metrics: notify.NewMetrics(nil)})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { pool.Run(ctx) })
	return &process{engine: engine, pool: pool, stop: func() {
		draining, over := context.WithTimeout(context.Background(), stopPatience)
		defer over()
		if err := engine.Drain(draining); err != nil {
			b.cluster.progress("drain: %v", err)
		}
		cancel()
		work.Wait()
	}}
}

// startDeliverer starts another process that delivers.
func (b *notifyBench) startDeliverer() (*child, error) {
	return startChild(b.options.Program,
		[]string{"bench-deliver", "--sink=" + b.sink.url, "--lease=" + b.lease().String()},
		[]string{"DATABASE_URL=" + b.url}, nil, nil)
}

// Deliver is the process that startDeliverer starts: it delivers until ctx ends.
func Deliver(ctx context.Context, databaseURL, sink string, lease time.Duration) error {
	pool, err := pg.Open(ctx, databaseURL, deliverPool)
	if err != nil {
		return err
	}
	defer pool.Close()
	deliver.New(deliver.Config{DB: pool, Senders: map[send.Channel]send.Sender{send.Webhook: newSinkSender(sink)},
		Instance: fmt.Sprint("deliverer/", os.Getpid()), Lease: lease, Log: slog.Default()}).Run(ctx)
	return nil
}

// notifySink is a provider that honours keys: a real HTTP server in this process.
type notifySink struct {
	url    string
	server *http.Server

	mu       sync.Mutex
	sent     map[string]time.Time // by what a message says: when the call of Send began; zero: it is expected alone
	arrived  map[string]string    // by what a message says: its key
	repeated int
	twice    int
	latency  *load.Histogram
	count    atomic.Int64
}

func newNotifySink() (*notifySink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &notifySink{url: "http://" + listener.Addr().String()}
	s.reset()
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(listener) }() // ends with close
	return s, nil
}

func (s *notifySink) close() { _ = s.server.Close() }

func (s *notifySink) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.arrived, s.repeated, s.twice, s.latency = map[string]time.Time{}, map[string]string{}, 0, 0,
		new(load.Histogram)
	s.count.Store(0)
}

// expect remembers a message that is about to be sent.
func (s *notifySink) expect(text string, at time.Time) {
	s.mu.Lock()
	s.sent[text] = at
	s.mu.Unlock()
}

func (s *notifySink) expected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

func (s *notifySink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went away: it does not know, and comes again
	}
	text, key := string(body), r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch before, again := s.arrived[text]; {
	case again && before == key:
		s.repeated++
		return
	case again: // the same message under another key goes out again
		s.twice++
		return
	}
	s.arrived[text] = key
	s.count.Add(1)
	if at := s.sent[text]; !at.IsZero() {
		s.latency.Add(now.Sub(at))
	}
}

// result tells how the messages that were expected fared.
func (s *notifySink) result() (r NotifyResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Messages, r.Repeated, r.Twice = len(s.sent), s.repeated, s.twice
	for text := range s.sent {
		if _, ok := s.arrived[text]; !ok {
			r.Lost++
		}
	}
	r.P50, r.P95 = s.latency.Quantile(0.5), s.latency.Quantile(0.95)
	return r
}

// sinkSender asks a sink over HTTP, as a sender of webhooks does.
type sinkSender struct {
	url    string
	client *http.Client
}

func newSinkSender(url string) *sinkSender {
	return &sinkSender{url, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256,
		DisableCompression: true}}}
}

// Send posts what the message says.
func (s *sinkSender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(m.Content.Text))
	if err != nil {
		return send.Receipt{}, err
	}
	req.Header.Set("Idempotency-Key", m.Key)
	res, err := s.client.Do(req)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "dial", Provider: "sink"}
		}
		return send.Receipt{}, &send.Failure{Code: "reset", Provider: "sink"}
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusOK {
		return send.Receipt{}, &send.Failure{Code: res.Status, Provider: "sink"}
	}
	return send.Receipt{Provider: "sink"}, nil
}
