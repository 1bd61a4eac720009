package once

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
)

// Caller returns the authenticated principal of a request. All requests of one principal share their keys. The
// headers are the request's.
type Caller func(ctx context.Context, h http.Header) string

// Middleware makes handlers idempotent. It is safe for concurrent use; make one per service and keep it.
type Middleware struct {
	works    idempotencyv1connect.IdempotencyServiceClient
	scope    string
	caller   Caller
	settings settings
	late     sync.WaitGroup // attempts whose outcome is not recorded yet
}

type settings struct {
	required bool
	rerun    bool
	open     bool
	wait     time.Duration
	lease    time.Duration
	life     time.Duration
	maxBody  int64
	rule     func(status int, h http.Header) Outcome
	connect  func(error) Outcome
	keep     func(header string) bool
	log      *slog.Logger
}

// Option configures a Middleware.
type Option func(*settings)

// WithRequiredKey refuses requests without an Idempotency-Key, except for read-only methods. Default: they run
// unguarded.
func WithRequiredKey() Option { return func(s *settings) { s.required = true } }

// WithWait bounds how long a request waits for another one with the same key, up to 60 s; 0: no wait. Default
// 10 s.
func WithWait(d time.Duration) Option { return func(s *settings) { s.wait = d } }

// WithLease sets how long the work of a dead service stays locked: 1 s to 1 h, default 30 s. A running service
// renews the lease after a third of it.
func WithLease(d time.Duration) Option { return func(s *settings) { s.lease = d } }

// WithLife sets how long answers are kept: 1 s to 400 days, default 24 h. Document it for your callers:
// afterwards the same key is a new request.
func WithLife(d time.Duration) Option { return func(s *settings) { s.life = d } }

// WithMaxBody bounds the body of an HTTP request with a key, which is read before the handler runs. Larger
// requests get 413. Default 1 MiB.
func WithMaxBody(bytes int64) Option { return func(s *settings) { s.maxBody = bytes } }

// WithRerun reruns work whose service died midway, instead of parking it. Use it for handlers that may safely
// run twice.
func WithRerun() Option { return func(s *settings) { s.rerun = true } }

// WithFailOpen lets requests through unguarded if ledgerd is unreachable. Default: they get 503, because a
// duplicate is usually worse than a delay.
func WithFailOpen() Option { return func(s *settings) { s.open = true } }

// WithRule sets the outcome of HTTP answers. Default: DefaultRule.
func WithRule(rule func(status int, h http.Header) Outcome) Option {
	return func(s *settings) { s.rule = rule }
}

// WithConnectRule sets the outcome of Connect errors. Default: DefaultConnectRule.
func WithConnectRule(rule func(error) Outcome) Option {
	return func(s *settings) { s.connect = rule }
}

// WithHeaders selects the recorded headers of an answer by canonical name. It is not called for headers that
// are never recorded. Default: all others.
func WithHeaders(keep func(name string) bool) Option { return func(s *settings) { s.keep = keep } }

// WithLog sets the log for unreachability of ledgerd and for lost leases and answers. Default: slog.Default.
func WithLog(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// New makes a middleware. The scope names the service, 1 to 128 bytes: keys are unique per scope and caller.
func New(c *client.Client, scope string, caller Caller, opts ...Option) *Middleware {
	if scope == "" || len(scope) > 128 || caller == nil {
		panic("once: a middleware needs a scope of 1 to 128 bytes, and a function that returns the caller")
	}
	g := &Middleware{works: c.Idempotency, scope: scope, caller: caller,
		settings: settings{wait: 10 * time.Second, lease: 30 * time.Second,
			life: 24 * time.Hour, maxBody: 1 << 20, rule: DefaultRule, connect: DefaultConnectRule,
			keep: func(string) bool { return true },
			log:  slog.Default()}}
	for _, o := range opts {
		o(&g.settings)
	}
	return g
}

// Close waits until the outcomes of all attempts are recorded, or ctx ends. Call it when the handlers' server
// shuts down. Unrecorded attempts are parked when their lease expires.
func (g *Middleware) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() { g.late.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const maxCaller = 250

// name is the key of a piece of work. An escaped caller contains no slash, so different pairs have different
// names, and no #.
func (g *Middleware) name(ctx context.Context, h http.Header, key string) string {
	caller := url.PathEscape(g.caller(ctx, h))
	if len(caller) > maxCaller {
		sum := sha256.Sum256([]byte(caller))
		caller = "#" + hex.EncodeToString(sum[:])
	}
	return caller + "/" + key
}
