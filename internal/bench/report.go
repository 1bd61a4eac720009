package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Report is the result of a benchmark.
type Report struct {
	Document        Document `json:"Benchmark"`
	StartedAt       time.Time
	Took            time.Duration
	Rounds          int
	Warmup, Measure time.Duration
	Machine         Machine
	Active          int             `json:",omitempty"`
	Callers         int             `json:",omitempty"` // of keys and messages
	Beside          int             `json:",omitempty"` // callers of the small tenant
	Phases          []Phase         `json:",omitempty"`
	Results         []Result        `json:",omitempty"`
	Messages        *MessagesReport `json:",omitempty"`
	Moves           []MoveResult    `json:",omitempty"`
	Sales           []SaleResult    `json:",omitempty"`
	Targets         []Target        `json:",omitempty"`
	// Failures of verification: if there are any, the numbers are not valid.
	Failures []string `json:",omitempty"`
}

func (r *Report) fail(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// find returns the result of a case, or nil.
func (r *Report) find(tables, name string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Tables == tables && x.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// rounds measures every case once per round, so that drift affects all cases alike.
func (r *Report) rounds(c *cluster, tables string, cases []Case, measure func(*Case) (Round, error)) error {
	results := make([]Result, len(cases))
	for i, x := range cases {
		results[i] = Result{Tables: tables, Case: x}
	}
	for round := range r.Rounds {
		for i := range results {
			x := &results[i]
			run, err := measure(&x.Case)
			if err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
			x.Rounds = append(x.Rounds, run)
			c.progress("%s, round %d of %d: %s", tables, round+1, r.Rounds, run.line(&x.Case))
			for _, failure := range run.Failures {
				r.fail("%s, %s, round %d: %s", tables, x.Name, round+1, failure)
			}
		}
	}
	for i := range results {
		results[i].summarise()
	}
	r.Results = append(r.Results, results...)
	return nil
}

// end completes the report.
func (r *Report) end() (*Report, error) {
	r.Took = time.Since(r.StartedAt)
	if len(r.Failures) > 0 {
		return r, fmt.Errorf("%w: %s", ErrFailed, r.Failures[0])
	}
	return r, nil
}

// Rates are the measurements of one round. Those of a Result are the medians of its rounds.
type Rates struct {
	PerSecond     float64 // transfers or operations
	P50, P99, Max time.Duration
	CPU           CPU
	// Foreign is the share of one core used by other programs, Stolen the share taken by the hypervisor: rounds
	// with much of either are not comparable.
	Foreign, Stolen float64
	PerBatch        float64 // commands in a batch of the server, on average
	// RefusedPerSecond counts calls.
	RefusedPerSecond float64 `json:",omitempty"`
	// Retries are attempts without effect for each sale, Busy is the share of sales refused with ROWS_LOCKED.
	Retries, Busy float64 `json:",omitempty"`
	// The small tenant beside.
	SmallPerSecond     float64       `json:",omitempty"`
	SmallP50, SmallP99 time.Duration `json:",omitempty"`
}

// CPU is the time used per transfer, in microseconds.
type CPU struct{ Client, Server, Postgres float64 }

// Result is a case with all its rounds.
type Result struct {
	Tables string // Small or Big; other benchmarks than the ledger's have one set each
	Case
	Rates
	Least, Most float64 // of PerSecond
	// ServerMemory is the maximum over all rounds.
	ServerMemory int64
	// Ratio to the case that the benchmark compares with; 0: it was not measured.
	Ratio  float64
	Rounds []Round
}

// Round is one run of a case.
type Round struct {
	Rates
	ServerMemory int64
	Batches      int64 // committed by the server
	// Touched is the number of accounts touched.
	Touched                     int64
	Succeeded, Refused, Unknown int64
	FirstError                  string   `json:",omitempty"`
	Failures                    []string `json:",omitempty"`
}

func newRun(r *load.Result, marks [2]sample) Round {
	run := Round{Rates: Rates{P50: r.P50, P99: r.P99, Max: r.Max}, Succeeded: r.Succeeded, Refused: r.Refused,
		Unknown: r.Unknown, FirstError: r.FirstError}
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
	run.RefusedPerSecond = float64(r.RefusedCalls) / r.Seconds
	return run
}

// besides adds the result of the small tenant.
func (r *Round) besides(small *load.Result) {
	r.SmallPerSecond, r.SmallP50, r.SmallP99 = float64(small.Measured)/small.Seconds, small.P50, small.P99
	if small.Refused+small.Unknown > 0 {
		r.Failures = append(r.Failures, fmt.Sprintf("%d transfers of the small tenant were refused, %d are unknown: %s",
			small.Refused, small.Unknown, small.FirstError))
	}
}

// line summarises a round in one line of progress.
func (r *Round) line(c *Case) string {
	s := fmt.Sprintf("%-10s %8.0f/s  p50 %s  p99 %s", c.Name, r.PerSecond, milliseconds(r.P50), milliseconds(r.P99))
	if c.Beside > 0 {
		s += fmt.Sprintf("  %.0f calls/s refused; small tenant %.1f/s  p50 %s  p99 %s", r.RefusedPerSecond,
			r.SmallPerSecond, milliseconds(r.SmallP50), milliseconds(r.SmallP99))
	}
	if r.noisy() {
		s += fmt.Sprintf("  (noisy: others had %.0f %% of a core, %.0f %% were stolen)", 100*r.Foreign, 100*r.Stolen)
	}
	for _, f := range r.Failures {
		s += "  FAILED: " + f
	}
	return s
}

// noisy reports whether other programs disturbed the round.
func (r *Round) noisy() bool { return r.Foreign > 0.1 || r.Stolen > 0.1 }

func (r *Result) noisy() bool {
	return slices.ContainsFunc(r.Rounds, func(x Round) bool { return x.noisy() })
}

// summarise computes the medians of the rounds.
func (r *Result) summarise() {
	for _, field := range []func(*Rates) *float64{
		func(x *Rates) *float64 { return &x.PerSecond },
		func(x *Rates) *float64 { return &x.CPU.Client },
		func(x *Rates) *float64 { return &x.CPU.Server },
		func(x *Rates) *float64 { return &x.CPU.Postgres },
		func(x *Rates) *float64 { return &x.Foreign },
		func(x *Rates) *float64 { return &x.Stolen },
		func(x *Rates) *float64 { return &x.PerBatch },
		func(x *Rates) *float64 { return &x.RefusedPerSecond },
		func(x *Rates) *float64 { return &x.Retries },
		func(x *Rates) *float64 { return &x.Busy },
		func(x *Rates) *float64 { return &x.SmallPerSecond },
	} {
		setMedian(r, field)
	}
	for _, field := range []func(*Rates) *time.Duration{
		func(x *Rates) *time.Duration { return &x.P50 },
		func(x *Rates) *time.Duration { return &x.P99 },
		func(x *Rates) *time.Duration { return &x.Max },
		func(x *Rates) *time.Duration { return &x.SmallP50 },
		func(x *Rates) *time.Duration { return &x.SmallP99 },
	} {
		setMedian(r, field)
	}
	r.Least, r.Most = r.PerSecond, r.PerSecond
	for i := range r.Rounds {
		x := &r.Rounds[i]
		r.Least, r.Most = min(r.Least, x.PerSecond), max(r.Most, x.PerSecond)
		r.ServerMemory = max(r.ServerMemory, x.ServerMemory)
	}
}

// setMedian sets a field of the result to the median of its rounds.
func setMedian[T float64 | time.Duration](r *Result, field func(*Rates) *T) {
	var all []T
	for i := range r.Rounds {
		all = append(all, *field(&r.Rounds[i].Rates))
	}
	if slices.Sort(all); len(all) > 0 {
		*field(&r.Rates) = (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
}
