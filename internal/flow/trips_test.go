package flow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Round trips dominate the latency to a remote database. The first call on each connection may take one more, which
// prepares its statements.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	pool, n := pgtest.CountingPool(t, pgtest.New(t).AllDSN)
	e := engineOn(t, pool)
	world(t, e, 2)
	use := func(key string) flow.Submission {
		return submission(flow.Submission{Command: flow.Claim(&claim.Command{Caller: caller,
			Params: claim.Params{Scope: "page", Key: key, Life: time.Hour}})})
	}
	keyed := func(w flow.Submission, key string) flow.Submission {
		w.Key = &commit.Key{Principal: "p", Operation: "o", Key: key, Fingerprint: make([]byte, commit.FingerprintSize),
			Life: time.Hour}
		w.Encode = func(any) ([]byte, error) { return []byte("answer"), nil }
		return w
	}
	for _, c := range []struct {
		what string
		work func(i int) flow.Submission
		want int64
	}{
		{"a transfer", func(i int) flow.Submission {
			return submission(flow.Submission{Command: flow.Ledger(transfer(fmt.Sprint("t", i), "world", "user:0",
				"1"))})
		}, 2},
		{"new tokens", func(int) flow.Submission {
			return submission(flow.Submission{Command: flow.Token(&token.IssueCommand{Caller: caller,
				Tokens: []string{token.New(), token.New()}, Life: time.Hour})})
		}, 2},
		{"a new claim", func(i int) flow.Submission { return use(fmt.Sprint("k", i)) }, 2},
		{"a new claim under a new key", func(i int) flow.Submission {
			return keyed(use(fmt.Sprint("l", i)),
				fmt.Sprint(i))
		}, 2},
		{"a claim that is known", func(int) flow.Submission { return use("k0") }, 2},
	} {
		first := int32(0)
		for i := range 16 {
			before := n.Load()
			if _, err := e.Do(t.Context(), c.work(i)); err != nil {
				t.Fatal(c.what, err)
			}
			switch got := n.Load() - before; got {
			case c.want:
			case c.want + 1:
				first++
			default:
				t.Errorf("%s: %d round trips, want %d", c.what, got, c.want)
			}
		}
		if most := pool.Stat().TotalConns(); first > most {
			t.Errorf("%s: %d calls took a round trip more, on %d connections", c.what, first, most)
		}
	}
}

// The steps of a checkout, as in docs/payments.md.
func TestRoundTripsOfACheckout(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	pool, n := pgtest.CountingPool(t, m.app.Config().ConnString())
	e := engineOn(t, pool)
	do := func(c flow.Command) error {
		_, err := e.Do(context.Background(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 12, Bytes: 400,
			Command: c})
		return err
	}
	say := func(no string, k gateway.Kind, c gateway.Credential) error {
		_, err := flow.CommitNotice(context.Background(), e, payment.GatewayKey{Tenant: 1, Gateway: "g"},
			notice(string(k)+no, amountOf("10", "CNY"), of(no, "t"+no), kind(k)), c, "r")
		return err
	}
	steps := []struct {
		what string
		do   func(no string) error
		want int64
	}{
		{"CreateOrder", func(no string) error { return do(newOrder(no, outside)) }, 2},
		{"CreatePayment", func(no string) error {
			return do(&flow.CreatePayment{Caller: caller, OrderNo: no, Gateway: "g", OutTradeNo: no})
		}, 2},
		{"the gateway's answer", func(no string) error {
			return say(no, gateway.Pending, gateway.Credential{"url": "x"})
		}, 3},
		{"the callback", func(no string) error { return say(no, gateway.Paid, nil) }, 3},
	}
	least := make([]int64, len(steps)) // a new connection makes extra round trips, until its statements are prepared
	for i := range 12 {
		for k, s := range steps {
			before := n.Load()
			if err := s.do(fmt.Sprint("c", i)); err != nil {
				t.Fatal(s.what, err)
			}
			if got := n.Load() - before; i == 0 || got < least[k] {
				least[k] = got
			}
		}
	}
	for k, s := range steps {
		if least[k] != s.want {
			t.Errorf("%s: %d round trips, want %d", s.what, least[k], s.want)
		}
	}
}
