package rpc_test

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
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// Calls that create or list succeed with names of another tenant: their responses have only the caller's resources.
var goWell = []string{"CreateAssets", "ListAssets", "CreateAccounts", "ListAccounts", "TransferBatch", "ListHolds",
	"ListTransfers",
	"ListBalances", "TrialBalance", "WatchEntries", "Idempotency.ClaimKey", "Idempotency.ClaimKeys",
	"Idempotency.DropClaim", "Id.Parse",
	"Idempotency.Begin", "Idempotency.ListWorks", "Lock.Acquire", "Lock.GetLock", "Lock.ListLocks", "Lock.Hold"}

func TestNoCallSeesOrTouchesAnotherTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, theirs := createResources(s, "theirs")
	before := s.dump("theirs")
	for _, m := range methods(t) {
		empty := &caller{s, s.Key("empty-"+strings.ReplaceAll(strings.ToLower(callName(m)), ".", "-"), "boss",
			access.Admin)}
		alike := &caller{s, s.Key("alike-"+strings.ReplaceAll(strings.ToLower(callName(m)), ".", "-"), "boss",
			access.Admin)}
		ok(alike, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: theirs.asset,
			Scale: 2}}}, new(ledgerv1.CreateAssetsResponse))
		ok(alike, "CreateAccounts",
			&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: theirs.wallet, Asset: theirs.asset},
				{Code: theirs.shop, Asset: theirs.asset}, {Code: theirs.world, Asset: theirs.asset, Unbounded: true}}},
			new(ledgerv1.CreateAccountsResponse))
		for _, me := range []*caller{empty, alike} { // without resources, and with resources of the same names
			for i, r := range examples[callName(m)](theirs) {
				got := reach(me, m, r, "Idempotency-Key", "furnish")
				for _, secret := range []string{secretNote, secretBalance, secretRequest, secretKey} {
					if strings.Contains(got, secret) {
						t.Errorf("%s (%d) shows data of another tenant: %s", m.FullName(), i, got)
					}
				}
				if me == empty && !slices.Contains(goWell, callName(m)) && !strings.HasPrefix(got, "error ") {
					t.Errorf("%s (%d) finds resources of another tenant: %s", m.FullName(), i, got)
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

// The owner's own calls return the secrets that TestNoCallSeesOrTouchesAnotherTenant searches for.
func TestTenantTestDetectsSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, mine := createResources(s, "mine")
	for _, m := range methods(t) {
		if !reads(m) || m.Name() == "ListAssets" || callName(m) == "Id.Parse" { // these return no secrets
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

// reach calls a method and returns all response data as text.
func reach(c *caller, m protoreflect.MethodDescriptor, r proto.Message, headers ...string) string {
	c.T.Helper()
	if m.IsStreamingServer() {
		if hold, ok := r.(*lockv1.HoldRequest); ok {
			return holdOnce(c, hold)
		}
		return watchAll(c, r.(*ledgerv1.WatchEntriesRequest))
	}
	a := c.call(connectProto, callName(m), r, headers...)
	if a.Code != "" {
		return "error " + a.Reason(c.T) + " " + a.Message + " " + string(a.Raw)
	}
	res := fill(c.T, m)
	connectProto.Decode(c.T, a.Raw, res)
	return protojson.Format(res)
}

// watchAll watches until an entry made meanwhile arrives, and returns all earlier entries as text.
func watchAll(c *caller, r *ledgerv1.WatchEntriesRequest) string {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client := c.client()
	stream, err := client.WatchEntries(ctx, r)
	if err != nil {
		c.T.Fatal(err)
	}
	defer stream.Close()
	var seen bytes.Buffer
	for first := true; stream.Receive(); first = false {
		if first { // the watch has begun
			c.mark()
		}
		for _, e := range stream.Msg().GetEntries() {
			if e.GetAccount() == "mark:a" {
				return seen.String()
			}
		}
		seen.WriteString(protojson.Format(stream.Msg()))
	}
	c.T.Fatalf("the watch ended: %v", stream.Err())
	return ""
}

// mark makes an entry that watchAll recognises.
func (c *caller) mark() {
	c.T.Helper()
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "MARK"}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "mark:a",
		Asset: "MARK", Unbounded: true},
		{Code: "mark:b", Asset: "MARK", Unbounded: true}}}, new(ledgerv1.CreateAccountsResponse))
	ok(c, "Transfer", &ledgerv1.TransferRequest{BizNo: "mark" + time.Now().Format(time.RFC3339Nano),
		Postings: posting("mark:a", "mark:b", "MARK", "1")}, new(ledgerv1.TransferResponse))
}

// client returns the generated client, with the caller's key, over gRPC.
func (c *caller) client() ledgerv1connect.LedgerServiceClient {
	return ledgerv1connect.NewLedgerServiceClient(servertest.HTTP2, c.Base, connect.WithGRPC(),
		connect.WithInterceptors(servertest.WithKey(c.apiKey)))
}

func TestWatchesOfOneTenantAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mine, other := &caller{s, s.Key("mine", "a", access.Read)}, &caller{s, s.Key("other", "b", access.Read)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := make(chan error)
	for range 100 {
		go func() {
			stream, err := mine.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
			if err == nil && !stream.Receive() {
				err = stream.Err()
			}
			open <- err
		}()
	}
	for range 100 {
		if err := <-open; err != nil {
			t.Fatal(err)
		}
	}
	stream, err := mine.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeResourceExhausted {
		t.Errorf("one watch more: %v", stream.Err())
	}
	watchStarts(t, other, &ledgerv1.WatchEntriesRequest{})
	mine.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).wants(t, "a read", "")
	cancel()
	servertest.Eventually(t, 10*time.Second, "the watches have ended", func() bool {
		stream, err := mine.client().WatchEntries(t.Context(), &ledgerv1.WatchEntriesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		return stream.Receive()
	})
}

func TestWatchResumesAfterItsCursor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, mine := createResources(s, "mine")
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
		t.Fatalf("the waiting watcher: %v, %v", e, stream.Err())
	}
	done := make(chan struct{})
	go func() { s.Server.Stop(); close(done) }()
	for stream.Receive() {
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnavailable || errors.Is(err, io.EOF) {
		t.Errorf("after Stop: %v", err)
	}
	<-done
}

// nextEntries receives until a message has entries.
func nextEntries(stream *connect.ServerStreamForClient[ledgerv1.WatchEntriesResponse]) bool {
	for stream.Receive() {
		if len(stream.Msg().GetEntries()) > 0 {
			return true
		}
	}
	return false
}
