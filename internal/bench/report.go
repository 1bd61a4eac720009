package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Report is everything that a whole run found.
type Report struct {
	StartedAt       time.Time
	Took            time.Duration
	Rounds          int
	Warmup, Measure time.Duration
	Active          int
	Machine         Machine
	Phases          []Phase
	Results         []Result
	Targets         []Target
	// Failures of verification: with any, the numbers are not to be believed.
	Failures []string `json:",omitempty"`
}

func (r *Report) fail(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// find gives the result of a case, or nil.
func (r *Report) find(tables, name string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Tables == tables && x.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// Result is a case with all its rounds. Its own numbers are medians over them.
type Result struct {
	Tables string // Small or Big
	Case
	PerSecond, Least, Most float64 // transfers a second
	P50, P99, Max          time.Duration
	CPU                    CPU
	// ServerMemory is the greatest of all rounds.
	ServerMemory int64
	PerBatch     float64
	// Ratio to the better baseline of the same tables and accounts; 0: there is none.
	Ratio  float64
	Rounds []Round
}

// CPU is time used for one transfer, in microseconds.
type CPU struct{ Client, Server, Postgres float64 }

// Round is one run of a case.
type Round struct {
	PerSecond     float64
	P50, P99, Max time.Duration
	CPU           CPU
	// Foreign is what programs that are none of ours used of one core, Stolen what other machines of
	// the hypervisor took: runs with much of either are not to be compared.
	Foreign, Stolen float64
	ServerMemory    int64
	// Batches that the service committed, and how many commands each carried on average.
	Batches  int64
	PerBatch float64
	// Touched accounts.
	Touched                     int64
	Succeeded, Refused, Unknown int64
	FirstError                  string   `json:",omitempty"`
	Failures                    []string `json:",omitempty"`
}

func newRun(r *load.Result, marks [2]sample) Round {
	run := Round{P50: r.P50, P99: r.P99, Max: r.Max, Succeeded: r.Succeeded, Refused: r.Refused, Unknown: r.Unknown,
		FirstError: r.FirstError}
	if r.Measured == 0 || r.Seconds == 0 {
		return run
	}
	run.PerSecond = float64(r.Measured) / r.Seconds
	each := func(from, to time.Duration) float64 { return float64((to - from).Microseconds()) / float64(r.Measured) }
	a, b := marks[0], marks[1]
	run.CPU = CPU{each(a.client, b.client), each(a.server, b.server), each(a.postgres, b.postgres)}
	known := (b.client - a.client) + (b.server - a.server) + (b.postgres - a.postgres) + (b.self - a.self)
	run.Foreign = max((b.machine-a.machine-known).Seconds()/r.Seconds, 0)
	run.Stolen = (b.stolen - a.stolen).Seconds() / r.Seconds
	return run
}

// line is a run in one line of progress.
func (r *Round) line(c *Case) string {
	s := fmt.Sprintf("%-10s %8.0f/s  p50 %s  p99 %s", c.Name, r.PerSecond, milliseconds(r.P50), milliseconds(r.P99))
	if r.noisy() {
		s += fmt.Sprintf("  (noisy: others had %.0f %% of a core, %.0f %% were stolen)", 100*r.Foreign, 100*r.Stolen)
	}
	for _, f := range r.Failures {
		s += "  FAILED: " + f
	}
	return s
}

// noisy runs had something else going on beside them.
func (r *Round) noisy() bool { return r.Foreign > 0.1 || r.Stolen > 0.1 }

func (r *Result) noisy() bool {
	return slices.ContainsFunc(r.Rounds, func(x Round) bool { return x.noisy() })
}

// summarise takes the medians of the rounds.
func (r *Result) summarise() {
	rate := func(x *Round) float64 { return x.PerSecond }
	r.PerSecond = r.median(rate)
	r.Least, r.Most = r.PerSecond, r.PerSecond
	for i := range r.Rounds {
		x := &r.Rounds[i]
		r.Least, r.Most = min(r.Least, x.PerSecond), max(r.Most, x.PerSecond)
		r.ServerMemory = max(r.ServerMemory, x.ServerMemory)
	}
	r.P50 = time.Duration(r.median(func(x *Round) float64 { return float64(x.P50) }))
	r.P99 = time.Duration(r.median(func(x *Round) float64 { return float64(x.P99) }))
	r.Max = time.Duration(r.median(func(x *Round) float64 { return float64(x.Max) }))
	r.CPU.Client = r.median(func(x *Round) float64 { return x.CPU.Client })
	r.CPU.Server = r.median(func(x *Round) float64 { return x.CPU.Server })
	r.CPU.Postgres = r.median(func(x *Round) float64 { return x.CPU.Postgres })
	r.PerBatch = r.median(func(x *Round) float64 { return x.PerBatch })
}

func (r *Result) median(of func(*Round) float64) float64 {
	if len(r.Rounds) == 0 {
		return 0
	}
	var all []float64
	for i := range r.Rounds {
		all = append(all, of(&r.Rounds[i]))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
