package bench

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Target is a performance goal.
type Target struct {
	What    string
	Want    string
	Got     string
	Reached bool
	// Measured is false if one of its cases did not run.
	Measured bool
}

// ratioTarget requires a case to be at least a multiple of another one.
type ratioTarget struct {
	tables, name string
	times        float64
	of           string // a case of the small tables; empty: the better baseline
}

// Targets, on two cores shared by client, server and Postgres.
var ratioTargets = []ratioTarget{
	{Small, "b-256", 1.7, ""},
	{Small, "b-256-hot", 8, ""},
	{Small, "b-256-hot", 0.9, "b-256"},
	{Small, "c-256", 0.75, "b-256"},
	{Small, "c-256-hot", 0.75, "b-256-hot"},
	{Small, "d-8", 4, ""},
	{Small, "d-8-hot", 4, ""},
	{Small, "e-1024", 3, ""},
	{Small, "e-1024-hot", 3, ""},
	{Big, "b-256", 0.85, "b-256"},
	{Big, "b-256-hot", 0.85, "b-256-hot"},
	{Big, "c-256", 0.85, "c-256"},
	{Big, "c-256-hot", 0.85, "c-256-hot"},
	{Big, "d-8", 0.85, "d-8"},
	{Big, "d-8-hot", 0.85, "d-8-hot"},
	{Big, "e-1024", 0.85, "e-1024"},
	{Big, "e-1024-hot", 0.85, "e-1024-hot"},
}

const (
	loneMedian = 2 * time.Millisecond
	p99At64    = 12 * time.Millisecond
	memoryAt1k = 256 << 20
)

// judge computes the ratios to the baseline and compares the results with the targets.
func (r *Report) judge() {
	for i := range r.Results {
		x := &r.Results[i]
		if base := r.baseline(x.Tables, x.Hot); base != nil {
			x.Ratio = x.PerSecond / base.PerSecond
		}
	}
	for _, t := range ratioTargets {
		r.Targets = append(r.Targets, r.ratio(t))
	}
	limit := func(what, want, name string, of func(*Result) (string, bool)) {
		if x := r.find(Small, name); x != nil {
			got, reached := of(x)
			r.target(what, want, got, reached)
		} else {
			r.unmeasured(what, want)
		}
	}
	limit("b-1, median", "< 2 ms", "b-1",
		func(x *Result) (string, bool) { return milliseconds(x.P50), x.P50 < loneMedian })
	limit("b-64, p99", "< 12 ms", "b-64",
		func(x *Result) (string, bool) { return milliseconds(x.P99), x.P99 < p99At64 })
	for _, name := range []string{"b-1024", "c-1024"} {
		limit(name+", memory of the server", "< 256 MB", name,
			func(x *Result) (string, bool) { return megabytes(x.ServerMemory), x.ServerMemory < memoryAt1k })
	}
}

// target adds a measured target.
func (r *Report) target(what, want, got string, reached bool) {
	r.Targets = append(r.Targets, Target{What: what, Want: want, Got: got, Reached: reached, Measured: true})
}

// unmeasured adds a target, one of whose cases did not run.
func (r *Report) unmeasured(what, want string) {
	r.Targets = append(r.Targets, Target{What: what, Want: want})
}

// baseline returns the better result of (a), the harder one to beat.
func (r *Report) baseline(tables string, hot bool) (best *Result) {
	for i := range r.Results {
		x := &r.Results[i]
		if x.Tables == tables && x.Kind == load.Baseline && !x.Guarded && x.Hot == hot && x.PerSecond > 0 &&
			(best == nil || x.PerSecond > best.PerSecond) {
			best = x
		}
	}
	return best
}

func (r *Report) ratio(t ratioTarget) Target {
	x := r.find(t.tables, t.name)
	target := Target{What: t.name, Want: fmt.Sprintf(">= %.4g × %s", t.times, t.of)}
	if t.of == "" {
		target.Want = fmt.Sprintf(">= %.4g × (a)", t.times)
	}
	if t.tables == Big {
		target.What = "big tables: " + t.name
		target.Want += " on the small ones"
	}
	if x == nil {
		return target
	}
	of := r.find(Small, t.of)
	if t.of == "" {
		of = r.baseline(t.tables, x.Hot)
	}
	if of == nil || of.PerSecond == 0 {
		return target
	}
	got := x.PerSecond / of.PerSecond
	target.Got, target.Reached, target.Measured = fmt.Sprintf("%.2f ×", got), got >= t.times, true
	return target
}
