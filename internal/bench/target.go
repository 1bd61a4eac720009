package bench

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Target is something to reach.
type Target struct {
	What    string
	Want    string
	Got     string
	Reached bool
	// Measured is false when one of its cases was not.
	Measured bool
}

// ratioTarget wants a case to be at least so many times another one.
type ratioTarget struct {
	tables, name string
	times        float64
	of           string // a case of the small tables; empty: the better baseline
}

// The targets, on two cores that client, server and Postgres share.
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

// judge computes the ratios to the baseline and holds the results against the targets.
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
		t := Target{What: what, Want: want}
		if x := r.find(Small, name); x != nil {
			t.Measured = true
			t.Got, t.Reached = of(x)
		}
		r.Targets = append(r.Targets, t)
	}
	limit("(b) one lone caller, median", "< 2 ms", "b-1",
		func(x *Result) (string, bool) { return milliseconds(x.P50), x.P50 < loneMedian })
	limit("(b) at 64 callers, p99", "< 12 ms", "b-64",
		func(x *Result) (string, bool) { return milliseconds(x.P99), x.P99 < p99At64 })
	for _, name := range []string{"b-1024", "c-1024"} {
		limit(fmt.Sprintf("(%s) at 1,024 callers, memory of the server", name[:1]), "< 256 MB", name,
			func(x *Result) (string, bool) { return megabytes(x.ServerMemory), x.ServerMemory < memoryAt1k })
	}
}

// baseline is the better one of (a), by which the service has the harder time.
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
		target.What = fmt.Sprintf("(f) %s on the big tables", t.name)
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

// Missed counts the targets that were measured and not reached.
func (r *Report) Missed() (missed int) {
	for _, t := range r.Targets {
		if t.Measured && !t.Reached {
			missed++
		}
	}
	return missed
}
