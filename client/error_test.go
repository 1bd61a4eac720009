package client_test

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func newLedgerClient(h connect.HTTPClient, url string,
	opts ...connect.ClientOption) ledgerv1connect.LedgerServiceClient {
	return ledgerv1connect.NewLedgerServiceClient(h, url, opts...)
}

func TestErrorsAreTheSameOverEveryProtocol(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	var first map[string]client.Error
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		c := newClient(t, url, opts...)
		got := map[string]client.Error{}
		for name, request := range map[string]*ledgerv1.TransferRequest{
			"poor": transfer("poor", "shop", "bob", "1.00"), "bad": transfer("", "alice", "alice", "-1"),
		} {
			ctx, info := client.WithInfo(t.Context())
			_, err := c.Ledger.Transfer(ctx, request)
			e, ok := client.AsError(err)
			if !ok || e.RequestID == "" || e.RequestID != info.RequestID || connect.CodeOf(err) != e.Code {
				t.Fatalf("%s: %v, %+v", name, err, info)
			}
			got[name] = client.Error{Code: e.Code, Reason: e.Reason, Class: e.Class, NextStep: e.NextStep,
				ShowToUser: e.ShowToUser,
				Message:    e.Message, Metadata: e.Metadata, Fields: e.Fields}
		}
		poor := got["poor"]
		if poor.Reason != client.ReasonInsufficientFunds || poor.Class != client.ClassRefusal ||
			poor.NextStep != client.StepNewKey ||
			!poor.ShowToUser || poor.Metadata["available"] != "0.00" || poor.Message == "" ||
			poor.Code != connect.CodeFailedPrecondition {
			t.Errorf("%+v", poor)
		}
		if bad := got["bad"]; bad.Reason != client.ReasonFieldInvalid || bad.Class != client.ClassBadRequest ||
			len(bad.Fields) == 0 ||
			snake(bad.Fields[0].Path) != "biz_no" || bad.Fields[0].Description == "" {
			t.Errorf("%+v", bad)
		}
		bad := got["bad"]
		got["bad"] = *spelt(&bad)
		if first == nil {
			first = got
		} else if first["poor"].Message != poor.Message || !reflect.DeepEqual(first["bad"].Fields, got["bad"].Fields) {
			t.Errorf("%+v, over another protocol %+v", got, first)
		}
	})
}

func TestErrorsMatchTheirReason(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	_, err := newClient(t, url).Ledger.Transfer(t.Context(), transfer("poor", "shop", "bob", "1.00"))
	if !errors.Is(err, client.ReasonInsufficientFunds) || errors.Is(err, client.ReasonAccountClosed) ||
		client.ReasonOf(err) != client.ReasonInsufficientFunds {
		t.Errorf("%v does not match its reason", err)
	}
	if !strings.HasPrefix(err.Error(), "INSUFFICIENT_FUNDS: ") {
		t.Errorf("%v does not contain its reason", err)
	}
	// Errors of a client without our interceptors can be decoded too.
	_, err = newLedgerClient(newLosing(0), url).Transfer(t.Context(), transfer("poor", "shop", "bob", "1.00"))
	if client.ReasonOf(err) != client.ReasonInsufficientFunds {
		t.Errorf("%v was not decoded", err)
	}
	if _, ok := client.AsError(io.EOF); ok || client.ReasonOf(nil) != "" {
		t.Error("a foreign error was decoded")
	}
}

func TestErrorsOfStreamsAreDecoded(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		c := newClient(t, serve(t, stub{}), opts...)
		stream, err := c.Ledger.WatchEntries(t.Context(), &ledgerv1.WatchEntriesRequest{})
		if err == nil {
			stream.Receive()
			err = stream.Err()
		}
		if e := (*client.Error)(nil); !errors.As(err, &e) || e.Code != connect.CodeUnimplemented {
			t.Errorf("%T %v", err, err)
		}
	})
}

func TestTheClientKnowsEveryReasonOfTheServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	var here, there []string
	for _, m := range regexp.MustCompile(`Reason = "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		here = append(here, m[1])
	}
	for _, r := range fault.All() {
		there = append(there, r.Name)
	}
	slices.Sort(here)
	if !slices.Equal(here, there) {
		t.Errorf("reason.go has\n%v\nthe server\n%v", here, there)
	}
}

func TestRequestIDsArePropagatedByAService(t *testing.T) {
	t.Parallel()
	inner := &asking{}
	innerURL := serve(t, inner, connect.WithInterceptors(client.RequestIDInterceptor()))
	outer := &asking{ask: newClient(t, innerURL).Ledger}
	c := newClient(t, serve(t, outer, connect.WithInterceptors(client.RequestIDInterceptor())),
		client.WithRequestID(func(context.Context) string { return "from-outside" }))
	ctx, info := client.WithInfo(t.Context())
	if _, err := c.Ledger.Transfer(ctx, transfer("a", "b", "c", "1")); err != nil {
		t.Fatal(err)
	}
	if outer.id != "from-outside" || inner.id != "from-outside" || info.RequestID != "from-outside" {
		t.Errorf("outer %q, inner %q, back %q", outer.id, inner.id, info.RequestID)
	}
	c = newClient(t, innerURL, client.WithRequestID(func(context.Context) string { return "not\ngood" }))
	if _, err := c.Ledger.Transfer(t.Context(), transfer("a", "b", "c", "1")); err != nil || len(inner.id) != 24 {
		t.Errorf("%q, %v: want a generated one", inner.id, err)
	}
}

func TestAServiceGeneratesAMissingRequestID(t *testing.T) {
	t.Parallel()
	inner := &asking{}
	outer := &asking{ask: newClient(t, serve(t, inner, connect.WithInterceptors(client.RequestIDInterceptor()))).Ledger}
	c := newLedgerClient(newLosing(0), serve(t, outer, connect.WithInterceptors(client.RequestIDInterceptor())))
	ctx, call := connect.NewClientContext(t.Context())
	if _, err := c.Transfer(ctx, transfer("a", "b", "c", "1")); err != nil {
		t.Fatal(err)
	}
	if back := call.ResponseHeader().Get(client.RequestIDHeader); outer.id == "" || inner.id != outer.id ||
		back != outer.id {
		t.Errorf("outer %q, inner %q, back %q", outer.id, inner.id, back)
	}
}

// asking is a service that calls another one, if there is one.
type asking struct {
	stub
	ask ledgerv1connect.LedgerServiceClient
	id  string
}

func (s *asking) Transfer(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	s.id = client.RequestID(ctx)
	if s.ask != nil {
		return s.ask.Transfer(ctx, r)
	}
	return s.stub.Transfer(ctx, r)
}

func TestTheAPIKeyIsSentWithEveryCall(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 3)
	c := newClient(t, serve(t, stub{}, connect.WithInterceptors(headers{"Authorization", seen})),
		client.WithAPIKey("ldg_1_a_b"))
	_, _ = c.Ledger.Transfer(t.Context(), transfer("a", "b", "c", "1"))
	_, _ = c.Ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{})
	if stream, err := c.Ledger.WatchEntries(t.Context(), &ledgerv1.WatchEntriesRequest{}); err == nil {
		stream.Receive()
	}
	for range 3 {
		if got := <-seen; got != "Bearer ldg_1_a_b" {
			t.Errorf("sent %q", got)
		}
	}
}

// headers records the values of a header in calls.
type headers struct {
	name string
	seen chan<- string
}

func (h headers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		h.seen <- req.Header().Get(h.name)
		return next(ctx, req)
	}
}

func (h headers) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (h headers) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		h.seen <- conn.RequestHeader().Get(h.name)
		return next(ctx, conn)
	}
}
