package once_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/client/once"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// startLedgerd runs a real server on its own database.
func startLedgerd(t *testing.T) *server.Server {
	t.Helper()
	db := pgtest.New(t)
	tenant, err := access.EnsureTenant(context.Background(), pgtest.Pool(t, db.AdminDSN), "test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(context.Background(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: tenant, Principal: "test", Role: access.Admin},
		Log:    slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// byUser trusts a header, which only a test may do.
func byUser(_ context.Context, h http.Header) string { return h.Get("User") }

// shop is the service under test; it counts its effects.
type shop struct {
	t       *testing.T
	ledgerd *server.Server
	client  *client.Client
	effects atomic.Int64
	url     string // of one instance of the service
	stopped bool   // ledgerd was stopped before the outcome could be recorded

	mu      sync.Mutex
	respond http.HandlerFunc
}

func newShop(t *testing.T, respond http.HandlerFunc, opts ...once.Option) *shop {
	s := &shop{t: t, ledgerd: startLedgerd(t), respond: respond}
	s.client = client.New("http://" + s.ledgerd.Addr())
	t.Cleanup(s.client.Close)
	s.url = s.copy(s.client, opts...)
	return s
}

// copy starts another instance of the service.
func (s *shop) copy(c *client.Client, opts ...once.Option) string {
	middleware := once.New(c, "shop", byUser,
		append([]once.Option{once.WithLog(slog.New(slog.DiscardHandler))}, opts...)...)
	web := httptest.NewServer(middleware.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.effects.Add(1)
		s.mu.Lock()
		respond := s.respond
		s.mu.Unlock()
		respond(w, r)
	})))
	s.t.Cleanup(func() {
		web.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if s.stopped {
			cancel()
		}
		if err := middleware.Close(ctx); (err != nil) != s.stopped {
			s.t.Error(err)
		}
	})
	return web.URL
}

func (s *shop) will(respond http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = respond
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotency-Replayed") == "true" }

// post sends a request; additional headers are name, value, …
func (s *shop) post(url, body string, headers ...string) reply {
	s.t.Helper()
	r, err := s.try(context.Background(), url, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *shop) try(ctx context.Context, url, body string, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders", strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b)}, err
}

func (s *shop) record(key string) *idempotencyv1.Work {
	s.t.Helper()
	res, err := s.client.Idempotency.GetWork(context.Background(),
		&idempotencyv1.GetWorkRequest{Scope: "shop", Key: key})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.GetWork()
}

// effected checks the number of effects so far.
func (s *shop) effected(n int64) {
	s.t.Helper()
	if got := s.effects.Load(); got != n {
		s.t.Errorf("%d effects, not %d", got, n)
	}
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// losing is an HTTP client that loses answers after the server has done its work.
type losing struct {
	connect.HTTPClient
	lose atomic.Int32
	path string
}

func (l *losing) Do(r *http.Request) (*http.Response, error) {
	res, err := l.HTTPClient.Do(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, l.path) || l.lose.Add(-1) < 0 {
		return res, err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return nil, fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
}

// soon polls until the condition holds.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	end := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-end:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}
