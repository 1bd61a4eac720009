// Idempotent-service is a small service that takes each order exactly once, despite retries by callers and its
// own crashes, using package once and a ledgerd. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/client/once"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		slog.Error("the service ended", "error", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:9090", "address to listen on")
	ledgerd := flag.String("ledgerd", "http://127.0.0.1:8080", "URL of ledgerd; its API key is in LEDGERD_API_KEY")
	book := flag.String("orders", "orders.jsonl", "file for the orders")
	shipping := flag.Duration("shipping", 0, "duration of the shipping call")
	lease := flag.Duration("lease", 30*time.Second, "how long an order stays locked if this service dies")
	flag.Parse()
	file, err := os.OpenFile(*book, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	orders := &orders{file: file, shipping: *shipping}

	// These three lines make the service idempotent. A real service takes the user from an authenticated
	// session, token or certificate.
	c := client.New(*ledgerd, client.WithAPIKey(os.Getenv("LEDGERD_API_KEY")))
	middleware := once.New(c, "order-service", func(_ context.Context, h http.Header) string { return h.Get("X-User") },
		once.WithRequiredKey(), once.WithLease(*lease))
	http.Handle("POST /orders", middleware.Handler(orders))

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	slog.Info("listening", "address", listener.Addr().String())
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), middleware.Close(ctx)); err != nil {
			slog.Error("an order was cut off", "error", err)
		}
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-ended // Serve returns when Shutdown begins
	return nil
}

// orders is the state of the service: one line per order in a file. Writing it and shipping are the effects.
type orders struct {
	mu       sync.Mutex
	file     *os.File
	shipping time.Duration
}

type order struct {
	Goods string `json:"goods"`
	Count int    `json:"count"`
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var ordered order
	if err := json.NewDecoder(r.Body).Decode(&ordered); err != nil || ordered.Goods == "" || ordered.Count < 1 {
		// The caller may correct the request and retry under the same key.
		http.Error(w, "send goods, and a count of at least 1", http.StatusBadRequest)
		return
	}
	if ordered.Count > 100 {
		http.Error(w, "count: at most 100", http.StatusConflict) // a business refusal, which is final
		return
	}
	attempt, _ := once.AttemptOf(r.Context())
	number := fmt.Sprintf("order-%d", attempt.Fence)
	if err := o.write(number, ordered); err != nil {
		http.Error(w, "the order could not be written", http.StatusInternalServerError) // may be retried
		return
	}
	select {
	case <-time.After(o.shipping): // a call to another system
	case <-r.Context().Done(): // the lease was lost, and the other system's outcome is unknown
		once.Unknown(r.Context())
		http.Error(w, "the outcome of the shipping is unknown", http.StatusGatewayTimeout)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+number)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"order": number, "goods": ordered.Goods, "count": ordered.Count})
}

// write makes the order durable.
func (o *orders) write(number string, ordered order) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := json.NewEncoder(o.file).Encode(map[string]any{"order": number, "goods": ordered.Goods,
		"count": ordered.Count}); err != nil {
		return err
	}
	return o.file.Sync()
}
