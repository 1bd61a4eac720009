// Package server wires pools, engine, services, health, metrics and background work, and shuts them down in order.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"connectrpc.com/otelconnect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/payment/dispatch"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Options configure a server. Zero values mean the defaults.
type Options struct {
	DatabaseURL string
	Listen      string // host:port, default 127.0.0.1:8080
	// MetricsListen serves /metrics and /debug/pprof without a key on a separate address. Empty: off.
	MetricsListen string
	// AdminDatabaseURL is the database with a login role in ledgerd_admin, for AdminService. Empty: it is off.
	AdminDatabaseURL string
	// TLS names the files of certificates. Nil: connections are not encrypted.
	TLS *TLSFiles
	// Issuers are the issuers of accepted tokens.
	Issuers []access.Issuer
	// Anyone is the identity of callers without credentials, which need no API key then. For development.
	Anyone *access.Identity
	// Origins are the CORS origins of pages that may call, such as https://shop.example.com; *: all.
	Origins []string
	// KeyLife is the default life of request keys, default 24 h.
	KeyLife time.Duration
	// DrainTimeout bounds the wait for calls in flight and for attempts to send messages, default 15 s. Together with
	// drainWork it is less than the 30 s that Kubernetes grants.
	DrainTimeout time.Duration
	// Traces makes OpenTelemetry spans of calls, with the global tracer provider.
	Traces bool
	// Notify configures the providers of messages. Nil: only webhooks are sent, by the server itself.
	Notify *provider.File
	// Pay configures payment gateways. Nil: there are none, and callbacks are not served.
	Pay *gateway.File
	// Webhooks validates URLs of webhook endpoints.
	Webhooks webhook.URLPolicy
	// Consume configures consumers of brokers that run in the server.
	Consume []*consumer.Settings
	// Secret has the master keys. Nil: calls that need one are refused.
	Secret *secret.Master
	// Region is the country, such as CN, of phone numbers without a country code. Empty: such numbers are refused.
	Region string
	Log    *slog.Logger
}

const (
	enginePool = 8 + commit.MaxDirect
	readPool   = 18
	keyPool    = 4 // for API keys alone: calls are authenticated even if all other connections are busy
	adminPool  = 2 // of ledgerd_admin

	readTimeout = 30 * time.Second
)

// Server is a running server.
type Server struct {
	options    Options
	log        *slog.Logger
	engine     *flow.Engine
	mutations  *rpc.Mutations
	ids        *ids.Generator
	locks      *locks
	outbox     *notify.Outbox
	pool       *deliver.Pool     // nil: without a master key
	senders    *provider.Senders // of pool
	sends      *pgxpool.Pool     // of pool
	gateways   *gateway.Set
	dispatcher *dispatch.Dispatcher
	payments   *paymentMetrics
	batches    *pgxpool.Pool // of the engine
	reads      *pgxpool.Pool
	keyring    *pgxpool.Pool // of authentication
	admin      *pgxpool.Pool // of AdminService; nil: it is off
	registry   *prometheus.Registry
	services   []string // full names
	http       *http.Server
	gate       *rpc.Gate
	metrics    *http.Server
	listener   net.Listener
	transport  *transport      // nil: without TLS
	issuers    *access.Issuers // nil: no tokens are accepted
	closing    chan struct{}   // closed when shutdown begins
	once       sync.Once
	work       sync.WaitGroup
	stop       context.CancelFunc
	readiness  readiness
	// unreadySince is when observeReadiness logged that the server is not ready, or zero. observeEpoch sets epoch, the
	// latest that it has seen, and behind: the database has an earlier one.
	unreadySince time.Time
	epoch        commit.Epoch
	behind       atomic.Bool
	epochs       prometheus.Gauge
}

// Start opens the pools, refuses a role with too many privileges, and listens.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{options: o, log: o.Log, closing: make(chan struct{}), registry: prometheus.NewRegistry()}
	if s.log == nil {
		s.log = slog.Default()
	}
	err := checkOrigins(o.Origins, o.Anyone != nil)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	instance := fmt.Sprintf("%s/%d", host, os.Getpid())
	if err := s.openOutbox(ctx, instance); err != nil {
		s.closePools()
		return nil, err
	}
	if err := s.openPayments(ctx); err != nil {
		s.closePools()
		return nil, err
	}
	address := cmp.Or(o.Listen, "127.0.0.1:8080")
	if s.listener, err = net.Listen("tcp", address); err != nil {
		s.closePools()
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	s.registerMetrics()
	s.engine = flow.NewSendingEngine(s.batches, instance, commit.NewMetrics(s.registry), s.log, s.outbox)
	s.ids = ids.New(ids.Options{Pool: s.batches, Holder: instance, Metrics: ids.NewMetrics(s.registry), Log: s.log})
	s.locks = newLocks(s, instance)
	s.mutations = &rpc.Mutations{Engine: s.engine, KeyLife: cmp.Or(s.options.KeyLife, 24*time.Hour),
		Tokens: token.NewReader(s.reads)}
	if s.options.Secret != nil {
		s.mutations.Pepper = s.options.Secret.Derive("rpc.fingerprint")
	}
	s.gate = s.newGate()
	s.http = newHTTP(s.routes(), readTimeout)
	s.http.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	if err := cmp.Or(commit.RecordEpoch(ctx, s.batches), s.observeEpoch(ctx)); err != nil { // the first batch retries
		s.log.Warn("the epoch of the database was not recorded", "error", err)
	}
	// Before the first call: after a long outage of all servers the current partitions may be missing.
	if err := s.keepPartitions(ctx); err != nil {
		s.log.Warn("could not create or drop partitions of messages", "error", err)
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.background(background)
	if err := s.consume(ctx, background); err != nil {
		s.Stop()
		return nil, err
	}
	if o.MetricsListen != "" {
		if err := s.serveMetrics(); err != nil {
			s.Stop()
			return nil, err
		}
	}
	s.warnPlain()
	go func() {
		if err := s.serve(); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the listener ended", "error", err)
		}
	}()
	return s, nil
}

// open reads the TLS files, opens the pools, and replaces the master keys by the root secret.
func (s *Server) open(ctx context.Context) (err error) {
	if s.options.TLS != nil {
		if s.transport, err = newTransport(*s.options.TLS, s.log); err != nil {
			return err
		}
	}
	if s.batches, err = pg.Open(ctx, s.options.DatabaseURL, enginePool); err != nil {
		return err
	}
	if s.reads, err = pg.OpenReads(ctx, s.options.DatabaseURL, readPool); err != nil {
		s.batches.Close()
		return err
	}
	if s.keyring, err = pg.OpenReads(ctx, s.options.DatabaseURL, keyPool); err != nil {
		s.closePools()
		return err
	}
	s.logEncryption()
	if err = pg.CheckMode(ctx, s.reads); err == nil && s.options.Anyone == nil {
		err = pg.CheckRole(ctx, s.reads)
	}
	if err == nil {
		s.options.Secret, err = s.options.Secret.Root(ctx, s.batches)
	}
	if err == nil && s.options.AdminDatabaseURL != "" {
		err = s.openAdmin(ctx)
	}
	if err != nil {
		s.closePools()
	}
	return err
}

// openAdmin opens the pool of AdminService. It refuses a role with other rights, and another database.
func (s *Server) openAdmin(ctx context.Context) (err error) {
	if s.admin, err = pg.OpenReads(ctx, s.options.AdminDatabaseURL, adminPool); err != nil {
		return fmt.Errorf("--admin-database-url: %w", err)
	}
	if err = pg.CheckMode(ctx, s.admin); err == nil {
		err = pg.CheckAdminRole(ctx, s.admin)
	}
	same := true
	if err == nil {
		same, err = commit.SameDatabase(ctx, s.reads, s.admin)
	}
	if !same && err == nil {
		err = errors.New("this is not the database of --database-url")
	}
	if err != nil {
		return fmt.Errorf("--admin-database-url: %w", err)
	}
	s.log.Info("AdminService is on (--admin-database-url)")
	return nil
}

func (s *Server) closePools() {
	s.batches.Close()
	s.reads.Close()
	if s.keyring != nil {
		s.keyring.Close()
	}
	if s.sends != nil {
		s.sends.Close()
	}
	if s.admin != nil {
		s.admin.Close()
	}
}

// Addr returns the listen address.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// newGate returns the gate of all calls.
func (s *Server) newGate() *rpc.Gate {
	gate := &rpc.Gate{Log: s.log, Memory: s.engine.Memory, Metrics: rpc.NewMetrics(s.registry),
		Traces: s.options.Traces, Reads: rpc.NewReads(readPool, s.registry), Webhooks: s.options.Webhooks,
		NewOrderNo: s.ids.OrderNo, Gateway: s.gateway}
	gate.Authenticate = access.NewKeys(s.keyring).Authenticate
	s.identify(gate)
	if s.options.Anyone != nil {
		gate.Anyone = *s.options.Anyone
	}
	return gate
}

// routes returns the handler of all paths. Only health, reports of providers and callbacks of gateways need no
// authentication.
func (s *Server) routes() http.Handler {
	gate := s.gate
	var interceptors []connect.Interceptor
	if s.options.Traces {
		if spans, err := otelconnect.NewInterceptor(otelconnect.WithoutMetrics(), otelconnect.WithTrustRemote(),
			otelconnect.WithPropagator(propagation.TraceContext{})); err == nil {
			interceptors = append(interceptors, spans)
		}
	}
	options := gate.Options(interceptors...)
	mux := http.NewServeMux()
	serve := func(path string, h http.Handler) {
		mux.Handle(rpc.Supported(path, h))
		s.services = append(s.services, strings.Trim(path, "/"))
	}
	s.serveDomains(serve, options)
	reflector := grpcreflect.NewStaticReflector(s.services...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))
	mux.HandleFunc("/", rpc.NotFound)
	s.health(mux)
	s.reports(mux)
	s.callbacks(mux)
	mux.Handle("GET /metrics", gate.RequireAdmin(metricsHandler(s.registry)))
	handler := crossOrigin(s.options.Origins, rpc.NewAdmission(s.registry).Handler(s.log, mux))
	if s.options.Anyone != nil {
		return onlyLocal(handler, s.options.Origins...)
	}
	return handler
}

func (s *Server) drainTimeout() time.Duration { return cmp.Or(s.options.DrainTimeout, 15*time.Second) }

// Stop shuts down the server: it refuses new calls, answers calls in flight, and drains the engine.
func (s *Server) Stop() {
	s.once.Do(func() {
		close(s.closing)
		ctx, cancel := context.WithTimeout(context.Background(), s.drainTimeout())
		defer cancel()
		if err := s.http.Shutdown(ctx); err != nil {
			s.log.Warn("the drain timeout is over: calls in flight were cut off", "error", err)
			_ = s.http.Close()
		}
		_ = s.listener.Close() // Shutdown closes only a listener passed to Serve
		s.stop()
		s.work.Wait()
		ctx, cancel = context.WithTimeout(context.Background(), drainWork)
		defer cancel()
		if err := s.engine.Drain(ctx); err != nil {
			s.log.Error("drain", "error", err)
		}
		if err := s.engine.SaveCounts(ctx); err != nil {
			s.log.Warn("could not save the last counts", "error", err)
		}
		if err := s.ids.Release(ctx); err != nil {
			s.log.Warn("could not release the worker number of ids: it stays leased until the lease ends", "error", err)
		}
		if s.metrics != nil {
			_ = s.metrics.Close()
		}
		s.closePoolsWithin(time.Second)
	})
}

// closePoolsWithin closes the pools, but does not wait longer for connections that the database does not answer.
func (s *Server) closePoolsWithin(patience time.Duration) {
	closed := make(chan struct{})
	go func() { s.closePools(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		s.log.Warn("left connections open that the database does not answer")
	}
}

// drainWork bounds the commits that continue after all calls have ended.
const drainWork = 5 * time.Second
