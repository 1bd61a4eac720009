// Package httpsend asks providers over HTTP, once, and tells what surely was not sent from what may have been.
//
// What it promises: a request goes out at most once for each call. Go's own transport would send some again
// after a connection broke; here only those that never left are. Redirects are not followed, answers are read
// up to a bound, and no error names a URL, a header or a body.
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

// Settings of a Client; zero values are what providers of messages want.
type Settings struct {
	// Timeout of a request, from the dialing to the last byte of the answer; 0: 15 s.
	Timeout time.Duration
	// MaxAnswer is how much of an answer is kept, in bytes; 0: 64 kB.
	MaxAnswer int64
	// TLS is for other roots and client certificates.
	TLS *tls.Config
	// Dial replaces the dialing of TCP, such as by one that looks at the address.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy tells the proxy of a request, as in http.Transport; nil: none, whatever the environment says.
	Proxy func(*http.Request) (*url.URL, error)
	// HTTP2 is spoken if the other side can. Without it, what is not sent is told more exactly.
	HTTP2 bool
	// PerHost is how many idle connections to one host are kept; 0: 512.
	PerHost int
}

// Client asks providers. Many goroutines use it at once.
type Client struct {
	transport *http.Transport
	timeout   time.Duration
	most      int64
}

const (
	defaultTimeout = 15 * time.Second
	defaultAnswer  = 64 << 10
	defaultPerHost = 512
	// A server that closes idle connections does so after a minute at the earliest, usually.
	idle        = 45 * time.Second
	maxHeaders  = 64 << 10
	longestWait = 24 * time.Hour
)

// New makes a client with connections of its own.
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
		s.TLS.NextProtos = nil // of a server perhaps: what is offered is told by HTTP2
	}
	t := &http.Transport{Proxy: s.Proxy, DialContext: s.Dial, TLSClientConfig: s.TLS, TLSHandshakeTimeout: s.Timeout,
		MaxIdleConnsPerHost: s.PerHost, IdleConnTimeout: idle, MaxResponseHeaderBytes: maxHeaders,
		DisableCompression: true, Protocols: new(http.Protocols)} // compressed answers could grow beyond their bound
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(s.HTTP2)
	return &Client{transport: t, timeout: s.Timeout, most: s.MaxAnswer}
}

// Request is what to ask.
type Request struct {
	Method string // empty: POST
	URL    string
	Header http.Header
	Body   []byte
	// Host stands in the Host header, if it is not that of the URL.
	Host string
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte // at most MaxAnswer bytes
	// Cut: there was more, or the connection broke in the middle of it.
	Cut bool
	// RetryAfter is the wait that the other side asked for; 0: none. At most a day.
	RetryAfter time.Duration
}

// Do asks once. A failure is Temporary if the request surely never left, and Unknown if it may have.
func (c *Client) Do(ctx context.Context, r *Request) (*Answer, *send.Failure) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var way progress
	q, err := r.build(httptrace.WithClientTrace(ctx, way.trace()))
	if err != nil {
		return nil, &send.Failure{Outcome: send.Refused, Code: "bad_request", Text: "the request cannot be built"}
	}
	// Not through http.Client, which follows redirects and writes URLs into errors.
	a, err := c.transport.RoundTrip(q)
	if err != nil {
		return nil, way.failure(ctx, err)
	}
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(a.Body, c.most+1))
	answer := &Answer{Status: a.StatusCode, Header: a.Header, Body: body, Cut: err != nil,
		RetryAfter: RetryAfter(a.Header, time.Now())}
	if int64(len(body)) > c.most {
		answer.Body, answer.Cut = body[:c.most], true
	}
	return answer, nil
}

// build makes the request such that the transport sends it again only if nothing of it was written: it would
// resend what it takes for idempotent, which a provider need not agree with.
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
			name = "idempotency-key" // so spelled, the transport does not see it
		case "X-Idempotency-Key":
			name = "x-idempotency-key"
		}
		q.Header[name] = values
	}
	if _, told := q.Header["User-Agent"]; !told {
		q.Header.Set("User-Agent", "ledgerd")
	}
	if method == http.MethodGet { // a body, be it empty, that cannot be read twice: not to be repeated
		q.Body, q.GetBody, q.ContentLength = io.NopCloser(bytes.NewReader(nil)), nil, 0
	}
	return q, nil
}

// CloseIdle closes the connections that are not in use.
func (c *Client) CloseIdle() { c.transport.CloseIdleConnections() }

// progress is how far the request came.
type progress struct {
	mu        sync.Mutex
	connected bool // there is a connection for it
	wrote     bool // its header was written, to a buffer at least
	shaking   bool // TLS began
	resolving bool
}

func (p *progress) trace() *httptrace.ClientTrace {
	set := func(change func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		change()
	}
	return &httptrace.ClientTrace{
		// Asked for again only by a transport that knows that nothing was written.
		GetConn:           func(string) { set(func() { p.connected, p.wrote = false, false }) },
		DNSStart:          func(httptrace.DNSStartInfo) { set(func() { p.resolving = true }) },
		DNSDone:           func(i httptrace.DNSDoneInfo) { set(func() { p.resolving = i.Err != nil }) },
		TLSHandshakeStart: func() { set(func() { p.shaking = true }) },
		GotConn:           func(httptrace.GotConnInfo) { set(func() { p.connected = true }) },
		WroteHeaders:      func() { set(func() { p.wrote = true }) },
	}
}

func (p *progress) failure(ctx context.Context, err error) *send.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := ctx.Err() != nil
	// With HTTP/2 a request that ran out of time may be written after the call is over.
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
		f.Code, f.Text = "not_written", "the connection broke before the request"
	case late:
		f.Code, f.Text = "connect_timeout", "no connection in time"
	case p.resolving:
		f.Code, f.Text = "dns", "the name was not resolved"
	case p.shaking:
		f.Code, f.Text = "tls", "TLS: "+tlsReason(err)
	}
	return f
}

// Blocked is an error of Settings.Dial that says that this address may not be reached.
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

// RetryAfter reads the header of that name: seconds, or a time. 0: there is none. At most a day.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(max(0, min(s, int64(longestWait/time.Second)))) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(at.Sub(now), longestWait))
	}
	return 0
}
