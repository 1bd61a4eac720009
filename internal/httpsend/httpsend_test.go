package httpsend_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// server speaks raw HTTP. answer gets the number of the request over all connections, and returns the response; an
// empty one closes the connection.
func server(t *testing.T, answer func(n int64) string) (url string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	requests = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				r := bufio.NewReader(c)
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, q.Body)
					text := answer(requests.Add(1))
					if _, err := io.WriteString(c, text); err != nil || text == "" {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String(), requests
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"

// net/http would repeat these requests: on a reused connection, with a key or a method that it considers idempotent.
func TestRequestThatWasReadIsNeverRepeated(t *testing.T) {
	for _, c := range []struct {
		name, method string
		header       http.Header
		body         string
	}{
		{"POST", "", nil, "x"},
		{"POST with a key", "", http.Header{"Idempotency-Key": {"k"}}, "x"},
		{"POST with another key", "", http.Header{"X-Idempotency-Key": {"k"}}, "x"},
		{"empty POST with a key", "", http.Header{"Idempotency-Key": {"k"}}, ""},
		{"GET", http.MethodGet, nil, ""},
		{"GET with a key", http.MethodGet, http.Header{"idempotency-key": {"k"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, requests := server(t, func(n int64) string {
				if n == 1 {
					return ok
				}
				return ""
			})
			client := httpsend.New(httpsend.Settings{})
			r := &httpsend.Request{Method: c.method, URL: url, Header: c.header, Body: []byte(c.body)}
			if a, f := client.Do(t.Context(), r); f != nil || a.Status != 200 {
				t.Fatalf("first request: %v, %v", a, f)
			}
			_, f := client.Do(t.Context(), r)
			if f == nil || f.Outcome != send.Unknown || f.Code != "no_answer" {
				t.Errorf("connection broken after the request: %v", f)
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("the server read %d requests, want 2", n)
			}
		})
	}
}

func TestKeyIsSent(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "k1" || r.UserAgent() != "ledgerd" {
			t.Errorf("headers %v", r.Header)
		}
	}))
	defer s.Close()
	if _, f := httpsend.New(httpsend.Settings{}).Do(t.Context(),
		&httpsend.Request{URL: s.URL, Header: http.Header{"Idempotency-Key": {"k1"}}}); f != nil {
		t.Fatal(f)
	}
}

// The server closes each connection after its response. No call makes two requests, and a request that could not be
// written goes over a new connection.
func TestConnectionsClosedWhenIdle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var requests atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if q, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, q.Body)
				requests.Add(1)
				_, _ = io.WriteString(c, ok)
			}
			_ = c.Close()
		}
	}()
	client := httpsend.New(httpsend.Settings{})
	var good, doubt int64
	for range 300 {
		switch _, f := client.Do(t.Context(),
			&httpsend.Request{URL: "http://" + l.Addr().String(), Body: []byte("x")}); {
		case f == nil:
			good++
		case f.Outcome == send.Unknown:
			doubt++
		case f.Code != "not_written": // also correct: the server never read it
			t.Errorf("failure %v", f)
		}
	}
	if n := requests.Load(); n < good || n > good+doubt {
		t.Errorf("%d responses, %d unknown, but the server read %d requests", good, doubt, n)
	}
	if good < 200 {
		t.Errorf("only %d of 300 got a response", good)
	}
}

func TestUnsentRequestIsTemporary(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	_ = closed.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	hung := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	for _, c := range []struct {
		url, code string
		settings  httpsend.Settings
	}{
		{"http://" + address, "connect", httpsend.Settings{}},
		{"https://" + address, "connect", httpsend.Settings{}},
		{secure.URL, "tls", httpsend.Settings{}},
		{secure.URL, "tls", httpsend.Settings{HTTP2: true}},
		{"http://name.invalid", "dns", httpsend.Settings{}},
		{"http://" + address, "connect_timeout", httpsend.Settings{Timeout: 20 * time.Millisecond, Dial: hung}},
	} {
		_, f := httpsend.New(c.settings).Do(t.Context(), &httpsend.Request{URL: c.url, Body: []byte("x")})
		if f == nil || f.Outcome != send.Temporary || f.Code != c.code {
			t.Errorf("%s: %v, want %s", c.url, f, c.code)
		}
	}
}

func TestTimeoutAfterTheRequestIsUnknown(t *testing.T) {
	release := make(chan struct{})
	slow := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-release
	})
	plain := httptest.NewServer(slow)
	defer plain.Close()
	two := httptest.NewUnstartedServer(slow)
	two.EnableHTTP2 = true
	two.StartTLS()
	defer two.Close()
	defer close(release)
	roots := two.Client().Transport.(*http.Transport).TLSClientConfig
	for _, c := range []struct {
		url      string
		settings httpsend.Settings
	}{{plain.URL, httpsend.Settings{}}, {two.URL, httpsend.Settings{TLS: roots, HTTP2: true}}, {two.URL,
		httpsend.Settings{TLS: roots}}} {
		c.settings.Timeout = 300 * time.Millisecond
		_, f := httpsend.New(c.settings).Do(t.Context(), &httpsend.Request{URL: c.url, Body: []byte("x")})
		if f == nil || f.Outcome != send.Unknown || f.Code != "timeout" {
			t.Errorf("%+v: %v", c.settings, f)
		}
	}
}

func TestRedirectsAreNotFollowedAndAnswersAreBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			t.Error("a redirect was followed")
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(w, strings.Repeat("x", 5000))
	}))
	defer s.Close()
	a, f := httpsend.New(httpsend.Settings{MaxAnswer: 1000}).Do(t.Context(), &httpsend.Request{URL: s.URL + "/"})
	if f != nil || a.Status != http.StatusFound || len(a.Body) != 1000 || !a.Cut {
		t.Fatalf("%+v %v", a, f)
	}
}

func TestIncompleteResponseIsCut(t *testing.T) {
	url, _ := server(t, func(n int64) string {
		return "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: " +
			"close\r\n\r\nhalf"
	})
	client := httpsend.New(httpsend.Settings{Timeout: 200 * time.Millisecond})
	a, f := client.Do(t.Context(), &httpsend.Request{URL: url})
	if f != nil || !a.Cut || string(a.Body) != "half" {
		t.Fatalf("%+v %v", a, f)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "-5": 0, "7": 7 * time.Second, "soon": 0, "99999999999": 24 * time.Hour,
		"Sat, 21 Nov 2026 12:01:00 GMT": time.Minute, "Sat, 21 Nov 2026 11:00:00 GMT": 0,
	} {
		if got := httpsend.RetryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestCleanRemovesRecipientAndContent(t *testing.T) {
	m := &send.Message{Recipient: "+8613812345678",
		Content: send.Content{Text: "Your code is K7.", Params: []send.Param{{Name: "name", Value: "Ada"}}}}
	for text, want := range map[string]string{
		"The 'To' number +8613812345678 is not valid": "The 'To' number … is not valid",
		"bad number 138 1234 5678 (13812345678)":      "bad number …)",
		"rejected: Your code is K7.":                  "rejected: …",
		"dear Ada, no":                                "dear …, no",
		"write to ada@example.com":                    "write to …",
		"code 30 is fine, line\nbreaks are not":       "code 30 is fine, line breaks are not",
		"触发天级流控Permits:10 13812345678":                "触发天级流控Permits:…",
		"token abc":           "token abc",
		"limit of 1000 a day": "limit of … a day",
	} {
		if got := httpsend.Clean(m, text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := httpsend.Clean(nil, strings.Repeat("语", 200)); len(got) != 300 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestCode(t *testing.T) {
	for want, parts := range map[string][]string{
		"twilio_21211": {"twilio", "21211"}, "a_b": {"a b"}, "unknown": {""}, strings.Repeat("x",
			64): {strings.Repeat("x", 99)},
	} {
		if got := httpsend.Code(parts...); got != want {
			t.Errorf("%q: got %q", parts, got)
		}
	}
}

// A handler that stops because the client closes the connection sends status 200 by returning. This response may still
// arrive before the connection is closed.
func TestAnswerToAClosedConnectionIsATimeout(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer s.Close()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &lingering{Conn: c}, err
	}
	client := httpsend.New(httpsend.Settings{Timeout: 50 * time.Millisecond, Dial: dial,
		TLS: s.Client().Transport.(*http.Transport).TLSClientConfig})
	for asked := 0; asked < 10; {
		a, f := client.Do(t.Context(), &httpsend.Request{URL: s.URL, Body: []byte("x")})
		if f != nil && f.Code == "connect_timeout" {
			continue // a busy machine
		}
		if f == nil || f.Outcome != send.Unknown || f.Code != "timeout" {
			t.Fatalf("%+v, %v", a, f)
		}
		asked++
	}
}

// lingering is a connection whose Close first waits for a response. TLS has sent the server a close_notify by then.
type lingering struct {
	net.Conn
	reads atomic.Int64
}

func (l *lingering) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.reads.Add(1)
	return n, err
}

func (l *lingering) Close() error {
	before := l.reads.Load()
	for end := time.Now().Add(100 * time.Millisecond); l.reads.Load() == before && time.Now().Before(end); {
		runtime.Gosched()
	}
	return l.Conn.Close()
}
