package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// limitMemory makes garbage collections rare while memory is small, and normal otherwise: the server's live
// heap is a few megabytes, so the default would collect many times a second.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(192 << 20)
	}
}

// version describes this program: the release or the commit that it was built from, and the compiler.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "ledgerd, built without a version"
	}
	text := "ledgerd " + b.Main.Version
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(text, s.Value[:12]) {
			text += " " + s.Value[:12]
		}
	}
	return text + " " + b.GoVersion
}

// startTraces exports traces to an OTLP/HTTP address; without one it does nothing. The SDK's environment
// variables apply, such as OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS.
func startTraces(ctx context.Context, address string, log *slog.Logger) (end func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	to, err := url.Parse(address)
	if err != nil || to.Scheme != "http" && to.Scheme != "https" || to.Host == "" {
		return nil, fmt.Errorf("--trace-url %s: must be a URL such as http://127.0.0.1:4318", address)
	}
	if to.Path == "" {
		to.Path = "/v1/traces" // the exporter would use /
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to.String()))
	if err != nil {
		return nil, fmt.Errorf("--trace-url %s: %w", address, err)
	}
	who, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "ledgerd")),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	lost := logTraceLoss(log)
	otel.SetErrorHandler(lost)
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(who))
	otel.SetTracerProvider(provider)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			lost(err)
		}
	}, nil
}

// logTraceLoss logs lost traces at most once a minute: every batch of spans reports its own error.
func logTraceLoss(log *slog.Logger) otel.ErrorHandlerFunc {
	var mu sync.Mutex
	var told time.Time
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(told) > time.Minute {
			told = time.Now()
			log.Warn("could not export traces", "error", err)
		}
	}
}
