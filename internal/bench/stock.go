package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// StockOptions of RunStock. Zero values take the defaults.
type StockOptions struct {
	Options
	// Callers are the numbers of concurrent callers, default 16, 256 and 1,024.
	Callers []int
}

// Targets of the benchmark of stock, at 256 callers.
const (
	batchedConnect   = 4.0 // × the best direct strategy without segments
	batchedInProcess = 8.0
	hotOfSpread      = 0.9
	confirmOfDeduct  = 0.45
	moveTrigger      = 5.0 // µs
	stockTables      = "stock"
	stockCallers     = 256
	spreadItems      = 1000
)

// directStrategies have a transaction for each call.
var directStrategies = []string{stock.Atomic, stock.Optimistic, stock.Pessimistic, stock.Advisory}

// RunStock measures the strategies of stock, and the trigger that checks the moves of machines. With ErrFailed it also
// returns a report.
func RunStock(ctx context.Context, o StockOptions) (*Report, error) {
	o.Measure, o.Warmup = cmp.Or(o.Measure, 500*time.Millisecond), cmp.Or(o.Warmup, 500*time.Millisecond)
	if len(o.Callers) == 0 {
		o.Callers = []int{16, stockCallers, 1024}
	}
	c, r, err := start(ctx, &o.Options, StockDocument)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	if fits("moves", o.Only) {
		if r.Moves, err = c.measureMoves(ctx); err != nil {
			return nil, fmt.Errorf("moves: %w", err)
		}
	}
	if cases := selected(stockCases(o.Callers), o.Only); len(cases) > 0 {
		if err := c.measureStock(ctx, cases, r); err != nil {
			return nil, err
		}
	}
	r.judgeStock()
	return r.end()
}

// stockCases are named by items, callers, strategy, segments and -rpc over Connect.
func stockCases(callers []int) (all []Case) {
	for _, kind := range []load.Kind{InProcess, Connect} {
		add := func(items string, n int, strategy, what string, segments int) {
			name := stockCase(fmt.Sprintf("%s-%d-%s", items, n, what), kind)
			all = append(all, Case{Name: name, What: what, Kind: kind, Callers: n, Hot: items == "hot",
				Strategy: strategy, Segments: segments, Confirm: what == "confirm"})
		}
		for _, n := range callers {
			for _, items := range []string{"hot", "spread"} {
				for _, strategy := range append([]string{stock.Batched}, directStrategies...) {
					add(items, n, strategy, strategy, 1)
					if items == "hot" && n == stockCallers && strategy == stock.Batched {
						// Measure right after the case to compare with: later, autovacuum takes a part of the CPU.
						add(items, n, strategy, "confirm", 1)
					}
				}
			}
			for _, segments := range []int{10, 64} {
				for _, strategy := range []string{stock.Batched, stock.Atomic} {
					add("hot", n, strategy, fmt.Sprintf("%s-%d", strategy, segments), segments)
				}
			}
		}
	}
	return all
}

const rpcSuffix = "-rpc"

// stockCase is the name of a case.
func stockCase(name string, kind load.Kind) string {
	if kind == Connect {
		return name + rpcSuffix
	}
	return name
}

func (c *cluster) measureStock(ctx context.Context, cases []Case, r *Report) error {
	b, err := c.openStock(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	if err := r.rounds(c, stockTables, cases, func(x *Case) (Round, error) { return b.run(ctx, x) }); err != nil {
		return err
	}
	return b.verify(ctx, r)
}

// judgeStock compares the results with the targets.
func (r *Report) judgeStock() {
	for _, kind := range []load.Kind{Connect, InProcess} {
		rate := func(items, what string) float64 {
			name := fmt.Sprintf("%s-%d-%s", items, stockCallers, what)
			if x := r.find(stockTables, stockCase(name, kind)); x != nil {
				return x.PerSecond
			}
			return 0
		}
		ratio := func(what string, times float64, of string, got, from float64) {
			what, want := fmt.Sprintf("%s, %s", what, kind), fmt.Sprintf(">= %.4g × %s", times, of)
			if got > 0 && from > 0 {
				r.target(what, want, fmt.Sprintf("%.2f ×", got/from), got/from >= times)
			} else {
				r.unmeasured(what, want)
			}
		}
		best, measured := 0.0, true
		for _, strategy := range directStrategies {
			x := rate("hot", strategy)
			best, measured = max(best, x), measured && x > 0
		}
		if !measured {
			best = 0 // perhaps the best one is missing
		}
		times, of := batchedConnect, "the best direct strategy"
		if kind == InProcess {
			times, of = batchedInProcess, of+" (for information)"
		}
		batched := rate("hot", stock.Batched)
		ratio("hot item, batched", times, of, batched, best)
		ratio("hot item, batched", hotOfSpread, "1,000 items", batched, rate("spread", stock.Batched))
		ratio("Reserve and Confirm", confirmOfDeduct, "Deduct", rate("hot", "confirm"), batched)
	}
	for _, m := range []int{1, 100} {
		what := fmt.Sprintf("trigger of moves, %d in a statement", m)
		want := fmt.Sprintf("< %.0f µs a move", moveTrigger)
		i := slices.IndexFunc(r.Moves, func(x MoveResult) bool { return x.Moves == m })
		if i < 0 {
			r.unmeasured(what, want)
			continue
		}
		cost := r.Moves[i].Trigger
		r.target(what, want, fmt.Sprintf("%.2f µs", cost), cost < moveTrigger)
	}
}

func (r *Report) stockSections() []section {
	all := []section{{text: fmt.Sprintf("Load, service and database share the machine. Every caller sells one unit "+
		"after the other, of one hot item or of %s (spread). %s", thousands(spreadItems), r.length())}}
	rows := [][]string{{"case"}}
	kinds := []load.Kind{InProcess, Connect}
	for _, kind := range kinds {
		rows[0] = append(rows[0], capital(string(kind))+": sold/s [min..max]", "p50, p99", "retries a sale", "busy",
			"CPU µs of Postgres")
	}
	for i := range r.Results {
		name := strings.TrimSuffix(r.Results[i].Name, rpcSuffix)
		if slices.ContainsFunc(rows, func(row []string) bool { return row[0] == name }) {
			continue
		}
		row := []string{name}
		for _, kind := range kinds {
			row = append(row, r.find(stockTables, stockCase(name, kind)).sales()...)
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		all = append(all, section{rows: rows})
	}
	if len(r.Moves) > 0 {
		rows := [][]string{{"moves in a statement", "a move without the trigger", "the trigger"}}
		for _, m := range r.Moves {
			rows = append(rows, []string{thousands(float64(m.Moves)), fmt.Sprintf("%.2f", m.Without),
				fmt.Sprintf("%.2f", m.Trigger)})
		}
		all = append(all, section{text: fmt.Sprintf("Moves of machines, over one connection, "+
			"by turns with and without the trigger that checks them: CPU of Postgres in µs a move, "+
			"medians of %d turns.", r.Rounds*turnsPerRound)}, section{rows: rows})
	}
	return all
}

// sales are the columns of a case; those of one that was not measured are empty.
func (r *Result) sales() []string {
	if r == nil {
		return make([]string, 5)
	}
	rate, busy := r.rate(), fmt.Sprintf("%.1f %%", 100*r.Busy)
	if r.noisy() {
		rate += " (noisy)"
	}
	var unknown int64
	for i := range r.Rounds {
		unknown += r.Rounds[i].Unknown
	}
	if unknown > 0 {
		busy += fmt.Sprintf(", %d timed out", unknown)
	}
	return []string{rate, milliseconds(r.P50) + ", " + milliseconds(r.P99), fmt.Sprintf("%.2f", r.Retries), busy,
		thousands(r.CPU.Postgres)}
}
