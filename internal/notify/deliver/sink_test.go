package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// sink is a provider: an HTTP server that records requests and deduplicates by key.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	asked   map[string]int // requests by key
	arrived map[string]int // sent messages by key: 0 or 1
	times   map[string]time.Time
	order   []string
	// answer may be replaced. It runs before a message is accepted; false: it has answered itself.
	answer func(w http.ResponseWriter, r *http.Request, n int) bool
}

func newSink(t testing.TB) *sink {
	s := &sink{asked: map[string]int{}, arrived: map[string]int{}, times: map[string]time.Time{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	s.asked[key]++
	n, answer := s.asked[key], s.answer
	s.mu.Unlock()
	if answer != nil && !answer(w, r, n) {
		return
	}
	s.take(key)
	w.Header().Set("X-Id", "p-"+key)
}

// take accepts a message, unless its key was seen.
func (s *sink) take(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrived[key] == 0 {
		s.arrived[key]++
		s.times[key] = time.Now()
		s.order = append(s.order, key)
	}
}

func (s *sink) count() (messages, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.asked {
		asked += n
	}
	return len(s.arrived), asked
}

// once fails the test unless each message arrived after exactly one request.
func (s *sink) once(t testing.TB, ids []int64) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		key := send.Keys("").Of(1, id)
		if s.arrived[key] != 1 || s.asked[key] != 1 {
			t.Errorf("message %d: %d arrivals, %d requests", id, s.arrived[key], s.asked[key])
		}
	}
}

// sender sends to a sink over HTTP.
type sender struct {
	url    string
	client *http.Client
}

func newSender(url string) *sender {
	return &sender{url, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
}

func (s *sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url,
		io.MultiReader(strings.NewReader(m.Recipient), strings.NewReader(m.Content.Text)))
	if err != nil {
		return send.Receipt{}, err
	}
	req.Header.Set("Idempotency-Key", m.Key)
	req.Header.Set("X-Tenant", fmt.Sprint(m.Tenant))
	res, err := s.client.Do(req)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "dial", Text: "no connection",
			Provider: "sink"}
	case errors.Is(err, context.DeadlineExceeded):
		return send.Receipt{}, &send.Failure{Outcome: send.Unknown, Code: "timeout", Text: "no answer in time",
			Provider: "sink"}
	case err != nil:
		return send.Receipt{}, &send.Failure{Outcome: send.Unknown, Code: "reset", Text: "the connection broke",
			Provider: "sink"}
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	after, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	f := &send.Failure{Code: fmt.Sprint("http_", res.StatusCode), Provider: "sink",
		RetryAfter: time.Duration(after) * time.Second}
	switch {
	case res.StatusCode < 300:
		return send.Receipt{Provider: "sink", ProviderMessageID: res.Header.Get("X-Id")}, nil
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable:
		f.Outcome = send.Temporary
	case res.StatusCode == http.StatusGone:
		f.Outcome, f.Disable = send.Permanent, true
	case res.StatusCode < 500:
		f.Outcome = send.Permanent
	}
	return send.Receipt{}, f
}

// reset resets the connection without an answer.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// pass lets time pass where the passing of time is tested.
func pass(d time.Duration) { <-time.After(d) }
