package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/rpc"
)

// Serve serves a handler of services as a Server serves its own, until the context ends. Benchmarks serve other systems
// with it, to compare them over the same HTTP.
func Serve(ctx context.Context, listen string, h http.Handler) error {
	s := newHTTP(rpc.NewAdmission(nil).Handler(slog.New(slog.DiscardHandler), h), readTimeout)
	s.Addr = listen
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newHTTP returns a server for HTTP/1 and HTTP/2 without TLS. ReadTimeout bounds only the request, not a stream of
// responses. It also bounds how long a client may leave a new connection unused: if the server closes a connection
// while the client sends its first call, that call fails.
func newHTTP(h http.Handler, readTimeout time.Duration) *http.Server {
	s := &http.Server{Handler: h, ReadTimeout: readTimeout, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 30 * time.Second,
			PingTimeout: 15 * time.Second, WriteByteTimeout: 30 * time.Second}}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// onlyLocal refuses Host headers other than localhost, against DNS rebinding: without API keys, a foreign page whose
// name resolves to this machine could call the server, or read its metrics. It also refuses requests of pages that are
// neither the server's own nor of the given origins: browsers send some of them without a preflight request.
func onlyLocal(next http.Handler, origins ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o := r.Header.Get("Origin"); o != "" && o != "http://"+r.Host && !slices.Contains(origins, o) {
			http.Error(w, "this address needs no API key, so it refuses pages of other origins: see --cors-origin",
				http.StatusForbidden)
			return
		}
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "this address needs no API key, so it accepts only requests to localhost",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
