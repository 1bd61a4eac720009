package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

func TestEachChangingCallHasOneKeyAndReadsHaveNone(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		var seen rpcs
		h := newLosing(0)
		c := newClient(t, url, append(opts, client.WithHTTPClient(h), client.WithRetry(3, 1, 1), seen.option())...)
		for _, bizNo := range []string{t.Name() + "-1", t.Name() + "-2"} {
			h.lose.Store(2)
			ctx, info := client.WithInfo(t.Context())
			if _, err := c.Ledger.Transfer(ctx, transfer(bizNo, "alice", "bob", "1.00")); err != nil {
				t.Fatal(err)
			}
			keys := seen.of(transferProcedure)
			keys = keys[len(keys)-3:]
			if keys[0] == "" || keys[0] != keys[1] || keys[1] != keys[2] || info.Key != keys[0] {
				t.Errorf("keys %q, info %+v", keys, info)
			}
			if info.Attempts != 3 || !info.Replayed {
				t.Errorf("info %+v: the third attempt is answered from the record of the first", info)
			}
		}
		if keys := seen.of(transferProcedure); keys[0] == keys[3] {
			t.Error("two calls have the same key")
		}
		ctx, info := client.WithInfo(client.WithKey(t.Context(), "not for reads"))
		_, _ = c.Ledger.ListAssets(ctx, &ledgerv1.ListAssetsRequest{})
		if keys := seen.of(ledgerv1connect.LedgerServiceListAssetsProcedure); len(keys) == 0 || keys[0] != "" ||
			info.Key != "" {
			t.Errorf("a read was sent with the keys %q", keys)
		}
	})
	if got := balance(t, url, "alice"); got != "94.00" {
		t.Errorf("alice has %s, want 94.00", got)
	}
}

func TestTheCallersKeyIsSentUnchanged(t *testing.T) {
	t.Parallel()
	c := newClient(t, startLedger(t))
	for i, key := range []string{"order-1", `"`, `"quoted"`, `back\slash`, `"back\slash`, " spaces ",
		strings.Repeat("k", 255)} {
		ctx, info := client.WithInfo(client.WithKey(t.Context(), key))
		request := transfer(client.NewKey(), "alice", "bob", "0.01")
		if _, err := c.Ledger.Transfer(ctx, request); err != nil || info.Key != key || info.Replayed {
			t.Errorf("key %d %q: %v, %+v", i, key, err, info)
		}
		_, err := c.Ledger.Transfer(ctx, transfer(client.NewKey(), "alice", "bob", "0.02"))
		e, _ := client.AsError(err)
		if !errors.Is(err, client.ReasonKeyReused) || e.Metadata["key"] != key {
			t.Errorf("key %d %q with other content: %v, %v", i, key, err, e)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", 256), "new\nline", "straße"} {
		_, err := c.Ledger.Transfer(client.WithKey(t.Context(), key), transfer(client.NewKey(), "alice", "bob", "0.01"))
		e, _ := client.AsError(err)
		if !errors.Is(err, client.ReasonKeyInvalid) || e.Class != client.ClassBadRequest ||
			e.Code != connect.CodeInvalidArgument {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func TestABatchWithItemKeysIsRetriedWithoutAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	var seen rpcs
	h := newLosing(1)
	c := newClient(t, startLedger(t), client.WithHTTPClient(h), client.WithRetry(2, 1, 1), seen.option())
	// The setup used another client, so no setup answers were lost.
	res, err := c.Ledger.TransferBatch(t.Context(), &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{
		{Transfer: transfer("a", "alice", "bob", "1.00"),
			IdempotencyKey: "a"}, {Transfer: transfer("b", "alice", "bob", "1.00"), IdempotencyKey: "b"}}})
	if err != nil || !res.GetResults()[0].GetReplayed() {
		t.Errorf("%v, %v", res, err)
	}
	if keys := seen.of(batchProcedure); len(keys) != 2 || keys[0] != "" {
		t.Errorf("sent with the keys %q", keys)
	}
	if _, err := c.Ledger.TransferBatch(t.Context(),
		&ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{
			{Transfer: transfer("c", "alice", "bob", "1.00"),
				IdempotencyKey: "c"}, {Transfer: transfer("d", "alice", "bob", "1.00")}}}); err != nil {
		t.Error(err)
	}
	if keys := seen.of(batchProcedure); keys[2] == "" {
		t.Error("a batch with a keyless item was sent without a key")
	}
}

func TestReplayedReadsConnectsCallInfo(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		c := newClient(t, url, opts...)
		for i, request := range []*ledgerv1.TransferRequest{transfer(t.Name(), "alice", "bob", "1.00"),
			transfer(t.Name()+"-poor", "shop", "bob", "1.00")} {
			key := client.NewKey()
			for n := range 2 {
				ctx, call := connect.NewClientContext(context.Background())
				call.RequestHeader().Set(client.KeyHeader, key)
				_, err := c.Ledger.Transfer(ctx, request)
				if (err != nil) != (i == 1) || client.Replayed(call) != (n == 1) {
					t.Errorf("request %d, time %d: replayed %v, %v", i, n, client.Replayed(call), err)
				}
			}
		}
	})
}

func TestNewKeysAreValidAndSortedByTime(t *testing.T) {
	t.Parallel()
	a, b := client.NewKey(), client.NewKey()
	if len(a) != 26 || a == b || a[:7] > b[:7] {
		t.Errorf("%s, %s", a, b)
	}
}
