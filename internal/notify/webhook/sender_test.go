package webhook_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

func event() *send.Message {
	return &send.Message{Tenant: 1, ID: 16385, Key: send.Keys("").Of(1, 16385), Channel: send.Webhook,
		Recipient: "shop",
		Content:   send.Content{Type: "order.paid", Data: []byte(`{"type":"order.paid","data":{"id":1}}`)}}
}

// receiver starts a TLS server for one endpoint, and a sender that may connect to it.
func receiver(t *testing.T, change func(*webhook.Settings, *webhook.Endpoint),
	handle http.HandlerFunc) (*httptest.Server, *atomic.Int64, *webhook.Sender) {
	t.Helper()
	taken := new(atomic.Int64)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		taken.Add(1)
		handle(w, r)
	}))
	t.Cleanup(server.Close)
	u, _ := url.Parse(server.URL)
	port, _ := strconv.ParseUint(u.Port(), 10, 16)
	e := webhook.Endpoint{Key: webhook.Key{Tenant: 1, Name: "shop"}, ID: 7, Version: 1, URL: server.URL}
	s := webhook.Settings{Master: secret.New(), Log: slog.New(slog.DiscardHandler),
		URLs: webhook.URLPolicy{Ports: []uint16{uint16(port)},
			Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}},
		TLS:     &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
		Observe: func(context.Context, webhook.Observation) error { return nil }}
	if change != nil {
		change(&s, &e)
	}
	if s.Find == nil {
		s.Find = func(_ context.Context, k webhook.Key) (webhook.Endpoint, error) {
			if k != e.Key {
				return webhook.Endpoint{}, webhook.NotFound.New("no")
			}
			return e, nil
		}
	}
	sender, err := webhook.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return server, taken, sender
}

// Signatures verify with the reference library of Standard Webhooks, also during a rotation.
func TestReceiversCanVerify(t *testing.T) {
	for _, c := range []struct {
		name    string
		overlap time.Duration
		signs   []int32 // versions that sign
	}{{"one secret", 0, []int32{3}}, {"being replaced", time.Hour, []int32{3, 2}}, {"replaced", -time.Second,
		[]int32{3}}} {
		t.Run(c.name, func(t *testing.T) {
			var master *secret.Master
			_, taken, sender := receiver(t, func(s *webhook.Settings, e *webhook.Endpoint) {
				master = s.Master
				e.Version, e.PreviousExpiresAt = 3, time.Now().Add(c.overlap)
			}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				for version := int32(1); version <= 4; version++ {
					v, err := standardwebhooks.NewWebhook(webhook.SecretOf(master, 1, 7, version).String())
					if err != nil {
						t.Error(err)
						return
					}
					want := false
					for _, s := range c.signs {
						want = want || s == version
					}
					if err := v.Verify(body, r.Header); (err == nil) != want {
						t.Errorf("version %d: %v", version, err)
					}
				}
				if r.Method != "POST" || r.Header.Get("Webhook-Id") != event().Key ||
					r.Header.Get("Webhook-Event") != "order.paid" ||
					r.Header.Get("Content-Type") != "application/json" || string(body) != string(event().Content.Data) {
					t.Errorf("%v %s", r.Header, body)
				}
			})
			if _, err := sender.Send(t.Context(), event()); err != nil || taken.Load() != 1 {
				t.Errorf("%v, %d requests", err, taken.Load())
			}
		})
	}
}

func TestSecretsDifferByEndpointAndVersion(t *testing.T) {
	m := secret.New()
	seen := map[string]bool{}
	for _, s := range []webhook.Secret{webhook.SecretOf(m, 1, 7, 1), webhook.SecretOf(m, 1, 7, 2),
		webhook.SecretOf(m, 1, 8, 1), webhook.SecretOf(m, 2, 7, 1),
		webhook.SecretOf(m, 1, 71, 1), webhook.SecretOf(secret.New(), 1, 7, 1)} {
		if seen[s.String()] || !strings.HasPrefix(s.String(), "whsec_") || len(s) < 24 {
			t.Errorf("%d bytes, or not unique", len(s))
		}
		seen[s.String()] = true
	}
	if !seen[webhook.SecretOf(m, 1, 7, 1).String()] {
		t.Error("derivation is not deterministic")
	}
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		status  int
		outcome send.Outcome // 0 for a 2xx status: accepted
		wait    time.Duration
		disable bool
	}{
		{200, 0, 0, false}, {202, 0, 0, false}, {204, 0, 0, false},
		{301, send.Temporary, 0, false}, {302, send.Temporary, 0, false}, {400, send.Temporary, 0, false},
		{404, send.Temporary, 0, false},
		{410, send.Permanent, 0, true}, {429, send.Temporary, 9 * time.Second, false}, {500, send.Temporary, 0, false},
		{502, send.Unknown, 9 * time.Second, false}, {503, send.Temporary, 9 * time.Second, false},
		{504, send.Unknown, 9 * time.Second, false},
	} {
		var seen []webhook.Observation
		server, taken, sender := receiver(t, func(s *webhook.Settings, _ *webhook.Endpoint) {
			s.Observe = func(_ context.Context, o webhook.Observation) error { seen = append(seen, o); return nil }
		}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("a redirect was followed")
			}
			if c.wait > 0 {
				w.Header().Set("Retry-After", "9")
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
		})
		_ = server
		_, err := sender.Send(t.Context(), event())
		if c.status < 300 {
			if err != nil || len(seen) != 0 {
				t.Errorf("%d: %v, observed %v", c.status, err, seen)
			}
			continue
		}
		f := send.Failed(err)
		if f.Outcome != c.outcome || f.RetryAfter != c.wait || f.Disable != c.disable ||
			f.Code != "http_"+strconv.Itoa(c.status) || taken.Load() != 1 {
			t.Errorf("%d: %+v, %d requests", c.status, f, taken.Load())
		}
		if len(seen) != 1 || seen[0].OK || seen[0].Gone != c.disable || seen[0].ID != 7 {
			t.Errorf("%d: observed %+v", c.status, seen)
		}
	}
}

func TestUnfinishedResponseCountsByItsStatus(t *testing.T) {
	_, _, sender := receiver(t, func(s *webhook.Settings, _ *webhook.Endpoint) { s.Timeout = 300 * time.Millisecond },
		func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
	if _, err := sender.Send(t.Context(), event()); err != nil {
		t.Error(err)
	}
}

// A timeout counts as a failure of the endpoint; a cancelled attempt does not.
func TestTimeoutIsObserved(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		seen := make(chan webhook.Observation, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, sender := receiver(t, func(s *webhook.Settings, _ *webhook.Endpoint) {
			s.Observe = func(_ context.Context, o webhook.Observation) error { seen <- o; return nil }
		}, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if cancelled {
				cancel()
			}
			<-r.Context().Done()
			// otherwise net/http sends a response while the sender is closing the connection
			panic(http.ErrAbortHandler)
		})
		if _, err := sender.Send(ctx, event()); send.Failed(err).Outcome != send.Unknown {
			t.Error(err)
		}
		select {
		case o := <-seen:
			if o.OK || cancelled {
				t.Errorf("observed %+v", o)
			}
		default:
			if !cancelled {
				t.Error("nothing was observed")
			}
		}
	}
}

func TestBrokenConnections(t *testing.T) {
	_, taken, sender := receiver(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		tcp := c.(*tls.Conn).NetConn().(*net.TCPConn)
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	})
	_, err := sender.Send(t.Context(), event())
	if f := send.Failed(err); f.Outcome != send.Unknown || taken.Load() != 1 {
		t.Errorf("%v, %d requests", f, taken.Load())
	}
	silent, _, slow := receiver(t, func(s *webhook.Settings,
		_ *webhook.Endpoint) {
		s.Timeout = 200 * time.Millisecond
	}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	_, err = slow.Send(t.Context(), event())
	if f := send.Failed(err); f.Outcome != send.Unknown || f.Code != "timeout" {
		t.Errorf("%v", f)
	}
	silent.Close()
	_, err = slow.Send(t.Context(), event())
	if f := send.Failed(err); f.Outcome != send.Temporary {
		t.Errorf("%v", f)
	}
}

func TestInvalidMessagesAreNotPosted(t *testing.T) {
	_, taken, sender := receiver(t, func(_ *webhook.Settings, e *webhook.Endpoint) { e.Disabled = webhook.ByCaller },
		func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		code   string
		change func(*send.Message)
	}{
		{"endpoint_disabled", func(*send.Message) {}},
		{"no_endpoint", func(m *send.Message) { m.Recipient = "other" }},
		{"no_endpoint", func(m *send.Message) { m.Tenant = 2 }},
		{"content", func(m *send.Message) { m.Content.Data = make([]byte, webhook.MaxBody+1) }},
		{"content", func(m *send.Message) { m.Content.Type = "order\r\npaid" }},
		{"content", func(m *send.Message) { m.Content.Type = "" }},
	} {
		m := event()
		c.change(m)
		_, err := sender.Send(t.Context(), m)
		if f := send.Failed(err); f.Outcome != send.Permanent || f.Code != c.code {
			t.Errorf("%v, want %s", f, c.code)
		}
	}
	if taken.Load() != 0 {
		t.Error("a request was made")
	}
}

// 50 failures are recorded once, and so is the first success.
func TestFailuresAreObservedOnce(t *testing.T) {
	var good atomic.Bool
	var mu sync.Mutex
	var seen []webhook.Observation
	_, _, sender := receiver(t, func(s *webhook.Settings, _ *webhook.Endpoint) {
		s.Observe = func(_ context.Context, o webhook.Observation) error {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, o)
			return nil
		}
	}, func(w http.ResponseWriter, _ *http.Request) {
		if !good.Load() {
			w.WriteHeader(500)
		}
	})
	for range 50 {
		_, _ = sender.Send(t.Context(), event())
	}
	good.Store(true)
	for range 50 {
		_, _ = sender.Send(t.Context(), event())
	}
	if len(seen) != 2 || seen[0].OK || !seen[1].OK {
		t.Errorf("%+v", seen)
	}
}

// Concurrent failures are recorded once, also a 410.
func TestConcurrentFailuresAreObservedOnce(t *testing.T) {
	for _, status := range []int{500, 410} {
		const many = 20
		var seen atomic.Int64
		var underWay sync.WaitGroup
		underWay.Add(many)
		_, _, sender := receiver(t, func(s *webhook.Settings, _ *webhook.Endpoint) {
			s.Observe = func(context.Context, webhook.Observation) error { seen.Add(1); return nil }
		}, func(w http.ResponseWriter, _ *http.Request) {
			underWay.Done()
			underWay.Wait()
			w.WriteHeader(status)
		})
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { _, _ = sender.Send(t.Context(), event()) })
		}
		wg.Wait()
		if seen.Load() != 1 {
			t.Errorf("%d: observed %d times", status, seen.Load())
		}
	}
}
