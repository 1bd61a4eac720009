package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// The calls that make or list, and so go well on names of another tenant: what they answer is the
// caller's own, and fresh.
var goWell = []string{"CreateAssets", "ListAssets", "CreateAccounts", "ListAccounts", "TransferBatch", "ListHolds",
	"ListTransfers",
	"ListBalances", "TrialBalance", "WatchEntries", "Idempotency.ClaimKey", "Idempotency.ClaimKeys",
	"Idempotency.DropClaim", "Id.Parse",
	"Idempotency.Begin", "Idempotency.ListRecords", "Lock.Acquire", "Lock.Get", "Lock.List", "Lock.Hold"}

func TestNoCallSeesOrTouchesAnotherTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, theirs := furnish(s, "theirs")
	before := s.dump("theirs")
	for _, m := range methods(t) {
		empty := &caller{s, s.key("empty-"+strings.ReplaceAll(strings.ToLower(callName(m)), ".", "-"), "boss",
			access.Admin)}
		alike := &caller{s, s.key("alike-"+strings.ReplaceAll(strings.ToLower(callName(m)), ".", "-"), "boss",
			access.Admin)}
		ok(alike, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: theirs.asset,
			Scale: 2}}}, new(ledgerv1.CreateAssetsResponse))
		ok(alike, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: theirs.wallet, Asset: theirs.asset},
			{Code: theirs.shop, Asset: theirs.asset}, {Code: theirs.world, Asset: theirs.asset, Unbounded: true}}},
			new(ledgerv1.CreateAccountsResponse))
		for _, me := range []*caller{empty, alike} { // who has nothing, and who has things of the same names
			for i, r := range examples[callName(m)](theirs) {
				got := reach(me, m, r, "Idempotency-Key", "furnish")
				for _, secret := range []string{secretNote, secretBalance, secretRequest, secretKey} {
					if strings.Contains(got, secret) {
						t.Errorf("%s (%d) shows what is not the caller's: %s", m.FullName(), i, got)
					}
				}
				if me == empty && !slices.Contains(goWell, callName(m)) && !strings.HasPrefix(got, "error ") {
					t.Errorf("%s (%d) finds another tenant's things: %s", m.FullName(), i, got)
				}
			}
		}
	}
	after := s.dump("theirs")
	for table, rows := range before {
		if after[table] != rows {
			t.Errorf("rows of %s changed:\n%s\n%s", table, rows, after[table])
		}
	}
}

// TestTheWalkWouldNotice sees that the owner's own calls show the secrets which the walk looks for.
func TestTheWalkWouldNotice(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, mine := furnish(s, "mine")
	for _, m := range methods(t) {
		if !reads(m) || m.Name() == "ListAssets" || callName(m) == "Id.Parse" { // which show nothing of anybody's
			continue
		}
		var seen bool
		for _, r := range examples[callName(m)](mine) {
			got := reach(me, m, r)
			seen = seen || strings.Contains(got, secretNote) || strings.Contains(got, secretBalance) ||
				strings.Contains(got, secretRequest) || strings.Contains(got, secretKey)
		}
		if !seen {
			t.Errorf("%s shows its owner none of the secrets", m.FullName())
		}
	}
}

// reach calls a method and writes all that came back.
func reach(c *caller, m protoreflect.MethodDescriptor, r proto.Message, headers ...string) string {
	c.t.Helper()
	if m.IsStreamingServer() {
		if hold, ok := r.(*lockv1.HoldRequest); ok {
			return holdOnce(c, hold)
		}
		return watchAll(c, r.(*ledgerv1.WatchEntriesRequest))
	}
	a := c.call(connectProto, callName(m), r, headers...)
	if a.code != "" {
		return "error " + a.reason(c.t) + " " + a.message + " " + string(a.raw)
	}
	res := fill(c.t, m)
	connectProto.decode(c.t, a.raw, res)
	return protojson.Format(res)
}

// watchAll watches until an entry comes that is made meanwhile, and writes down what came before it.
func watchAll(c *caller, r *ledgerv1.WatchEntriesRequest) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := c.client()
	stream, err := client.WatchEntries(ctx, r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer stream.Close()
	var seen bytes.Buffer
	for first := true; stream.Receive(); first = false {
		if first { // from here on it watches
			c.mark()
		}
		for _, e := range stream.Msg().GetEntries() {
			if e.GetAccount() == "mark:a" {
				return seen.String()
			}
		}
		seen.WriteString(protojson.Format(stream.Msg()))
	}
	c.t.Fatalf("the watch ended: %v", stream.Err())
	return ""
}

// mark makes an entry that a watcher recognises.
func (c *caller) mark() {
	c.t.Helper()
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "MARK"}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "mark:a",
		Asset: "MARK", Unbounded: true},
		{Code: "mark:b", Asset: "MARK", Unbounded: true}}}, new(ledgerv1.CreateAccountsResponse))
	ok(c, "Transfer", &ledgerv1.TransferRequest{BizNo: "mark" + time.Now().Format(time.RFC3339Nano),
		Postings: posting("mark:a", "mark:b", "MARK", "1")}, new(ledgerv1.TransferResponse))
}

// client is the generated client, with the caller's key, over gRPC.
func (c *caller) client() ledgerv1connect.LedgerServiceClient {
	return ledgerv1connect.NewLedgerServiceClient(http2, c.base, connect.WithGRPC(),
		connect.WithInterceptors(withKey(c.apiKey)))
}

// withKey sends an API key along.
type withKey string

func (k withKey) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		r.Header().Set("Authorization", "Bearer "+string(k))
		return next(ctx, r)
	}
}

func (k withKey) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(k))
		return conn
	}
}

func (k withKey) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func TestWatchGoesOnAfterItsCursorAndEndsWithTheServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, mine := furnish(s, "mine")
	stream, err := me.client().WatchEntries(context.Background(),
		&ledgerv1.WatchEntriesRequest{Cursor: "0", Pattern: "mine:wallet"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !nextEntries(stream) || len(stream.Msg().GetEntries()) != 1 ||
		stream.Msg().GetEntries()[0].GetTransferId() != mine.paidID {
		t.Fatalf("first %v, %v", stream.Msg(), stream.Err())
	}
	cursor := stream.Msg().GetCursor()
	ok(me, "Transfer", &ledgerv1.TransferRequest{BizNo: "next",
		Postings: posting(mine.wallet, mine.shop, mine.asset, "1")}, new(ledgerv1.TransferResponse))
	again, err := me.client().WatchEntries(context.Background(), &ledgerv1.WatchEntriesRequest{Cursor: cursor})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !nextEntries(again) || len(again.Msg().GetEntries()) != 2 || again.Msg().GetEntries()[0].GetAmount() != "-1.00" {
		t.Fatalf("after the cursor: %v, %v", again.Msg(), again.Err())
	}
	nextEntries(stream)
	if e := stream.Msg().GetEntries(); len(e) != 1 || e[0].GetAccount() != mine.wallet || e[0].GetVersion() != 2 {
		t.Fatalf("the watcher that waited: %v, %v", e, stream.Err())
	}
	done := make(chan struct{})
	go func() { s.server.Stop(); close(done) }()
	for stream.Receive() {
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnavailable || errors.Is(err, io.EOF) {
		t.Errorf("at the server's end: %v", err)
	}
	<-done
}

// nextEntries receives until a message is more than a cursor.
func nextEntries(stream *connect.ServerStreamForClient[ledgerv1.WatchEntriesResponse]) bool {
	for stream.Receive() {
		if len(stream.Msg().GetEntries()) > 0 {
			return true
		}
	}
	return false
}
