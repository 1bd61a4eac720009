package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// collector is an OTLP/HTTP trace collector.
type collector struct {
	t     *testing.T
	url   string
	mu    sync.Mutex
	asked int
	spans map[string]*span // by trace id
}

type span struct {
	*tracepb.Span
	attributes map[string]string
	service    string
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t, spans: map[string]*span{}}
	return c.serve(c.take)
}

// serve starts the collector with a handler, and counts requests.
func (c *collector) serve(h http.HandlerFunc) *collector {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.asked++
		c.mu.Unlock()
		h(w, r)
	}))
	c.t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

func (c *collector) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m coltracepb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &m)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
		r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("the collector does not understand %s %s %s: %v", r.Method, r.URL, r.Header, err)
		http.NotFound(w, r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range m.ResourceSpans {
		service := attributes(of.Resource.GetAttributes())["service.name"]
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans[hex.EncodeToString(s.TraceId)] = &span{s, attributes(s.Attributes), service}
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf") // an empty body is a valid response
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		m[a.Key] = a.Value.GetStringValue()
		if n, ok := a.Value.Value.(*commonpb.AnyValue_IntValue); ok {
			m[a.Key] = fmt.Sprint(n.IntValue)
		}
	}
	return m
}

// traced is a server with sample accounts, and an API key.
type traced struct {
	*serving
	key string
}

var listening = regexp.MustCompile(`"listening","address":"([^"]+)"`)

const ledgerService = "/" + ledgerv1connect.LedgerServiceName + "/"

func (p *program) serveTraced(t *testing.T, db *pgtest.DB, env []string, args ...string) *traced {
	t.Helper()
	p = &program{t: t, file: p.file, env: append(append(os.Environ(), "DATABASE_URL="+db.AppDSN,
		"LEDGERD_ADMIN_DATABASE_URL="+db.AdminDSN), env...)}
	s := &traced{key: p.must("apikey", "create", "--tenant", "acme", "--principal", "orders", "--role", "admin")}
	s.serving = p.start(listening, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	for _, call := range [][2]string{
		{"CreateAssets", `{"assets":[{"code":"CNY","scale":2}]}`},
		{"CreateAccounts", `{"accounts":[{"code":"world","asset":"CNY","unbounded":true},{"code":"a","asset":"CNY"}]}`},
	} {
		if code, body := post(t, s.base+ledgerService+call[0], s.key, call[1]); code != 200 {
			t.Fatalf("%s: %d %s", call[0], code, body)
		}
	}
	return s
}

// transfer pays, with additional headers.
func (s *traced) transfer(bizNo, from, to, amount string, headers ...string) int {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.base+ledgerService+"Transfer", strings.NewReader(fmt.Sprintf(
		`{"bizNo":%q,"postings":[{"from":%q,"to":%q,"asset":"CNY","amount":%q}]}`, bizNo, from, to, amount)))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

const parentSpan = "00f067aa0ba902b7"

func traceID(n int) string { return fmt.Sprintf("4bf92f3577b34da6a3ce929d%08x", n) }

func traceparent(n int) string { return "00-" + traceID(n) + "-" + parentSpan + "-01" }

func TestTraces(t *testing.T) {
	t.Parallel()
	p := build(t)
	t.Run("a span of every call, in its caller's trace", func(t *testing.T) { t.Parallel(); testSpans(t, p) })
	t.Run("a failing collector does not affect calls",
		func(t *testing.T) { t.Parallel(); testBadCollectors(t, p) })
	t.Run("off by default", func(t *testing.T) {
		t.Parallel()
		c := newCollector(t)
		s := p.serveTraced(t, pgtest.New(t), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url})
		s.transfer("one", "world", "a", "1", "Traceparent", traceparent(1))
		s.end()
		if n := c.requests(); n != 0 {
			t.Errorf("%d unwanted requests", n)
		}
	})
	t.Run("an invalid address is refused", func(t *testing.T) {
		t.Parallel()
		app := &program{t: t, file: p.file, env: append(os.Environ(), "DATABASE_URL="+pgtest.New(t).AppDSN)}
		for _, bad := range []string{"collector:4318", "127.0.0.1:4318", "http://", "ftp://collector", "%"} {
			if out, code := app.run("serve", "--listen", "127.0.0.1:0", "--trace-url", bad); code != 1 ||
				!strings.Contains(out, "--trace-url") {
				t.Fatalf("%s: %d %s", bad, code, out)
			}
		}
	})
}

func testSpans(t *testing.T, p *program) {
	c := newCollector(t)
	s := p.serveTraced(t, pgtest.New(t), nil, "--trace-url", c.url)
	call := func(n int, from, amount string, more ...string) int {
		return s.transfer(fmt.Sprint("biz-", n), from, map[string]string{"world": "a", "a": "world"}[from], amount,
			append([]string{"Traceparent", traceparent(n), "X-Request-ID", fmt.Sprint("id-", n)}, more...)...)
	}
	call(1, "world", "5")
	call(2, "a", "1000")
	call(3, "a", "1e3")
	s.transferOverGRPC(t, 4)
	watched := s.watch(t, 5)
	call(6, "a", "1", "Authorization", "Bearer nobody")
	call(7, "a", "1", "Traceparent", strings.TrimSuffix(traceparent(7), "1")+"0")
	s.end() // long before a batch of spans is full or old
	<-watched

	c.mu.Lock()
	defer c.mu.Unlock()
	connectRPC := func(code, reason string) map[string]string {
		return map[string]string{"rpc.system": "connect_rpc", "rpc.connect_rpc.error_code": code, "reason": reason}
	}
	for n, want := range map[int]map[string]string{
		1: connectRPC("", ""),
		2: connectRPC("failed_precondition", "INSUFFICIENT_FUNDS"),
		3: connectRPC("invalid_argument", "FIELD_INVALID"),
		4: {"rpc.system": "grpc", "rpc.grpc.status_code": "9", "reason": "INSUFFICIENT_FUNDS"},
		5: connectRPC("unavailable", "SHUTTING_DOWN"),
	} {
		got := c.spans[traceID(n)]
		if got == nil {
			t.Errorf("no span of call %d", n)
			continue
		}
		method := "Transfer"
		if n == 5 {
			method = "WatchEntries"
		}
		maps.Copy(want, map[string]string{"rpc.service": ledgerv1connect.LedgerServiceName, "rpc.method": method,
			"request_id": fmt.Sprint("id-", n)})
		for name, value := range want {
			if got.attributes[name] != value {
				t.Errorf("call %d: %s is %q, not %q", n, name, got.attributes[name], value)
			}
		}
		if hex.EncodeToString(got.ParentSpanId) != parentSpan ||
			got.Name != ledgerv1connect.LedgerServiceName+"/"+method ||
			got.Kind != tracepb.Span_SPAN_KIND_SERVER || got.service != "ledgerd" ||
			got.EndTimeUnixNano <= got.StartTimeUnixNano {
			t.Errorf("call %d: %v of %s", n, got.Span, got.service)
		}
		// Only server errors make the span an error; other failures are only in the code.
		if failed := got.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR; failed != (n == 5) {
			t.Errorf("call %d: status %v", n, got.Status)
		}
	}
	if c.spans[traceID(6)] != nil {
		t.Error("an unauthenticated caller can write into traces")
	}
	if c.spans[traceID(7)] != nil {
		t.Error("an unsampled call was traced")
	}
	roots := 0
	for id, got := range c.spans {
		if !strings.HasPrefix(id, traceID(0)[:24]) && len(got.ParentSpanId) == 0 {
			roots++
		}
	}
	if roots != 2 || len(c.spans) != 7 { // the two setup calls have no trace context
		t.Errorf("%d spans, %d of them roots", len(c.spans), roots)
	}
}

// request is a request with the headers of call n.
func request[T any](s *traced, n int, m *T) *connect.Request[T] {
	r := connect.NewRequest(m)
	r.Header().Set("Authorization", "Bearer "+s.key)
	r.Header().Set("Traceparent", traceparent(n))
	r.Header().Set("X-Request-ID", fmt.Sprint("id-", n))
	return r
}

// transferOverGRPC requests more than is available.
func (s *traced) transferOverGRPC(t *testing.T, n int) {
	t.Helper()
	h2 := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	h2.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	client := connect.NewClient[ledgerv1.TransferRequest, ledgerv1.TransferResponse](h2,
		s.base+ledgerService+"Transfer", connect.WithGRPC())
	_, err := client.CallUnary(context.Background(), request(s, n, &ledgerv1.TransferRequest{BizNo: "over-grpc",
		Postings: []*ledgerv1.Posting{{From: "a", To: "world", Asset: "CNY", Amount: "1000"}}}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Fatal(err)
	}
}

// watch watches entries until the server ends.
func (s *traced) watch(t *testing.T, n int) (ended chan struct{}) {
	t.Helper()
	client := connect.NewClient[ledgerv1.WatchEntriesRequest, ledgerv1.WatchEntriesResponse](http.DefaultClient,
		s.base+ledgerService+"WatchEntries")
	stream, err := client.CallServerStream(context.Background(),
		request(s, n, &ledgerv1.WatchEntriesRequest{Cursor: "0"}))
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		for stream.Receive() {
		}
		stream.Close()
	}()
	return ended
}

// testBadCollectors makes calls while the collector fails and the queue of spans is full.
func testBadCollectors(t *testing.T, p *program) {
	for name, take := range map[string]http.HandlerFunc{
		"down": nil,
		"hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"busy":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"cannot": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &collector{t: t, url: "http://127.0.0.1:1"} // closed port
			if take != nil {
				c.serve(take)
			}
			s := p.serveTraced(t, pgtest.New(t),
				[]string{"OTEL_BSP_SCHEDULE_DELAY=5", "OTEL_BSP_MAX_QUEUE_SIZE=2", "LEDGERD_TRACE_URL=" + c.url})
			for n := range 30 {
				start := time.Now()
				if code := s.transfer(fmt.Sprint(n), "world", "a", "1"); code != 200 {
					t.Errorf("call %d: %d", n, code)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Fatalf("call %d took %v", n, took)
				}
			}
			start := time.Now()
			said := s.end()
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("shutdown took %v", took)
			}
			lost := 0
			for line := range strings.Lines(said) {
				m := map[string]any{}
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Errorf("not a line of the log: %s", line)
				}
				if m["msg"] == "could not export traces" {
					lost++
				}
			}
			if lost != 1 {
				t.Errorf("the log reports lost traces %d times:\n%s", lost, said)
			}
			if c.requests() == 0 && take != nil {
				t.Error("the collector got no requests: the test shows nothing")
			}
		})
	}
}
