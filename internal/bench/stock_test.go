package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/stock"
)

// A short run measures every strategy in process and over Connect, and writes its tables.
func TestStockIsMeasuredAndCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	o := tiny(t)
	o.Measure, o.Warmup = 200*time.Millisecond, 50*time.Millisecond
	o.Only = []string{"hot-64-batched*", "hot-64-optimistic*", "spread-64-advisory", "hot-64-atomic-64*",
		"hot-256-confirm*", "moves"}
	r, err := RunStock(t.Context(), StockOptions{Options: o, Callers: []int{64, stockCallers}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 13 || len(r.Moves) != 4 {
		t.Errorf("%d cases, %d of moves", len(r.Results), len(r.Moves))
	}
	measured := 0 // cases that show CPU time of Postgres: on a busy machine, 200 ms may show none
	for i := range r.Results {
		x := &r.Results[i]
		if x.PerSecond <= 0 || x.P50 <= 0 || x.P99 < x.P50 ||
			x.Strategy == stock.Optimistic && x.Hot && x.Retries == 0 && x.Busy == 0 {
			t.Errorf("%s: %+v", x.Name, x)
		}
		if x.CPU.Postgres > 0 {
			measured++
		}
	}
	if measured < len(r.Results)/2 {
		t.Errorf("the CPU of Postgres is known of %d cases", measured)
	}
	for _, m := range r.Moves {
		if m.Without <= 0 || m.Without+m.Trigger <= 0 { // noise of a short run may exceed the cost of the trigger
			t.Errorf("moves: %+v", m)
		}
	}
	var text bytes.Buffer
	if err := r.WriteMarkdown(&text); err != nil || strings.Count(text.String(), "\n| hot-64-atomic-64 | ") != 1 {
		t.Errorf("report: %v\n%s", err, &text)
	}
}

// The best of all four direct strategies counts, and a missing one leaves the target open.
func TestBatchesAreComparedWithTheBestDirectStrategy(t *testing.T) {
	t.Parallel()
	r := &Report{Document: StockDocument, Moves: []MoveResult{{Moves: 1, Trigger: 6}, {Moves: 100, Trigger: 4}}}
	for name, rate := range map[string]float64{"hot-256-batched-rpc": 4100, "hot-256-atomic-rpc": 900,
		"hot-256-optimistic-rpc": 800, "hot-256-pessimistic-rpc": 1000, "hot-256-advisory-rpc": 700,
		"hot-256-atomic-10-rpc": 4000, "spread-256-batched-rpc": 5000, "hot-256-confirm": 46, "hot-256-batched": 100,
		"hot-256-atomic": 1} {
		r.Results = append(r.Results, Result{Tables: stockTables, Case: Case{Name: name},
			Rates: Rates{PerSecond: rate}})
	}
	r.judgeStock()
	var got []string
	for _, x := range r.Targets {
		if x.Measured {
			got = append(got, fmt.Sprintf("%s %s: %s, %t", x.What, x.Want, x.Got, x.Reached))
		}
	}
	want := []string{"hot item, batched, Connect >= 4 × the best direct strategy: 4.10 ×, true",
		"hot item, batched, Connect >= 0.9 × 1,000 items: 0.82 ×, false",
		"Reserve and Confirm, in process >= 0.45 × Deduct: 0.46 ×, true",
		"trigger of moves, 1 in a statement < 5 µs a move: 6.00 µs, false",
		"trigger of moves, 100 in a statement < 5 µs a move: 4.00 µs, true"}
	if !slices.Equal(got, want) || len(r.Targets) != 8 {
		t.Errorf("%q of %d", got, len(r.Targets))
	}
}

// Sales that were lost, made up or never counted by the item are failures.
func TestOversoldUnitsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	ctx, o := t.Context(), tiny(t)
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	o.Measure, o.Warmup = 50*time.Millisecond, 0
	cluster, err := startCluster(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.stop()
	b, err := cluster.openStock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if _, err := b.run(ctx, &Case{Name: "hot", Kind: InProcess, Callers: 4, Hot: true,
		Strategy: stock.Atomic}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ spoil, want string }{
		{"select", ""},
		{"update stock_items set sold = sold - 1, available = available + 1", "1 units oversold"},
		{"update stock_items set sold = sold + 2, available = available - 2", "without a reservation"},
		{"update stock_items set sold = sold - 2, available = 0, stocked = sold - 2", "1 units oversold"},
		{`set session_replication_role = replica;
			delete from stock_reservations where reservation_no = (select max(reservation_no) from stock_reservations)`,
			"sales acknowledged"},
	} {
		if _, err := b.conn.Exec(ctx, x.spoil); err != nil {
			t.Fatal(err)
		}
		r := &Report{}
		if err := b.verify(ctx, r); err != nil || (x.want == "") != (len(r.Failures) == 0) ||
			!strings.Contains(strings.Join(r.Failures, "; "), x.want) {
			t.Errorf("%s: %v, %v", x.spoil, err, r.Failures)
		}
	}
}
