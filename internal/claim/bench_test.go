package claim_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/claim"
	claimdb "github.com/ledgerd/ledgerd/internal/claim/internal/db"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// BenchmarkClaim runs concurrent callers, by default 256, in this process on a durable Postgres. Cases are
// fresh keys, and keys of which nine of ten uses are refused.
func BenchmarkClaim(b *testing.B) {
	for _, kind := range []struct {
		name    string
		callers int
		keys    int64 // uses per key
		p       claim.Params
	}{
		{"fresh", 256, 1, claim.Params{Scope: "page", Life: 10 * time.Minute}},
		{"fresh by 2", 2, 1, claim.Params{Scope: "page", Life: 10 * time.Minute}},
		{"fresh by 1024", 1024, 1, claim.Params{Scope: "page", Life: 10 * time.Minute}},
		{"fresh for ever", 256, 1, claim.Params{Scope: "like", Owner: "user:1001"}},
		{"one of ten first", 256, 10, claim.Params{Scope: "page", Life: 10 * time.Minute, FirstOnly: true}},
		{"counted to ten", 256, 10, claim.Params{Scope: "page", Life: 10 * time.Minute}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			db := pgtest.NewDurable(b)
			e := newEngine(b, db.AllDSN, nil)
			var n atomic.Int64
			b.SetParallelism(max(1, kind.callers/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.ResetTimer()
			start := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p := kind.p
					p.Key = spread(n.Add(1) / kind.keys)
					_, err := e.Do(context.Background(),
						submission(flow.Claim(&claim.Command{Caller: caller, Params: p})))
					if kind.keys == 1 && err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "claims/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStatements measures Postgres alone: two connections commit batches of 100 new claims, without
// callers or the engine. Its rate is an upper bound for BenchmarkClaim/fresh. Keys are spread over the index,
// or adjacent to existing ones.
func BenchmarkStatements(b *testing.B) {
	for name, key := range map[string]func(int64) string{
		"spread":     spread,
		"neighbours": func(i int64) string { return fmt.Sprintf("page:%d:%d", i%256, i/256) },
	} {
		b.Run(name, func(b *testing.B) {
			db := pgtest.NewDurable(b)
			if _, err := pgtest.Pool(b, db.SuperDSN).Exec(b.Context(), "insert into commit_epochs default "+
				"values"); err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			var all sync.WaitGroup
			b.ResetTimer()
			start := time.Now()
			for range 2 {
				all.Go(func() {
					conn, err := pgx.Connect(context.Background(), db.SuperDSN)
					if err != nil {
						b.Error(err)
						return
					}
					defer conn.Close(context.Background())
					for err == nil && n.Load() < int64(b.N) {
						err = bareBatch(conn, n.Add(100), 100, key)
					}
					if err != nil {
						b.Error(err)
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(n.Load())/time.Since(start).Seconds(), "claims/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bareBatch commits one batch of claims.
func bareBatch(conn *pgx.Conn, last, size int64, key func(int64) string) error {
	p := commit.NewPipe(context.Background())
	var now time.Time
	exec(p, "begin")
	exec(p, "select set_config('plan_cache_mode', 'force_generic_plan', true)")
	p.Queue(func(d commit.DB) error {
		return d.QueryRow(p.Context(), "select clock_timestamp()").Scan(&now)
	})
	if err := p.Run(conn); err != nil {
		return err
	}
	arg := claimdb.ClaimInsertParams{Tenant: 1, Scope: "page", Use: 1, Principal: "p", Now: now,
		Expiry: now.Add(10 * time.Minute)}
	for i := range size {
		arg.Keys, arg.ClaimIds = append(arg.Keys, key(last-i)), append(arg.ClaimIds, last<<14|i)
		arg.RequestIds = append(arg.RequestIds, "r")
	}
	slices.Sort(arg.Keys)
	p.Queue(func(d commit.DB) error { return new(claimdb.Queries).ClaimInsert(p.Context(), d, arg) })
	exec(p, "insert into commit_batches (batch_id, recorded_at, commands, instance) values ($1, $2, $3, 'bench')",
		last, now, size)
	exec(p, "commit")
	return p.Run(conn)
}

func exec(p *commit.Pipe, sql string, args ...any) {
	p.Queue(func(d commit.DB) error {
		_, err := d.Exec(p.Context(), sql, args...)
		return err
	})
}

// spread is a key at a random position in the index.
func spread(i int64) string {
	return "goods-7-1763750000-" + strconv.FormatUint(uint64(i)*0x9e3779b97f4a7c15, 36)
}
