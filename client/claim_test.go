package client_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

func TestAClaimIsSentWithChangingCalls(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		h := newLosing(0)
		c := newClient(t, url, append(opts, client.WithHTTPClient(h), client.WithRetry(3, 1, 1),
			client.WithGather())...)
		for i, key := range []string{"page", `with "quotes" and \`, "ümlaut %41 中文", " spaces within"} {
			key = t.Name() + key
			with := client.WithClaim(t.Context(),
				client.Claim{Key: key, Scope: "test", Owner: "Åsa", Life: 1500 * time.Millisecond * 1000})
			for n := int64(1); n < 3; n++ {
				h.lose.Store(2) // the third attempt replays the first and counts nothing
				ctx, info := client.WithInfo(with)
				if _, err := c.Ledger.Transfer(ctx,
					transfer(fmt.Sprint(t.Name(), i, n), "alice", "bob", "0.01")); err != nil || info.Attempts != 3 {
					t.Fatal(err, info)
				}
				ctx, info = client.WithInfo(with)
				if _, err := c.Ledger.Transfer(ctx,
					transfer(fmt.Sprint(t.Name(), i, n, "b"), "alice", "bob", "0.01")); err != nil ||
					info.ClaimCount != 2*n {
					t.Errorf("%v, counted %d", err, info.ClaimCount)
				}
			}
			got, err := c.Idempotency.GetClaim(with, &idempotencyv1.GetClaimRequest{Scope: "test", Key: key})
			if err != nil {
				t.Fatal(err)
			}
			x := got.GetClaim()
			if x.GetKey() != key || x.GetOwner() != "Åsa" || x.GetUses() != 4 ||
				x.GetResult() != fmt.Sprint(t.Name(), i, 1) ||
				x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != 1500*time.Second {
				t.Errorf("%v", x)
			}
		}
	})
}

func TestAUsedPageIsADuplicate(t *testing.T) {
	t.Parallel()
	c := newClient(t, startLedger(t))
	ctx := client.WithClaim(t.Context(), client.Claim{Key: "page-1", FirstOnly: true})
	if _, err := c.Ledger.Transfer(ctx, transfer("a", "alice", "bob", "1.00")); err != nil {
		t.Fatal(err)
	}
	_, err := c.Ledger.Transfer(ctx, transfer("b", "alice", "bob", "1.00"))
	e, _ := client.AsError(err)
	if !errors.Is(err, client.ReasonKeyClaimed) || e.Class != client.ClassDuplicate ||
		e.NextStep != client.StepIgnore || e.Metadata["result"] != "a" {
		t.Errorf("%+v", err)
	}
	if _, err = c.Ledger.Transfer(client.WithClaim(t.Context(), client.Claim{Key: "\x01"}),
		transfer("c", "alice", "bob", "1.00")); !errors.Is(err, client.ReasonFieldInvalid) {
		t.Error(err)
	}
}
