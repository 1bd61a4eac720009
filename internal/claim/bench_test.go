package claim_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// BenchmarkClaim is 256 callers, or as many as the case says, in the process, on a Postgres that waits for the disk: new keys, and keys of which
// nine of ten uses are refused.
func BenchmarkClaim(b *testing.B) {
	for _, kind := range []struct {
		name    string
		callers int
		keys    int64 // uses of a key
		p       claim.Params
	}{
		{"fresh", 256, 1, claim.Params{Scope: "page", Life: 10 * time.Minute}},
		{"fresh by 1024", 1024, 1, claim.Params{Scope: "page", Life: 10 * time.Minute}},
		{"fresh for ever", 256, 1, claim.Params{Scope: "like", Owner: "user:1001"}},
		{"fresh volatile", 256, 1, claim.Params{Scope: "volatile/page", Life: 10 * time.Minute}},
		{"one of ten first", 256, 10, claim.Params{Scope: "page", Life: 10 * time.Minute, FirstOnly: true}},
		{"counted to ten", 256, 10, claim.Params{Scope: "page", Life: 10 * time.Minute}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			db := pgtest.NewDurable(b)
			e := newEngine(b, db.AppDSN, nil)
			var n atomic.Int64
			b.SetParallelism(max(1, kind.callers/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.ResetTimer()
			start := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p := kind.p
					i := n.Add(1) / kind.keys
					p.Key = "goods-7-1763750000-" + strconv.FormatUint(uint64(i)*0x9e3779b97f4a7c15, 36) // spread over the index
					_, err := e.Do(context.Background(), work(flow.Claim(&claim.Command{Caller: caller, Params: p})))
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
