// Package httpsend makes HTTP requests to providers, and separates requests that certainly were not sent from those
// that may have been.
//
// Promises: each call sends at most one request. net/http would repeat some requests after a broken connection; here
// only requests of which nothing was written are repeated. Redirects are not followed. Responses are limited in size.
// Errors contain no URL, header or body.
package httpsend

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Settings of a Client. Zero values suit message providers.
type Settings struct {
	// Timeout from dialing to the last byte of the response; 0: 15 s.
	Timeout time.Duration
	// MaxAnswer limits the response body, in bytes; 0: 64 KiB.
	MaxAnswer int64
	// TLS sets other roots, or client certificates.
	TLS *tls.Config
	// Dial replaces net.Dialer, for example to check addresses.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy is as in http.Transport; nil: no proxy, regardless of the environment.
	Proxy func(*http.Request) (*url.URL, error)
	// HTTP2 allows HTTP/2. With HTTP/1.1 failures are classified more exactly.
	HTTP2 bool
	// PerHost limits idle connections per host; 0: 512.
	PerHost int
}

// Client makes requests. Safe for concurrent use.
type Client struct {
	transport *http.Transport
	timeout   time.Duration
	maxBody   int64
}

const (
	defaultTimeout = 15 * time.Second
	defaultAnswer  = 64 << 10
	defaultPerHost = 512
	// Servers usually keep idle connections open for at least a minute.
	idle       = 45 * time.Second
	maxHeaders = 64 << 10
	maxWait    = 24 * time.Hour
)

// New returns a client with its own connection pool.
func New(s Settings) *Client {
	if s.Timeout == 0 {
		s.Timeout = defaultTimeout
	}
	if s.MaxAnswer == 0 {
		s.MaxAnswer = defaultAnswer
	}
	if s.PerHost == 0 {
		s.PerHost = defaultPerHost
	}
	if s.Dial == nil {
		s.Dial = (&net.Dialer{Timeout: s.Timeout, KeepAlive: idle}).DialContext
	}
	if s.TLS != nil {
		s.TLS = s.TLS.Clone()
		s.TLS.NextProtos = nil // the config may be a server's: HTTP2 decides what is offered
	}
	t := &http.Transport{Proxy: s.Proxy, DialContext: s.Dial, TLSClientConfig: s.TLS, TLSHandshakeTimeout: s.Timeout,
		MaxIdleConnsPerHost: s.PerHost, IdleConnTimeout: idle, MaxResponseHeaderBytes: maxHeaders,
		DisableCompression: true, Protocols: new(http.Protocols)} // compressed responses could exceed the limit
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(s.HTTP2)
	return &Client{transport: t, timeout: s.Timeout, maxBody: s.MaxAnswer}
}

type Request struct {
	Method string // empty: POST
	URL    string
	Header http.Header
	Body   []byte
	// Host overrides the Host header.
	Host string
}

// Answer is a response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte // at most MaxAnswer bytes
	// Cut means that the body is incomplete: too long, or the connection broke.
	Cut bool
	// RetryAfter is the wait that the server requested; 0: none. At most a day.
	RetryAfter time.Duration
}

// Do makes one request. A failure is Temporary if nothing was sent, and Unknown if the request may have been sent.
func (c *Client) Do(ctx context.Context, r *Request) (*Answer, *send.Failure) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var reached progress
	q, err := r.build(httptrace.WithClientTrace(ctx, reached.trace()))
	if err != nil {
		return nil, &send.Failure{Outcome: send.Refused, Code: "bad_request", Text: "the request cannot be built"}
	}
	// RoundTrip instead of http.Client, which follows redirects and puts URLs into errors.
	a, err := c.transport.RoundTrip(q)
	if err != nil {
		return nil, reached.failure(ctx, err)
	}
	defer func() { _ = a.Body.Close() }()
	if err := ctx.Err(); err != nil {
		// Not an answer: a handler that stops because the client closes the connection sends status 200 by returning.
		return nil, reached.failure(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, c.maxBody+1))
	answer := &Answer{Status: a.StatusCode, Header: a.Header, Body: body, Cut: err != nil,
		RetryAfter: RetryAfter(a.Header, time.Now())}
	if int64(len(body)) > c.maxBody {
		answer.Body, answer.Cut = body[:c.maxBody], true
	}
	return answer, nil
}

// build returns the HTTP request, and keeps the transport from repeating it once anything was written: net/http repeats
// requests that it considers idempotent, but the provider may not deduplicate them.
func (r *Request) build(ctx context.Context) (*http.Request, error) {
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	q, err := http.NewRequestWithContext(ctx, method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	if q.URL.User != nil {
		return nil, errors.New("user information in a URL")
	}
	if r.Host != "" {
		q.Host = r.Host
	}
	for name, values := range r.Header {
		switch http.CanonicalHeaderKey(name) {
		case "Idempotency-Key":
			name = "idempotency-key" // in this spelling net/http ignores it
		case "X-Idempotency-Key":
			name = "x-idempotency-key"
		}
		q.Header[name] = values
	}
	if _, told := q.Header["User-Agent"]; !told {
		q.Header.Set("User-Agent", "ledgerd")
	}
	if method == http.MethodGet { // a body that cannot be rewound prevents a repeat
		q.Body, q.GetBody, q.ContentLength = io.NopCloser(bytes.NewReader(nil)), nil, 0
	}
	return q, nil
}

// CloseIdle closes idle connections.
func (c *Client) CloseIdle() { c.transport.CloseIdleConnections() }

// progress records how far a request got.
type progress struct {
	mu         sync.Mutex
	connected  bool // a connection was obtained
	wrote      bool // the header was written, at least to a buffer
	tlsStarted bool // the TLS handshake began
	resolving  bool
}

func (p *progress) trace() *httptrace.ClientTrace {
	set := func(change func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		change()
	}
	return &httptrace.ClientTrace{
		// The transport asks for another connection only if nothing was written.
		GetConn:           func(string) { set(func() { p.connected, p.wrote = false, false }) },
		DNSStart:          func(httptrace.DNSStartInfo) { set(func() { p.resolving = true }) },
		DNSDone:           func(i httptrace.DNSDoneInfo) { set(func() { p.resolving = i.Err != nil }) },
		TLSHandshakeStart: func() { set(func() { p.tlsStarted = true }) },
		GotConn:           func(httptrace.GotConnInfo) { set(func() { p.connected = true }) },
		WroteHeaders:      func() { set(func() { p.wrote = true }) },
	}
}

func (p *progress) failure(ctx context.Context, err error) *send.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := ctx.Err() != nil
	// With HTTP/2 a request that timed out may still be written after the call.
	if p.connected && (p.wrote || late) {
		if late {
			return &send.Failure{Outcome: send.Unknown, Code: "timeout", Text: "no answer in time"}
		}
		return &send.Failure{Outcome: send.Unknown, Code: "no_answer", Text: "the connection broke before the answer"}
	}
	f := &send.Failure{Outcome: send.Temporary, Code: "connect", Text: "no connection"}
	var blocked *Blocked
	switch {
	case errors.As(err, &blocked):
		f = &send.Failure{Outcome: send.Refused, Code: "blocked", Text: blocked.Reason}
	case p.connected:
		f.Code, f.Text = "not_written", "the connection broke before the request was written"
	case late:
		f.Code, f.Text = "connect_timeout", "no connection in time"
	case p.resolving:
		f.Code, f.Text = "dns", "the host name was not resolved"
	case p.tlsStarted:
		f.Code, f.Text = "tls", "TLS: "+tlsReason(err)
	}
	return f
}

// Blocked is an error of Settings.Dial for an address that is not allowed.
type Blocked struct{ Reason string }

func (b *Blocked) Error() string { return b.Reason }

func tlsReason(err error) string {
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &cert):
		return "the certificate is not trusted"
	case errors.As(err, &alert):
		return alert.Error()
	}
	return "the handshake failed"
}

// RetryAfter parses the Retry-After header: seconds or a time. 0: none. At most a day.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(max(0, min(s, int64(maxWait/time.Second)))) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(at.Sub(now), maxWait))
	}
	return 0
}
