package flow_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// trips counts the round trips of batches.
type trips struct{ atomic.Int64 }

func (n *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	n.Add(1)
	return ctx
}
func (n *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (n *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (n *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (n *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What commands cost on the way to a database that is far.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	var n trips
	plain, err := pg.Open(t.Context(), pgtest.New(t).AppDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	config := plain.Config()
	plain.Close()
	config.ConnConfig.Tracer = &n
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	e := engineOn(t, pool)
	world(t, e, 2)
	use := func(key string) flow.Work {
		return work(flow.Work{Command: flow.Claim(&claim.Command{Caller: caller, Params: claim.Params{Scope: "page", Key: key, Life: time.Hour}})})
	}
	keyed := func(w flow.Work, key string) flow.Work {
		w.Key = &commit.Key{Principal: "p", Operation: "o", Key: key, Fingerprint: make([]byte, commit.FingerprintSize), Life: time.Hour}
		w.Encode = func(any) ([]byte, error) { return []byte("answer"), nil }
		return w
	}
	for _, c := range []struct {
		what string
		work func(i int) flow.Work
		want int64
	}{
		{"a transfer", func(i int) flow.Work {
			return work(flow.Work{Command: flow.Ledger(transfer(fmt.Sprint("t", i), "world", "user:0", "1"))})
		}, 2},
		{"new tokens", func(int) flow.Work {
			return work(flow.Work{Command: flow.Token(&token.IssueCommand{Caller: caller, Tokens: []string{token.New(), token.New()}, Life: time.Hour})})
		}, 1},
		{"a new claim", func(i int) flow.Work { return use(fmt.Sprint("k", i)) }, 1},
		{"a new claim under a new key", func(i int) flow.Work { return keyed(use(fmt.Sprint("l", i)), fmt.Sprint(i)) }, 1},
		{"a claim that is known", func(int) flow.Work { return use("k0") }, 2},
	} {
		for i := range 8 {
			before := n.Load()
			if _, err := e.Do(t.Context(), c.work(i)); err != nil {
				t.Fatal(c.what, err)
			}
			if got := n.Load() - before; got != c.want {
				t.Errorf("%s: %d round trips, want %d", c.what, got, c.want)
			}
		}
	}
}
