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
	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Settings of the Sender.
type Settings struct {
	Guard  Guard
	Master *secret.Master
	// Find gives an endpoint; its fault is NotFound when there is none.
	Find func(context.Context, Key) (Endpoint, error)
	// Observe takes in that an endpoint failed, works again, or wants nothing more.
	Observe func(context.Context, Observation) error
	Log     *slog.Logger
	TLS     *tls.Config
	Timeout time.Duration // 0: 15 s
}

// Observation is what became of an attempt.
type Observation struct {
	Key
	ID   int64 // of the endpoint that it was
	OK   bool
	Gone bool // it answered 410
}

// Sender posts messages to endpoints.
type Sender struct {
	s      Settings
	client *httpsend.Client
	mu     sync.Mutex
	known  map[Key]*known
}

// known is an endpoint as it was a moment ago.
type known struct {
	endpoint Endpoint
	until    time.Time
}

const (
	// MaxBody is how long what is posted may be, in bytes.
	MaxBody     = 256 << 10
	rememberFor = 2 * time.Second
	maxKnown    = 10_000
)

var _ send.Sender = (*Sender)(nil)

// New makes a Sender.
func New(s Settings) (*Sender, error) {
	if err := s.Master.Check(); err != nil {
		return nil, err
	}
	if s.Timeout == 0 {
		s.Timeout = 15 * time.Second
	}
	return &Sender{s: s, known: make(map[Key]*known), client: httpsend.New(httpsend.Settings{
		Timeout: s.Timeout, TLS: s.TLS, Dial: s.Guard.Dial(s.Timeout), PerHost: 64})}, nil
}

var goodType = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// Check tells what is wrong with a message that no endpoint could get.
func Check(c *send.Content) error {
	switch {
	case !goodType.MatchString(c.Type): // it stands in a header
		return errors.New("type must be 1 to 128 letters, digits, dots, - and _")
	case len(c.Data) > MaxBody:
		return fmt.Errorf("data must be at most %d bytes", MaxBody)
	}
	return nil
}

// Send posts the message's data to the endpoint that it is for. It does not look at Types: who names an endpoint means
// it.
func (s *Sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	if err := Check(&m.Content); err != nil {
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
	if err := s.s.Guard.URL(e.URL); err != nil { // allowed when it was made
		return send.Receipt{}, &send.Failure{Outcome: send.Refused, Code: "blocked", Text: "its URL " + err.Error()}
	}
	now := time.Now()
	h := http.Header{"Content-Type": {"application/json"}, "Webhook-Event": {m.Content.Type}}
	sign(h, m.Key, now, m.Content.Data, e.Secrets(s.s.Master, now)...)
	a, f := s.client.Do(ctx, &httpsend.Request{URL: e.URL, Header: h, Body: m.Content.Data})
	if f == nil {
		f = verdict(a)
	}
	// What we blocked, or broke off ourselves, tells nothing of the endpoint. That its time was over does.
	if f == nil || f.Outcome != send.Refused && !errors.Is(ctx.Err(), context.Canceled) {
		s.observe(ctx, e, Observation{Key: e.Key, ID: e.ID, OK: f == nil, Gone: f != nil && f.Disable})
	}
	if f != nil {
		return send.Receipt{}, f
	}
	return send.Receipt{}, nil
}

// verdict is what an answer means: nil, it was taken.
func verdict(a *httpsend.Answer) *send.Failure {
	f := &send.Failure{Outcome: send.Temporary, Code: "http_" + strconv.Itoa(a.Status), Text: http.StatusText(a.Status),
		RetryAfter: a.RetryAfter}
	switch {
	case a.Status >= 200 && a.Status < 300:
		return nil
	case a.Status == http.StatusGone:
		f.Outcome, f.Disable = send.Permanent, true
	case a.Status == http.StatusBadGateway, a.Status == http.StatusGatewayTimeout:
		f.Outcome = send.Unknown // something in front of the endpoint says it, which may have got it
	}
	return f
}

// find gives an endpoint as it was at most rememberFor ago.
func (s *Sender) find(ctx context.Context, k Key) (Endpoint, error) {
	now := time.Now()
	s.mu.Lock()
	if e := s.known[k]; e != nil && now.Before(e.until) {
		defer s.mu.Unlock()
		return e.endpoint, nil
	}
	s.mu.Unlock()
	e, err := s.s.Find(ctx, k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.known, k)
		return e, err
	}
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[k] = &known{e, now.Add(rememberFor)}
	return e, nil
}

// observe writes down what changes the endpoint, and nothing else: that it works when it was failing, that it
// failed and that was not noted within the hour, that it is gone.
func (s *Sender) observe(ctx context.Context, e Endpoint, o Observation) {
	now, seen := time.Now(), &e
	s.mu.Lock()
	// with what others have noted that were under way meanwhile
	if k := s.known[e.Key]; k != nil && k.endpoint.ID == e.ID {
		seen = &k.endpoint
	}
	if seen.Disabled != "" || o.OK && seen.FailingSince.IsZero() || !o.OK && !o.Gone && now.Sub(seen.FailedAt) < noted {
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
	// The attempt's time may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.s.Observe(ctx, o); err != nil {
		s.s.Log.WarnContext(ctx, "could not record the result of an attempt at a webhook endpoint", "tenant_id",
			o.Tenant, "endpoint", o.Name, "error", err)
		s.mu.Lock()
		delete(s.known, e.Key)
		s.mu.Unlock()
	}
}
