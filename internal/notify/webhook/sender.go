package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Settings configures a Sender.
type Settings struct {
	URLs   URLPolicy
	Master *secret.Master
	// Find returns an endpoint, or fault NotFound.
	Find func(context.Context, Key) (Endpoint, error)
	// Observe records that an endpoint failed, works again, or is gone.
	Observe func(context.Context, Observation) error
	Log     *slog.Logger
	TLS     *tls.Config
	Timeout time.Duration // 0: 15 s
}

// Observation is the outcome of an attempt.
type Observation struct {
	Key
	ID   int64 // Endpoint.ID at the time of the attempt
	OK   bool
	Gone bool // answered 410
}

// Sender posts messages to endpoints. It caches endpoints for cacheTTL.
type Sender struct {
	s      Settings
	client *httpsend.Client
	mu     sync.Mutex
	cache  map[Key]*cached
}

// cached is an endpoint in the cache.
type cached struct {
	endpoint Endpoint
	until    time.Time
}

const (
	// MaxBody limits the body, in bytes.
	MaxBody  = 256 << 10
	cacheTTL = 2 * time.Second
	maxKnown = 10_000
)

var _ send.Sender = (*Sender)(nil)

// New validates the settings and returns a Sender.
func New(s Settings) (*Sender, error) {
	if err := s.Master.Check(); err != nil {
		return nil, err
	}
	if s.Timeout == 0 {
		s.Timeout = 15 * time.Second
	}
	return &Sender{s: s, cache: make(map[Key]*cached), client: httpsend.New(httpsend.Settings{
		Timeout: s.Timeout, TLS: s.TLS, Dial: s.URLs.Dial(s.Timeout), PerHost: 64})}, nil
}

var goodType = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// Check returns why a message cannot be sent to any endpoint, and the field of the content that is at fault.
func Check(c *send.Content) (field string, err error) {
	switch {
	case !goodType.MatchString(c.Type): // it becomes a header
		return "type", errors.New("type must be 1 to 128 letters, digits, dots, - and _")
	case len(c.Data) > MaxBody:
		return "data", fmt.Errorf("data must be at most %d bytes", MaxBody)
	}
	return "", nil
}

// Send posts the message's data to its endpoint. Endpoint.Types do not apply, because the message names the endpoint.
func (s *Sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	if _, err := Check(&m.Content); err != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "content", Text: err.Error()}
	}
	e, err := s.find(ctx, Key{m.Tenant, m.Recipient})
	switch {
	case fault.Is(err, NotFound):
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "no_endpoint",
			Text: "there is no such endpoint"}
	case err != nil:
		return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "endpoint_not_read",
			Text: "the endpoint could not be looked up"}
	case e.Disabled != "":
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "endpoint_disabled",
			Text: "the endpoint is disabled: " + e.Disabled}
	}
	if err := s.s.URLs.URL(e.URL); err != nil { // was allowed when the endpoint was stored
		return send.Receipt{}, &send.Failure{Outcome: send.Refused, Code: "blocked", Text: "its URL " + err.Error()}
	}
	now := time.Now()
	h := http.Header{"Content-Type": {"application/json"}, "Webhook-Event": {m.Content.Type}}
	sign(h, m.Key, now, m.Content.Data, e.Secrets(s.s.Master, now)...)
	a, f := s.client.Do(ctx, &httpsend.Request{URL: e.URL, Header: h, Body: m.Content.Data})
	if f == nil {
		f = verdict(a)
	}
	// A blocked or cancelled attempt says nothing about the endpoint; a timeout does.
	if f == nil || f.Outcome != send.Refused && !errors.Is(ctx.Err(), context.Canceled) {
		s.observe(ctx, e, Observation{Key: e.Key, ID: e.ID, OK: f == nil, Gone: f != nil && f.Disable})
	}
	if f != nil {
		return send.Receipt{}, f
	}
	return send.Receipt{}, nil
}

// verdict classifies a response; nil: accepted.
func verdict(a *httpsend.Answer) *send.Failure {
	f := &send.Failure{Outcome: send.Temporary, Code: "http_" + strconv.Itoa(a.Status), Text: http.StatusText(a.Status),
		RetryAfter: a.RetryAfter}
	switch {
	case a.Status >= 200 && a.Status < 300:
		return nil
	case a.Status == http.StatusGone:
		f.Outcome, f.Disable = send.Permanent, true
	case a.Status == http.StatusBadGateway, a.Status == http.StatusGatewayTimeout:
		f.Outcome = send.Unknown // a proxy answered, and may have forwarded the request
	}
	return f
}

// find returns an endpoint, at most cacheTTL old.
func (s *Sender) find(ctx context.Context, k Key) (Endpoint, error) {
	now := time.Now()
	s.mu.Lock()
	if e := s.cache[k]; e != nil && now.Before(e.until) {
		defer s.mu.Unlock()
		return e.endpoint, nil
	}
	s.mu.Unlock()
	e, err := s.s.Find(ctx, k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.cache, k)
		return e, err
	}
	if len(s.cache) >= maxKnown {
		clear(s.cache)
	}
	s.cache[k] = &cached{e, now.Add(cacheTTL)}
	return e, nil
}

// observe records an observation only if it changes the endpoint: a success after failures, a failure that was not
// recorded within observeInterval, or 410.
func (s *Sender) observe(ctx context.Context, e Endpoint, o Observation) {
	now, seen := time.Now(), &e
	s.mu.Lock()
	// include the observations of concurrent attempts
	if k := s.cache[e.Key]; k != nil && k.endpoint.ID == e.ID {
		seen = &k.endpoint
	}
	if seen.Disabled != "" || o.OK && seen.FailingSince.IsZero() ||
		!o.OK && !o.Gone && now.Sub(seen.FailedAt) < observeInterval {
		s.mu.Unlock()
		return
	}
	seen.FailedAt, seen.FailingSince = now, now
	switch {
	case o.OK:
		seen.FailedAt, seen.FailingSince = time.Time{}, time.Time{}
	case o.Gone:
		seen.Disabled = Gone
	}
	s.mu.Unlock()
	// The attempt's context may have ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.s.Observe(ctx, o); err != nil {
		s.s.Log.WarnContext(ctx, "could not record the result of an attempt at a webhook endpoint", "tenant_id",
			o.Tenant, "endpoint", o.Name, "error", err)
		s.mu.Lock()
		delete(s.cache, e.Key)
		s.mu.Unlock()
	}
}
