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

// Caller tells who sends a request, by what was proved of him before: the name of the principal. All
// requests of one caller share their keys. The headers are those of the request.
type Caller func(ctx context.Context, h http.Header) string

// Guard makes handlers idempotent. Safe for many goroutines; make one for a service and keep it.
type Guard struct {
	works    idempotencyv1connect.IdempotencyServiceClient
	scope    string
	caller   Caller
	settings settings
	late     sync.WaitGroup // attempts whose end is not recorded yet
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

// Option changes a Guard in the making.
type Option func(*settings)

// WithRequiredKey refuses requests without an Idempotency-Key, but for methods that only read. Default:
// they run unguarded.
func WithRequiredKey() Option { return func(s *settings) { s.required = true } }

// WithWait bounds how long a request waits for another one with its key, up to 60 s; 0: not at all.
// Default 10 s.
func WithWait(d time.Duration) Option { return func(s *settings) { s.wait = d } }

// WithLease says how long a service that has died keeps its work from others: 1 s to 1 h, default 30 s.
// A living one renews it every third of it.
func WithLease(d time.Duration) Option { return func(s *settings) { s.lease = d } }

// WithLife says how long answers are kept: 1 s to 400 days, default 24 h. Publish it: after that the same
// key is a new request.
func WithLife(d time.Duration) Option { return func(s *settings) { s.life = d } }

// WithMaxBody bounds the body of an HTTP request that has a key, which is read before the handler runs.
// Larger ones get 413. Default 1 MiB.
func WithMaxBody(bytes int64) Option { return func(s *settings) { s.maxBody = bytes } }

// WithRerun has work whose service died in the middle run again, rather than be parked. For handlers that
// are safe to begin twice.
func WithRerun() Option { return func(s *settings) { s.rerun = true } }

// WithFailOpen lets requests through unguarded when ledgerd cannot be reached. Default: they get 503, since
// to do something twice is mostly worse than to do it later.
func WithFailOpen() Option { return func(s *settings) { s.open = true } }

// WithRule says what becomes of HTTP answers. Default: DefaultRule.
func WithRule(rule func(status int, h http.Header) Outcome) Option {
	return func(s *settings) { s.rule = rule }
}

// WithConnectRule says what becomes of Connect errors. Default: DefaultConnectRule.
func WithConnectRule(rule func(error) Outcome) Option {
	return func(s *settings) { s.connect = rule }
}

// WithHeaders says which headers of an answer are recorded, by their canonical names; what never is, never
// is asked for. Default: all others.
func WithHeaders(keep func(name string) bool) Option { return func(s *settings) { s.keep = keep } }

// WithLog says where it is told that ledgerd could not be reached, and that a lease or an answer was lost.
// Default: slog.Default.
func WithLog(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// New makes a guard. The scope names the service: keys are unique in it and in the caller. 1 to 128 bytes.
func New(c *client.Client, scope string, caller Caller, opts ...Option) *Guard {
	if scope == "" || len(scope) > 128 || caller == nil {
		panic("once: a guard needs a scope of 1 to 128 bytes, and a function that tells who calls")
	}
	g := &Guard{works: c.Idempotency, scope: scope, caller: caller,
		settings: settings{wait: 10 * time.Second, lease: 30 * time.Second,
			life: 24 * time.Hour, maxBody: 1 << 20, rule: DefaultRule, connect: DefaultConnectRule,
			keep: func(string) bool { return true },
			log:  slog.Default()}}
	for _, o := range opts {
		o(&g.settings)
	}
	return g
}

// Close waits until the ends of all attempts are recorded, or ctx ends: call it when the server that the
// handlers belong to is shut down. What is left then is parked when its lease runs out.
func (g *Guard) Close(ctx context.Context) error {
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

// name is the key of a piece of work. An escaped caller has no slash, so that no two pairs give one name,
// and no #.
func (g *Guard) name(ctx context.Context, h http.Header, key string) string {
	caller := url.PathEscape(g.caller(ctx, h))
	if len(caller) > maxCaller {
		sum := sha256.Sum256([]byte(caller))
		caller = "#" + hex.EncodeToString(sum[:])
	}
	return caller + "/" + key
}
