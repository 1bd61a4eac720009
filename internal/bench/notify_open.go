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

	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// notifyBench is the environment of RunNotify.
type notifyBench struct {
	*database
	options *NotifyOptions
	sink    *notifySink
	// snapshot is the connection that holds a snapshot open; nil: none yet.
	snapshot *pgx.Conn
	sent     int // messages so far, so that every text is unique
}

const deliverPool = 4

func (c *cluster) openNotify(ctx context.Context, o *NotifyOptions) (*notifyBench, error) {
	sink, err := newNotifySink()
	if err != nil {
		return nil, err
	}
	d, err := c.create(ctx, "notify", enginePool+deliverPool)
	if err != nil {
		sink.close()
		return nil, err
	}
	return &notifyBench{database: d, options: o, sink: sink}, nil
}

func (b *notifyBench) close() {
	b.sink.close()
	if b.snapshot != nil {
		_ = b.snapshot.Close(context.Background())
	}
	b.database.close()
}

// left is the number of messages that are not settled.
func (b *notifyBench) left(ctx context.Context) (left int, err error) {
	err = b.conn.QueryRow(ctx, sql("notify_left")).Scan(&left)
	return left, err
}

// empty fails if a case left messages.
func (b *notifyBench) empty(ctx context.Context) error {
	left, err := b.left(ctx)
	if left > 0 && b.sink.expected() > 0 {
		err = fmt.Errorf("%w: %d are left in the queue", errNotDelivered, left)
	}
	return err
}

// process is an engine that accepts messages, with a pool that delivers them or only forwards notifications.
type process struct {
	engine *flow.Engine
	stop   func()
}

// startProcess starts a process in this OS process. Without delivers it has no Sender, and accepted messages
// wait for other processes.
func (b *notifyBench) startProcess(delivers bool) *process {
	senders := map[send.Channel]send.Sender{}
	if delivers {
		senders[send.Webhook] = newSinkSender(b.sink.url)
	}
	pool := deliver.New(deliver.Config{DB: b.pool, Senders: senders, Instance: tenantName, Lease: b.options.Lease})
	engine := flow.NewSendingEngine(b.pool, tenantName, nil, nil,
		&notify.Outbox{Master: secret.New(), Handoff: pool, Instance: tenantName, Metrics: notify.NewMetrics(nil)})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { pool.Run(ctx) })
	return &process{engine: engine, stop: func() {
		b.drain(engine)
		cancel()
		work.Wait()
	}}
}

// startDeliverer starts a separate delivering process.
func (b *notifyBench) startDeliverer() (*child, error) {
	args := []string{"bench-deliver", "--sink=" + b.sink.url, "--lease=" + b.options.Lease.String()}
	return startChild(b.options.Program, args, []string{"DATABASE_URL=" + b.url}, nil, nil)
}

// Deliver is the process started by startDeliverer: it delivers until ctx ends.
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

// notifySink is a provider that deduplicates by key: a real HTTP server in this process.
type notifySink struct {
	url    string
	server *http.Server

	mu       sync.Mutex
	sent     map[string]time.Time // by text: when the call of Send began; zero: only expected
	arrived  map[string]string    // by text: the key
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
	s.sent, s.arrived, s.repeated, s.twice = map[string]time.Time{}, map[string]string{}, 0, 0
	s.latency = new(load.Histogram)
	s.count.Store(0)
}

// expect registers a message about to be sent.
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
		return // the client disconnected: it does not know the outcome and will retry
	}
	text, key := string(body), r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch before, again := s.arrived[text]; {
	case again && before == key:
		s.repeated++
		return
	case again: // the same message under another key is sent again
		s.twice++
		return
	}
	s.arrived[text] = key
	s.count.Add(1)
	if at := s.sent[text]; !at.IsZero() {
		s.latency.Add(now.Sub(at))
	}
}

// result returns the outcome of the expected messages.
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

// sinkSender sends to a sink over HTTP, like a webhook sender.
type sinkSender struct {
	url    string
	client *http.Client
}

func newSinkSender(url string) *sinkSender {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	return &sinkSender{url, &http.Client{Transport: transport}}
}

// Send posts the message's text.
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
