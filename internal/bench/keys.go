package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// KeyOptions of RunKeys. Zero values take the defaults.
type KeyOptions struct {
	Options
	// Callers at a time.
	Callers int
	// Redis is the program to compare with; empty: redis-server on the PATH, if it is there.
	Redis string
}

// DefaultCallers of the benchmark of keys.
const DefaultCallers = 256

// KeyCase is one thing that is measured: an operation in a closed loop by many callers.
type KeyCase struct {
	Name, What string
	// Where it runs: one of Redis, InProcess, Connect.
	Where string
	open  func(context.Context, *keyBench) (operation, error)
}

// Where operations run.
const (
	Redis     = "Redis"
	InProcess = "in process" // the engine beside the callers, in one process
	Connect   = "Connect"    // through a server of its own, over HTTP
)

// operation does the nth of a caller's; run tells one measurement from the next.
type operation func(ctx context.Context, run string, caller, n int) error

// KeyReport is everything that RunKeys found.
type KeyReport struct {
	StartedAt       time.Time
	Took            time.Duration
	Rounds          int
	Warmup, Measure time.Duration
	Callers         int
	Machine         Machine
	RedisVersion    string `json:",omitempty"`
	Results         []KeyResult
}

// KeyResult is a case with all its rounds; its own numbers are medians over them.
type KeyResult struct {
	KeyCase
	PerSecond, Least, Most float64 // operations a second
	P50, P99               time.Duration
	// Ratio to Redis in the same rounds; 0: there is none.
	Ratio  float64
	Rounds []KeyRound
}

// KeyRound is one measurement.
type KeyRound struct {
	PerSecond float64
	P50, P99  time.Duration
	Done      int64 // operations, those of the warm-up too
}

// RunKeys measures keys, tokens, guarded work and locks. Cases alternate in rounds.
func RunKeys(ctx context.Context, o KeyOptions) (*KeyReport, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if o.Callers == 0 {
		o.Callers = DefaultCallers
	}
	begin := time.Now()
	b, err := openKeyBench(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer b.close()
	report := &KeyReport{StartedAt: begin, Rounds: o.Rounds, Warmup: o.Warmup, Measure: o.Measure, Callers: o.Callers,
		RedisVersion: b.redisVersion}
	if report.Machine, err = b.cluster.machine(ctx); err != nil {
		return nil, err
	}
	var operations []operation
	for _, c := range selectedKeys(b.cases(), o.Only) {
		op, err := c.open(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		operations = append(operations, op)
		report.Results = append(report.Results, KeyResult{KeyCase: c})
	}
	done := make(map[string]int64)
	for round := range o.Rounds {
		for i := range report.Results {
			r := &report.Results[i]
			run, err := measure(ctx, &o, operations[i], fmt.Sprintf("%s-%d", r.Name, round))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			r.Rounds = append(r.Rounds, run)
			done[r.Name] += run.Done
			b.cluster.progress("round %d of %d: %-16s %8.0f/s  p50 %s  p99 %s", round+1, o.Rounds, r.Name,
				run.PerSecond,
				milliseconds(run.P50), milliseconds(run.P99))
		}
	}
	report.summarise()
	if err := b.verify(ctx, done); err != nil {
		return report, err
	}
	report.Took = time.Since(begin)
	return report, nil
}

// measure lets callers run an operation in a closed loop each, and counts what ends in the window.
func measure(ctx context.Context, o *KeyOptions, op operation, run string) (r KeyRound, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		all          sync.WaitGroup
		stop, window atomic.Bool
		measured     atomic.Int64
		done         atomic.Int64
		latency      load.Histogram
		first        sync.Once
		failure      error
	)
	for caller := range o.Callers {
		all.Go(func() {
			for n := 0; !stop.Load(); n++ {
				begin := time.Now()
				if e := op(ctx, run, caller, n); e != nil {
					first.Do(func() { failure = e })
					return
				}
				done.Add(1)
				if took := time.Since(begin); window.Load() {
					measured.Add(1)
					latency.Add(took)
				}
			}
		})
	}
	pause(ctx, o.Warmup)
	begin := time.Now()
	window.Store(true)
	pause(ctx, o.Measure)
	window.Store(false)
	seconds := time.Since(begin).Seconds()
	stop.Store(true)
	all.Wait()
	if failure != nil || ctx.Err() != nil {
		return r, errors.Join(failure, ctx.Err())
	}
	return KeyRound{PerSecond: float64(measured.Load()) / seconds, P50: latency.Quantile(0.5),
		P99: latency.Quantile(0.99), Done: done.Load()}, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// summarise takes the medians of the rounds, and the ratios to Redis.
func (r *KeyReport) summarise() {
	redis := 0.0
	for i := range r.Results {
		x := &r.Results[i]
		x.PerSecond = medianOf(x.Rounds, func(k KeyRound) float64 { return k.PerSecond })
		x.P50 = time.Duration(medianOf(x.Rounds, func(k KeyRound) float64 { return float64(k.P50) }))
		x.P99 = time.Duration(medianOf(x.Rounds, func(k KeyRound) float64 { return float64(k.P99) }))
		x.Least, x.Most = x.PerSecond, x.PerSecond
		for _, k := range x.Rounds {
			x.Least, x.Most = min(x.Least, k.PerSecond), max(x.Most, k.PerSecond)
		}
		if x.Where == Redis {
			redis = x.PerSecond
		}
	}
	for i := range r.Results {
		if x := &r.Results[i]; redis > 0 {
			x.Ratio = x.PerSecond / redis
		}
	}
}

func medianOf[T any](all []T, of func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, x := range all {
		values[i] = of(x)
	}
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
