package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

// issued issues a token for a subject with non-ASCII characters.
func issued(t *testing.T, c *client.Client) client.SubmitToken {
	t.Helper()
	st := client.SubmitToken{Subject: `Ünal "7" \ 100%`, Purpose: "order"}
	res, err := c.Idempotency.IssueTokens(t.Context(),
		&idempotencyv1.IssueTokensRequest{Subject: st.Subject, Purpose: st.Purpose})
	if err != nil {
		t.Fatal(err)
	}
	st.Token = res.GetTokens()[0]
	return st
}

func TestARetryAfterALostAnswerReturnsTheNextToken(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		st := issued(t, newClient(t, url, opts...))
		st.Next = true
		c := newClient(t, url, append(opts, client.WithHTTPClient(newLosing(1)))...)
		ctx, info := client.WithInfo(client.WithSubmitToken(t.Context(), st))
		if _, err := c.Ledger.Transfer(ctx, transfer(t.Name(), "alice", "shop", "1.00")); err != nil {
			t.Fatal(err)
		}
		if info.Attempts != 2 || !info.Replayed || !strings.HasPrefix(info.NextToken, "st_") {
			t.Errorf("%+v", *info)
		}
		_, err := c.Ledger.Transfer(ctx, transfer(t.Name()+"-again", "alice", "shop", "1.00"))
		if e, _ := client.AsError(err); !errors.Is(err, client.ReasonTokenSpent) ||
			e.Metadata["first_biz_no"] != t.Name() ||
			e.Class != client.ClassDuplicate || e.NextStep != client.StepIgnore || info.NextToken != "" {
			t.Errorf("%v, %+v", err, *info)
		}
	})
}

func TestArbitraryTokensOfAFormAreSent(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		c := newClient(t, url, opts...)
		for token, want := range map[string]client.Reason{"": client.ReasonTokenMissing, " ": client.ReasonTokenUnknown,
			"st_x\r\nX-Evil: 1": client.ReasonTokenUnknown,
			`"; next`:           client.ReasonTokenUnknown, "ü\xff\x00": client.ReasonTokenUnknown,
			strings.Repeat("x", 1<<20): client.ReasonTokenUnknown} {
			ctx := client.WithSubmitToken(t.Context(), client.SubmitToken{Token: token})
			if _, err := c.Ledger.Transfer(ctx, transfer("x", "alice", "shop", "1.00")); client.ReasonOf(err) != want {
				t.Errorf("%.20q: %v", token, err)
			}
		}
		st := issued(t, c)
		st.Subject = "another"
		if _, err := c.Ledger.Transfer(client.WithSubmitToken(t.Context(), st),
			transfer("x", "alice", "shop", "1.00")); client.ReasonOf(err) != client.ReasonTokenForeign {
			t.Error(err)
		}
	})
}

func TestCallsWithTokensAreNotGathered(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	c := newClient(t, url, client.WithGather())
	ends := make(chan error, 40)
	one := issued(t, c)
	for i := range cap(ends) {
		go func() {
			ctx := client.WithSubmitToken(t.Context(), one)
			if i%2 == 0 {
				ctx = t.Context()
			}
			_, err := c.Ledger.Transfer(ctx, transfer(fmt.Sprint("n", i), "alice", "shop", "0.01"))
			ends <- err
		}()
	}
	got := map[client.Reason]int{}
	for range cap(ends) {
		got[client.ReasonOf(<-ends)]++
	}
	if got[""] != 21 || got[client.ReasonTokenSpent] != 19 {
		t.Errorf("%v", got)
	}
}

func TestIssuingSendsNoKeyAndReadsSendNoToken(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	var sent rpcs
	c := newClient(t, url, client.WithHTTPClient(newLosing(1)), sent.option())
	ctx, info := client.WithInfo(client.WithKey(t.Context(), "mine"))
	res, err := c.Idempotency.IssueTokens(ctx, &idempotencyv1.IssueTokensRequest{Count: 3})
	if err != nil || len(res.GetTokens()) != 3 || info.Key != "" || info.Attempts != 2 {
		t.Errorf("%v, %v, %+v", res, err, *info)
	}
	if keys := sent.of("/ledgerd.idempotency.v1.IdempotencyService/IssueTokens"); fmt.Sprint(keys) != "[ ]" {
		t.Errorf("keys %q", keys)
	}
	headers := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if req.Header().Get(client.TokenHeader) != "" {
				t.Error("a read has a token")
			}
			return next(ctx, req)
		}
	})
	reader := newClient(t, url, client.WithInterceptors(headers))
	if _, err := reader.Ledger.ListAssets(client.WithSubmitToken(t.Context(), client.SubmitToken{Token: "x"}),
		nil); err != nil {
		t.Error(err)
	}
}

// An idempotent method needs a key if it spends a token: a retry without one would find the token spent.
func TestATokenOfAnIdempotentCallIsSpentOnce(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		plain := newClient(t, url, opts...)
		begun, err := plain.Idempotency.Begin(t.Context(), &idempotencyv1.BeginRequest{Scope: "s", Key: t.Name()})
		if err != nil {
			t.Fatal(err)
		}
		h := newLosing(1)
		c := newClient(t, url, append(opts, client.WithHTTPClient(h))...)
		extend := &idempotencyv1.ExtendRequest{Scope: "s", Key: t.Name(), Fence: begun.GetRun().GetFence(),
			Lease: durationpb.New(time.Minute)}
		ctx, info := client.WithInfo(client.WithSubmitToken(t.Context(), issued(t, plain)))
		if _, err := c.Idempotency.Extend(ctx, extend); err != nil || info.Attempts != 2 {
			t.Errorf("with a token: %v, %+v", err, *info)
		}
		h.lose.Store(1)
		ctx, info = client.WithInfo(client.WithClaim(t.Context(), client.Claim{Key: t.Name(), FirstOnly: true}))
		if _, err := c.Idempotency.Extend(ctx, extend); err != nil || info.Attempts != 2 {
			t.Errorf("with a page id: %v, %+v", err, *info)
		}
		ctx, info = client.WithInfo(t.Context())
		if _, err := c.Idempotency.Extend(ctx, extend); err != nil || info.Key != "" {
			t.Errorf("with neither: %v, %+v", err, *info)
		}
	})
}

// A token or claim of a lock's acquisition must not be sent with its release.
func TestALockAcquiredWithATokenIsReleased(t *testing.T) {
	t.Parallel()
	c := newClient(t, startLedger(t))
	for what, ctx := range map[string]context.Context{"token": client.WithSubmitToken(t.Context(), issued(t, c)),
		"claim": client.WithClaim(t.Context(), client.Claim{Key: "p", FirstOnly: true})} {
		l, err := c.Lock(ctx, what)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			t.Errorf("with a %s: %v", what, err)
		}
	}
}
