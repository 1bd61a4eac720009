package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// occupy starts reads that last until end is closed, and returns their results.
func (r *Reads) occupy(t *testing.T, id access.Identity, n int, end <-chan bool) <-chan error {
	t.Helper()
	started, done := make(chan bool), make(chan error, n)
	for range n {
		go func() {
			_, err := r.run(t.Context(), &call{identity: id}, func() (connect.AnyResponse, error) {
				started <- true
				<-end
				return connect.NewResponse(&wrapperspb.BoolValue{}), nil
			})
			done <- err
		}()
		select {
		case <-started:
		case err := <-done:
			t.Fatal(err)
		}
	}
	return done
}

func (r *Reads) quick(t *testing.T, id access.Identity) error {
	t.Helper()
	_, err := r.run(t.Context(), &call{identity: id}, func() (connect.AnyResponse, error) {
		return connect.NewResponse(&wrapperspb.BoolValue{}), nil
	})
	return err
}

func TestReadsLeaveConnectionsToOtherPrincipalsAndTenants(t *testing.T) {
	t.Parallel()
	r := NewReads(18, nil)
	for _, a := range []*Admission{r.connections.principals, r.connections.tenants} {
		a.maxWait = 50 * time.Millisecond
	}
	busy := func(who string, id access.Identity, full string) {
		t.Helper()
		err := r.quick(t, id)
		if f := fault.Of(err); f == nil || f.Reason != fault.Busy || !strings.Contains(f.Message, full) {
			t.Errorf("%s: %v, not BUSY with %q", who, err, full)
		}
	}
	ada, bob, eve := access.Identity{Tenant: 1, Principal: "ada"}, access.Identity{Tenant: 1, Principal: "bob"},
		access.Identity{Tenant: 1, Principal: "eve"}
	other := access.Identity{Tenant: 2, Principal: "ada"}
	end := make(chan bool)
	first := r.occupy(t, ada, 5, end)
	busy("the same principal", ada, "principal has reached its share of 5 reads")
	if err := r.quick(t, bob); err != nil {
		t.Errorf("another principal: %v", err)
	}
	second := r.occupy(t, bob, 5, end)
	busy("a third principal", eve, "tenant has reached its share of 10 reads")
	third := r.occupy(t, other, 4, end)
	busy("another tenant", other, "server has reached its limit of 14 reads")
	close(end)
	for _, done := range []<-chan error{first, second, third} {
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	if err := r.quick(t, ada); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	for _, a := range []*Admission{r.connections.principals, r.connections.tenants} {
		if n, lanes := a.held(); n != 0 || lanes != 0 {
			t.Errorf("%d reads of %d lanes are left", n, lanes)
		}
	}
}

// reads serves GetAccount with responses of 16 MiB, more than sockets buffer. The API key is the tenant's number.
func reads(t *testing.T, timeout time.Duration) (address string, limits *Reads) {
	t.Helper()
	return respond(t, timeout, connect.IdempotencyNoSideEffects)
}

func respond(t *testing.T, timeout time.Duration, level connect.IdempotencyLevel) (address string, limits *Reads) {
	t.Helper()
	gate := &Gate{Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Reads: NewReads(18, nil),
		Authenticate: func(_ context.Context, key string) (access.Identity, error) {
			return access.Identity{Tenant: int32(key[0] - '0'), Role: access.Read}, nil
		}}
	gate.Reads.bytes = newShares(80<<20, 40<<20, "bytes of large responses in flight", 20*time.Millisecond)
	method := ledgerv1.File_ledgerd_ledger_v1_ledger_service_proto.Services().ByName("LedgerService").Methods().
		ByName("GetAccount")
	h := connect.NewUnaryHandlerSimple(ledgerv1connect.LedgerServiceGetAccountProcedure,
		func(context.Context, *ledgerv1.GetAccountRequest) (*ledgerv1.GetAccountResponse, error) {
			return &ledgerv1.GetAccountResponse{Account: &ledgerv1.Account{Code: strings.Repeat("x", 16<<20)}}, nil
		}, append(gate.Options(), connect.WithSchema(method),
			connect.WithIdempotency(level))...)
	requests := NewAdmission(nil)
	requests.writeTimeout = timeout
	s := httptest.NewUnstartedServer(requests.Handler(slog.New(slog.DiscardHandler), h))
	start(t, s)
	return s.Listener.Addr().String(), gate.Reads
}

// start starts a server for HTTP/1 and HTTP/2 without TLS.
func start(t *testing.T, s *httptest.Server) {
	t.Helper()
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
}

// http2 is a client without HTTP/1.
func http2(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends a request, and returns the connection, on which nothing of the response was read.
func ask(t *testing.T, address, key string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	sendOn(t, c, key)
	return c
}

var askedBody, _ = proto.Marshal(&ledgerv1.GetAccountRequest{
	Account: &ledgerv1.AccountRef{Code: "a", Asset: "COIN"}})

// sendOn sends a request on a connection.
func sendOn(t *testing.T, c net.Conn, key string) {
	t.Helper()
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: "+
		"application/proto\r\nContent-Length: %d\r\n\r\n%s",
		ledgerv1connect.LedgerServiceGetAccountProcedure, key, len(askedBody), askedBody)
	if err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, c net.Conn) int {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// await waits until there are responses in flight, or until there are none.
func (r *Reads) await(t *testing.T, inFlight bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
		if bytes, _ := r.bytes.tenants.held(); bytes > 0 == inFlight {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("no change")
		}
	}
}

func TestUnreadResponsesOccupyOnlyTheMemoryOfTheirTenant(t *testing.T) {
	t.Parallel()
	address, limits := reads(t, time.Minute)
	unread := ask(t, address, "1")
	limits.await(t, true)
	if got := status(t, ask(t, address, "1")); got != http.StatusTooManyRequests {
		t.Errorf("the same tenant: %d", got)
	}
	if got := status(t, ask(t, address, "2")); got != http.StatusOK {
		t.Errorf("another tenant: %d", got)
	}
	if got := status(t, unread); got != http.StatusOK {
		t.Errorf("the first response: %d", got)
	}
	limits.await(t, false)
}

func TestUnreadResponsesOfMutationsOccupyOnlyTheMemoryOfTheirTenant(t *testing.T) {
	t.Parallel()
	address, limits := respond(t, time.Minute, connect.IdempotencyUnknown)
	unread := ask(t, address, "1")
	limits.await(t, true)
	if got := status(t, ask(t, address, "1")); got != http.StatusGatewayTimeout {
		t.Errorf("the same tenant: %d", got)
	}
	padded := `{"account":{"code":"a","asset":"COIN"}}` + strings.Repeat(" ", 5000)
	large := upload(t, address, fmt.Sprint("Content-Length: ", len(padded)), padded)
	if got := status(t, large); got != http.StatusGatewayTimeout {
		t.Errorf("with a large request: %d", got)
	}
	if got := status(t, ask(t, address, "2")); got != http.StatusOK {
		t.Errorf("another tenant: %d", got)
	}
	_ = unread.Close()
	limits.await(t, false)
}

func TestManyIDsAreNotMadeWithoutMemoryForThem(t *testing.T) {
	t.Parallel()
	id := access.Identity{Tenant: 1, Role: access.Write}
	gate := &Gate{Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Reads: NewReads(18, nil), Anyone: id}
	gate.Reads.generated.principals.maxWait = 20 * time.Millisecond
	method := idv1.File_ledgerd_id_v1_id_service_proto.Services().ByName("IdService").Methods().ByName("Generate")
	h := connect.NewUnaryHandlerSimple(idv1connect.IdServiceGenerateProcedure,
		(&IDs{}).Generate, // without a generator
		append(gate.Options(), connect.WithSchema(method))...)
	s := httptest.NewUnstartedServer(NewAdmission(nil).Handler(slog.New(slog.DiscardHandler), h))
	start(t, s)
	var others share
	if err := gate.Reads.generated.enter(t.Context(), &others, id, generatedBytes); err != nil {
		t.Fatal(err)
	}
	c := &call{request: &request{}, identity: id}
	if err := c.enter(t.Context(), gate.Reads.bytes, largeResponse+1); err != nil {
		t.Errorf("a response that is not of ids: %v", err)
	}
	for want, r := range map[connect.Code]*idv1.GenerateRequest{
		connect.CodeResourceExhausted: {Count: 410},
		connect.CodeInvalidArgument:   {Count: 100_000, Prefix: "ORD"},
		connect.CodeInternal:          {Count: 409}, // admitted without waiting, and fails without a generator
	} {
		_, err := idv1connect.NewIdServiceClient(s.Client(), s.URL).Generate(t.Context(), r)
		if connect.CodeOf(err) != want {
			t.Error(err)
		}
	}
}

func TestResponseThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	address, limits := reads(t, 50*time.Millisecond)
	ask(t, address, "1")
	limits.await(t, true)
	limits.await(t, false)
}

// net/http resets the write deadline after each request of a connection.
func TestLaterResponseThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	address, limits := reads(t, time.Second)
	c := ask(t, address, "1")
	if got := status(t, c); got != http.StatusOK {
		t.Fatalf("the first response: %d", got)
	}
	limits.await(t, false)
	sendOn(t, c, "1")
	limits.await(t, true)
	limits.await(t, false)
}

// The caller holds back the window of the stream, and the connection stays alive.
func TestHTTP2ResponseThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	address, limits := reads(t, time.Second)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+address+ledgerv1connect.LedgerServiceGetAccountProcedure, bytes.NewReader(askedBody))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer 1")
	r.Header.Set("Content-Type", "application/proto")
	res, err := http2(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	limits.await(t, true)
	limits.await(t, false)
}

func TestResponseOutsideOfTheGateThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	requests := NewAdmission(nil)
	requests.writeTimeout = 50 * time.Millisecond
	s := httptest.NewUnstartedServer(requests.Handler(slog.New(slog.DiscardHandler),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(make([]byte, 16<<20))
			ended <- err
		})))
	start(t, s)
	for _, caller := range []*http.Client{s.Client(), http2(t)} {
		res, err := caller.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("HTTP/%d: the response was written", res.ProtoMajor)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("HTTP/%d: no end", res.ProtoMajor)
		}
	}
}

// A caller may send request after request without reading the responses.
func TestSmallResponsesThatAreNotReadTimeOut(t *testing.T) {
	t.Parallel()
	requests := NewAdmission(nil)
	requests.writeTimeout = 50 * time.Millisecond
	s := httptest.NewUnstartedServer(requests.Handler(slog.New(slog.DiscardHandler),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, buffered)) })))
	start(t, s)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	err = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	for many := strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1000); err == nil; {
		_, err = io.WriteString(c, many)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server did not end the connection")
	}
}

// upload sends the header of a request with a body, and the beginning of the body.
func upload(t *testing.T, address, header, begin string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 1\r\nContent-Type: "+
		"application/json\r\n%s\r\n\r\n%s",
		ledgerv1connect.LedgerServiceGetAccountProcedure, header, begin); err != nil {
		t.Fatal(err)
	}
	return c
}

// connect-go itself refuses a body that is not gzip. The body may take longer than a write of the response.
func TestErrorAfterASlowUploadArrives(t *testing.T) {
	t.Parallel()
	address, _ := reads(t, 50*time.Millisecond)
	c := upload(t, address, "Content-Encoding: gzip\r\nContent-Length: 4", "no")
	<-time.After(300 * time.Millisecond)
	if _, err := io.WriteString(c, "ne"); err != nil {
		t.Fatal(err)
	}
	if got := status(t, c); got != http.StatusBadRequest {
		t.Error(got)
	}
}

// A stream may be silent for longer than a write may take.
func TestErrorOfASilentStreamArrives(t *testing.T) {
	t.Parallel()
	gate := &Gate{Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
		Anyone: access.Identity{Role: access.Read}}
	method := ledgerv1.File_ledgerd_ledger_v1_ledger_service_proto.Services().ByName("LedgerService").Methods().
		ByName("WatchEntries")
	h := connect.NewServerStreamHandlerSimple(ledgerv1connect.LedgerServiceWatchEntriesProcedure,
		func(_ context.Context, _ *ledgerv1.WatchEntriesRequest,
			s *connect.ServerStream[ledgerv1.WatchEntriesResponse]) error {
			if err := s.Send(&ledgerv1.WatchEntriesResponse{}); err != nil {
				return err
			}
			<-time.After(300 * time.Millisecond)
			return fault.ShuttingDown.New("the server is shutting down")
		}, append(gate.Options(), connect.WithSchema(method))...)
	requests := NewAdmission(nil)
	requests.writeTimeout = 50 * time.Millisecond
	s := httptest.NewUnstartedServer(requests.Handler(slog.New(slog.DiscardHandler), h))
	start(t, s)
	for _, caller := range []*http.Client{s.Client(), http2(t)} {
		stream, err := ledgerv1connect.NewLedgerServiceClient(caller, s.URL).WatchEntries(t.Context(),
			&ledgerv1.WatchEntriesRequest{Cursor: "0"})
		if err != nil {
			t.Fatal(err)
		}
		if !stream.Receive() || stream.Receive() || !strings.Contains(fmt.Sprint(stream.Err()), "shutting down") {
			t.Error(stream.Err())
		}
	}
}

func TestTooLongRequestIsRefusedUnread(t *testing.T) {
	t.Parallel()
	address, _ := reads(t, time.Minute)
	c := upload(t, address, "Content-Length: 3000000", "{")
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := status(t, c); got != http.StatusBadRequest {
		t.Error(got)
	}
}
