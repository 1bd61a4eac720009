package flow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Round trips dominate the latency to a remote database. The first call on each connection may take one more, which
// prepares its statements.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	pool, n := pgtest.CountingPool(t, pgtest.New(t).AppDSN)
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
