package rpc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestReadsOfOneTenantLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	r := NewReads(16, nil)
	r.connections.maxWait = 50 * time.Millisecond
	started, end := make(chan bool), make(chan bool)
	slow := func() (connect.AnyResponse, error) {
		started <- true
		<-end
		return connect.NewResponse(&wrapperspb.BoolValue{}), nil
	}
	done := make(chan error, 10)
	for range 10 {
		go func() { _, err := r.run(t.Context(), 1, slow); done <- err }()
		<-started
	}
	quick := func() (connect.AnyResponse, error) { return connect.NewResponse(&wrapperspb.BoolValue{}), nil }
	if _, err := r.run(t.Context(), 1, quick); !fault.Is(err, fault.Busy) {
		t.Errorf("one read more: %v", err)
	}
	if _, err := r.run(t.Context(), 2, quick); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	close(end)
	for range 10 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := r.run(t.Context(), 1, quick); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// reads serves GetAccount with responses of 16 MiB, more than sockets buffer. The API key is the tenant's number.
func reads(t *testing.T, timeout time.Duration) (address string, limits *Reads) {
	t.Helper()
	gate := &Gate{Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Reads: NewReads(16, nil),
		Authenticate: func(_ context.Context, key string) (access.Identity, error) {
			return access.Identity{Tenant: int32(key[0] - '0'), Role: access.Read}, nil
		}}
	gate.Reads.bytes = newAdmission(40<<20, 20<<20, "large responses in flight")
	gate.Reads.bytes.maxWait = 20 * time.Millisecond
	method := ledgerv1.File_ledgerd_ledger_v1_ledger_service_proto.Services().ByName("LedgerService").Methods().ByName("GetAccount")
	h := connect.NewUnaryHandlerSimple(ledgerv1connect.LedgerServiceGetAccountProcedure,
		func(context.Context, *ledgerv1.GetAccountRequest) (*ledgerv1.GetAccountResponse, error) {
			return &ledgerv1.GetAccountResponse{Account: &ledgerv1.Account{Code: strings.Repeat("x", 16<<20)}}, nil
		}, append(gate.Options(), connect.WithSchema(method), connect.WithIdempotency(connect.IdempotencyNoSideEffects))...)
	requests := NewAdmission(nil)
	requests.writeTimeout = timeout
	s := httptest.NewServer(Named(requests.Bounded(h)))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), gate.Reads
}

// ask sends a request, and returns the connection, on which nothing of the response was read.
func ask(t *testing.T, address, key string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	const body = `{"account":{"code":"a","asset":"COIN"}}`
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		ledgerv1connect.LedgerServiceGetAccountProcedure, key, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	return c
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

// await waits until responses in flight are, or are not.
func (r *Reads) await(t *testing.T, inFlight bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
		if bytes, _ := r.bytes.held(); bytes > 0 == inFlight {
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

func TestResponseThatIsNotReadTimesOut(t *testing.T) {
	t.Parallel()
	address, limits := reads(t, 50*time.Millisecond)
	ask(t, address, "1")
	limits.await(t, true)
	limits.await(t, false)
}
