package rpc

import (
	"testing"
	"time"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// A direct call makes three attempts, or max_attempts if it sets that.
func TestMaxAttemptsOfACall(t *testing.T) {
	t.Parallel()
	c := &call{gate: &Gate{Memory: flow.NewMemory()}}
	for name, s := range strategies {
		for said, want := range map[int32]int{0: 3, 1: 1, 7: 7} {
			direct, _ := byStrategy(c, &stock.ReserveCommand{}, &pb.DeductRequest{Strategy: s, MaxAttempts: said})
			if name == stock.Batched {
				if direct != nil {
					t.Errorf("%s: %+v", name, direct)
				}
			} else if direct == nil || *direct != (commit.Direct{Attempts: want, Pause: 50 * time.Millisecond}) {
				t.Errorf("%s: max_attempts %d: %+v", name, said, direct)
			}
		}
	}
}
