package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// health serves /healthz (the process runs), /readyz (whether calls would succeed, with the problems) and the gRPC
// health protocol.
func (s *Server) health(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		problems := s.problems(r.Context())
		w.Header().Set("Content-Type", "application/json")
		if len(problems) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		answer := map[string]any{"ready": len(problems) == 0, "problems": problems}
		if lead := s.engine.ClockLead(); lead > 0 {
			answer["clock"] = "rows were recorded " + lead.Truncate(time.Second).String() +
				" ahead of the database's clock"
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	// Callers have no API key: their requests are small, and not compressed.
	limit := connect.WithHandlerOptions(connect.WithReadMaxBytes(4<<10), connect.WithCompression("gzip", nil, nil))
	mux.Handle(health.Health_Check_FullMethodName, connect.NewUnaryHandler(health.Health_Check_FullMethodName,
		func(ctx context.Context,
			r *connect.Request[health.HealthCheckRequest]) (*connect.Response[health.HealthCheckResponse], error) {
			if name := r.Msg.GetService(); name != "" && !slices.Contains(s.services, name) {
				return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such service"))
			}
			return connect.NewResponse(s.status(ctx)), nil
		}, limit))
	mux.Handle(health.Health_Watch_FullMethodName,
		connect.NewServerStreamHandler(health.Health_Watch_FullMethodName, s.watchHealth, limit))
}

// problems returns the reasons why calls would fail now, by component.
func (s *Server) problems(ctx context.Context) map[string]string {
	select {
	case <-s.closing:
		return map[string]string{"server": "shutting down"}
	default:
	}
	return s.readiness.problems(ctx, s.checkReadiness)
}

// readiness caches the result of a check for a second, because unauthenticated requests cause queries.
type readiness struct {
	mu    sync.Mutex
	at    time.Time
	found map[string]string
	err   error // logged with the problems
}

func (r *readiness) problems(ctx context.Context, check func(context.Context) (map[string]string,
	error)) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > time.Second {
		r.found, r.err = check(context.WithoutCancel(ctx))
		r.at = time.Now()
	}
	return r.found
}

// reason returns the error behind the last problems.
func (r *readiness) reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (s *Server) checkReadiness(ctx context.Context) (problems map[string]string, reason error) {
	problems = map[string]string{}
	if reason = s.engine.Ready(); reason != nil {
		problems["commits"] = "the last commit failed or takes too long; see the log"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var readOnly bool
	err := s.reads.QueryRow(ctx, "select pg_is_in_recovery() or current_setting('transaction_read_only')::boolean").
		Scan(&readOnly)
	switch {
	case err != nil:
		problems["database"] = "cannot be reached"
		reason = cmp.Or(reason, err)
	case readOnly:
		problems["database"] = "is read-only"
	case s.behind.Load():
		problems["database"] = "is one from before a failover or a restore that this server has seen"
	}
	// The database or a pooler may have so few connections left that only some pools get one.
	for name, pool := range map[string]*pgxpool.Pool{"api keys": s.keyring, "commits": s.batches} {
		// TotalConns would include attempts to connect, which callers keep making.
		if st := pool.Stat(); st.AcquiredConns()+st.IdleConns() > 0 || problems[name] != "" {
			continue
		}
		if err := pool.Ping(ctx); err != nil {
			problems[name] = "have no connection to the database"
			reason = cmp.Or(reason, err)
		}
	}
	return problems, reason
}

// observeReadiness logs when the server becomes unready, with the reasons, and when it is ready again.
func (s *Server) observeReadiness(ctx context.Context) error {
	select {
	case <-s.closing:
		return nil
	default:
	}
	problems := s.problems(ctx)
	if ready := len(problems) == 0; ready == s.unreadySince.IsZero() {
		return nil
	}
	if s.unreadySince.IsZero() {
		s.unreadySince = time.Now()
		s.log.Warn("not ready", "problems", problems, "error", s.readiness.reason())
		return nil
	}
	s.log.Info("ready again", "after", time.Since(s.unreadySince).Round(time.Millisecond).String())
	s.unreadySince = time.Time{}
	return nil
}

// observeEpoch logs that the epoch of the database has changed: a standby was promoted, or a backup was restored. It
// makes the server unready if the epoch is an earlier one than before, because an old primary that was started again
// would take commits that the new one does not have.
func (s *Server) observeEpoch(ctx context.Context) error {
	e, err := commit.CurrentEpoch(ctx, s.reads)
	if err != nil {
		return err
	}
	s.epochs.Set(float64(e.Number))
	behind := e.Number < s.epoch.Number
	switch {
	case behind && !s.behind.Load():
		s.log.Error("the database is one from before a failover or a restore that this server has seen. Stop it if "+
			"it is an old primary that was started again; restart this server if it was restored on purpose",
			"epoch", e.Number, "began", e.Began, "epoch_before", s.epoch.Number)
	case !behind && s.epoch.Term != "" && s.epoch.Term != e.Term:
		s.log.Warn("the database was promoted or restored: commits that it had not received may be lost",
			"epoch", e.Number, "began", e.Began, "epoch_before", s.epoch.Number)
	}
	if s.behind.Store(behind); !behind {
		s.epoch = e
	}
	return nil
}

func (s *Server) status(ctx context.Context) *health.HealthCheckResponse {
	if len(s.problems(ctx)) > 0 {
		return &health.HealthCheckResponse{Status: health.HealthCheckResponse_NOT_SERVING}
	}
	return &health.HealthCheckResponse{Status: health.HealthCheckResponse_SERVING}
}

func (s *Server) watchHealth(ctx context.Context, _ *connect.Request[health.HealthCheckRequest],
	stream *connect.ServerStream[health.HealthCheckResponse]) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last health.HealthCheckResponse_ServingStatus = -1
	for {
		if now := s.status(ctx); now.Status != last {
			last = now.Status
			if err := stream.Send(now); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.closing:
			return connect.NewError(connect.CodeUnavailable, errors.New("the server is shutting down"))
		case <-tick.C:
		}
	}
}

func metricsHandler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r})
}

// serveMetrics serves metrics and profiles on a port of their own, which the operator keeps private.
func (s *Server) serveMetrics() error {
	l, err := net.Listen("tcp", s.options.MetricsListen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(s.registry))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s.metrics = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	if ip, ok := l.Addr().(*net.TCPAddr); ok && ip.IP.IsLoopback() {
		s.metrics.Handler = onlyLocal(mux)
	} else {
		s.log.Warn("metrics and profiles are served beyond this machine without a key: keep the address of "+
			"--metrics-listen private", "address", l.Addr().String())
	}
	go func() { _ = s.metrics.Serve(l) }()
	return nil
}

// registerMetrics registers the metrics of the process, its pools and the database.
func (s *Server) registerMetrics() {
	s.epochs = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ledgerd", Name: "epoch",
		Help: "Epoch of the database: rises when a standby is promoted or a backup restored, which may lose commits. " +
			"It falls only if an old primary is started again, or a backup from before the last epoch is restored."})
	s.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), s.epochs,
		poolCollector{"engine", s.batches}, poolCollector{"read", s.reads}, poolCollector{"key", s.keyring})
	if s.sends != nil {
		s.registry.MustRegister(poolCollector{"messages", s.sends})
	}
}

// poolCollector shows a pool's connections.
type poolCollector struct {
	name string
	pool *pgxpool.Pool
}

var (
	poolConnections = prometheus.NewDesc("ledgerd_pool_connections", "Connections of a pool, by state.",
		[]string{"pool", "state"}, nil)
	poolWaits = prometheus.NewDesc("ledgerd_pool_waits_total", "Acquisitions of a connection that had to wait.",
		[]string{"pool"}, nil)
)

func (p poolCollector) Describe(ch chan<- *prometheus.Desc) {
	// Unchecked: two pools share the names.
}

func (p poolCollector) Collect(ch chan<- prometheus.Metric) {
	stat := p.pool.Stat()
	gauge := func(state string, n int32) {
		ch <- prometheus.MustNewConstMetric(poolConnections, prometheus.GaugeValue, float64(n), p.name, state)
	}
	gauge("idle", stat.IdleConns())
	gauge("used", stat.AcquiredConns())
	gauge("max", stat.MaxConns())
	ch <- prometheus.MustNewConstMetric(poolWaits, prometheus.CounterValue, float64(stat.EmptyAcquireCount()), p.name)
}
