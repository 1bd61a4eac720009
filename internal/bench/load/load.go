package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// caller makes one call after the other.
type caller interface {
	call() outcome
	close()
}

// outcome of a call, in transfers.
type outcome struct {
	succeeded, refused, unknown int64
	err                         error
	retry                       time.Duration // wait before the next call; 0: none
}

// Main is the load process: it reads a Spec and writes Messages. Ctx ends it early.
func Main(ctx context.Context, in io.Reader, out io.Writer) error {
	encode := json.NewEncoder(out)
	var spec Spec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	// A live heap of a few megabytes would be collected many times a second, at the server's cost. Our
	// own Go client is left as its users have it.
	if spec.Kind != Client && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(1000)
	}
	result, err := run(ctx, &spec, func(mark string) { _ = encode.Encode(Message{Mark: mark}) })
	if err != nil {
		return encode.Encode(Message{Error: err.Error()})
	}
	return encode.Encode(Message{Result: result})
}

// opener tells how the callers of a spec are made.
func opener(ctx context.Context, spec *Spec) (func(n int) (caller, error), error) {
	switch spec.Kind {
	case Baseline:
		return func(n int) (caller, error) { return newBaselineCaller(ctx, spec, n) }, nil
	case HTTP:
		return func(n int) (caller, error) { return newConnectCaller(spec, n) }, nil
	case Client:
		shared := newClient(spec)
		return func(n int) (caller, error) {
			return &clientCaller{client: shared, maker: newMaker(spec, n), patience: spec.Patience}, nil
		}, nil
	}
	return nil, fmt.Errorf("there is no load %q", spec.Kind)
}

// meter is what all callers of a run write to.
type meter struct {
	stop                        atomic.Bool
	window                      atomic.Bool // what ends now is measured
	succeeded, refused, unknown atomic.Int64
	measured, refusedCalls      atomic.Int64
	latency                     Histogram
	first                       sync.Once
	firstError                  string
}

// maxWindows bounds how often a window is prolonged.
const maxWindows = 10

// idle: no call has ended in the window, and none went wrong.
func (m *meter) idle() bool {
	return m.measured.Load() == 0 && m.refused.Load() == 0 && m.unknown.Load() == 0
}

func run(ctx context.Context, spec *Spec, mark func(string)) (*Result, error) {
	open, err := opener(ctx, spec)
	if err != nil {
		return nil, err
	}
	callers := make([]caller, spec.Callers)
	for n := range callers {
		c, err := open(n)
		if err != nil {
			return nil, fmt.Errorf("caller %d: %w", n, err)
		}
		defer c.close()
		callers[n] = c
	}
	var m meter
	var all sync.WaitGroup
	for _, c := range callers {
		all.Go(func() { m.loop(ctx, c) })
	}
	wait(ctx, spec.Warmup)
	mark(MarkMeasure)
	begin := time.Now()
	m.window.Store(true)
	// Where a call takes longer than the window, another window follows, so that a slow machine is measured too.
	for windows := 0; windows == 0 || windows < maxWindows && m.idle() && ctx.Err() == nil; windows++ {
		wait(ctx, spec.Measure)
	}
	m.window.Store(false)
	seconds := time.Since(begin).Seconds()
	mark(MarkMeasured)
	m.stop.Store(true)
	all.Wait() // bounded by the patience of every call
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return &Result{Succeeded: m.succeeded.Load(), Refused: m.refused.Load(), Unknown: m.unknown.Load(),
		FirstError: m.firstError,
		Measured:   m.measured.Load(), RefusedCalls: m.refusedCalls.Load(), Seconds: seconds,
		P50: m.latency.Quantile(0.5), P99: m.latency.Quantile(0.99), Max: m.latency.Max()}, nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A caller that gets no answers must not spin, nor wait for a server that is gone.
const (
	pauseAfterUnknown = 50 * time.Millisecond
	giveUpAfter       = 20
)

func (m *meter) loop(ctx context.Context, c caller) {
	for lost := 0; lost < giveUpAfter && !m.stop.Load(); {
		begin := time.Now()
		o := c.call()
		took := time.Since(begin)
		m.succeeded.Add(o.succeeded)
		if m.window.Load() && o.succeeded > 0 {
			m.measured.Add(o.succeeded)
			m.latency.Add(took)
		}
		if m.window.Load() && o.refused > 0 {
			m.refusedCalls.Add(1)
		}
		if o.err != nil {
			m.refused.Add(o.refused)
			m.unknown.Add(o.unknown)
			m.first.Do(func() { m.firstError = o.err.Error() })
		}
		if o.unknown == 0 {
			lost = 0
			if o.retry > 0 {
				wait(ctx, o.retry)
			}
			continue
		}
		lost++
		time.Sleep(pauseAfterUnknown)
	}
}
