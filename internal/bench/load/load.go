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

// caller makes calls one after the other.
type caller interface {
	call() Outcome
	close()
}

// Outcome of a call, in transfers.
type Outcome struct {
	Succeeded, Refused, Unknown int64
	Err                         error
	retry                       time.Duration // delay before the next call; 0: none
}

// Main runs the load process: it reads a Spec and writes Messages until done or until ctx ends.
func Main(ctx context.Context, in io.Reader, out io.Writer) error {
	encode := json.NewEncoder(out)
	var spec Spec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	// A live heap of a few megabytes would be collected many times a second, which costs the server CPU. The Go
	// client keeps its users' default.
	if spec.Kind != Client && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(1000)
	}
	result, err := run(ctx, &spec, func(mark string) { _ = encode.Encode(Message{Mark: mark}) })
	if err != nil {
		return encode.Encode(Message{Error: err.Error()})
	}
	return encode.Encode(Message{Result: result})
}

// opener returns how to open a spec's callers.
func opener(ctx context.Context, spec *Spec) (func(n int) (caller, error), error) {
	switch spec.Kind {
	case Baseline:
		return func(n int) (caller, error) { return newBaselineCaller(ctx, spec, n) }, nil
	case HTTP:
		return func(n int) (caller, error) { return newConnectCaller(spec, n) }, nil
	case Stock:
		return func(n int) (caller, error) { return newStockCaller(spec, n) }, nil
	case Checkout:
		return func(n int) (caller, error) { return newCheckoutCaller(spec, n) }, nil
	case CheckoutBaseline:
		return func(n int) (caller, error) { return newCheckoutBaseline(ctx, spec, n) }, nil
	case Client:
		shared := newClient(spec)
		return func(n int) (caller, error) {
			return &clientCaller{client: shared, maker: newMaker(spec, n), patience: spec.Patience}, nil
		}, nil
	}
	return nil, fmt.Errorf("unknown kind of load %q", spec.Kind)
}

// meter is shared by all callers of a run.
type meter struct {
	stop                        atomic.Bool
	window                      atomic.Bool // calls that end now are measured
	succeeded, refused, unknown atomic.Int64
	measured, refusedCalls      atomic.Int64
	latency                     Histogram
	first                       sync.Once
	firstError                  string
}

// maxExtended bounds a window that is extended.
const maxExtended = 30 * time.Second

// idle reports that no call has ended in the window, and none has failed.
func (m *meter) idle() bool {
	return m.measured.Load() == 0 && m.refused.Load() == 0 && m.unknown.Load() == 0
}

func run(ctx context.Context, spec *Spec, mark func(string)) (*Result, error) {
	open, err := opener(ctx, spec)
	if err != nil {
		return nil, err
	}
	if spec.Gateway != "" {
		stop, err := serveGateway(ctx, spec.Gateway)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	calls := make([]func() Outcome, spec.Callers)
	for n := range calls {
		c, err := open(n)
		if err != nil {
			return nil, fmt.Errorf("caller %d: %w", n, err)
		}
		defer c.close()
		calls[n] = c.call
	}
	return Measure(ctx, calls, spec.Warmup, spec.Measure, mark)
}

// Measure runs calls in closed loops. It calls mark when the measured window begins and when it ends.
func Measure(ctx context.Context, calls []func() Outcome, warmup, window time.Duration,
	mark func(string)) (*Result, error) {
	var m meter
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() { m.loop(ctx, call) })
	}
	Pause(ctx, warmup)
	mark(MarkMeasure)
	begin := time.Now()
	m.window.Store(true)
	// If a call takes longer than the window, extend the window, so that slow machines are measured too.
	Pause(ctx, window)
	for m.idle() && time.Since(begin) < maxExtended && ctx.Err() == nil {
		Pause(ctx, window)
	}
	m.window.Store(false)
	seconds := time.Since(begin).Seconds()
	mark(MarkMeasured)
	m.stop.Store(true)
	all.Wait() // bounded by the timeout of every call
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return &Result{Succeeded: m.succeeded.Load(), Refused: m.refused.Load(), Unknown: m.unknown.Load(),
		FirstError: m.firstError, Measured: m.measured.Load(), RefusedCalls: m.refusedCalls.Load(), Seconds: seconds,
		P50: m.latency.Quantile(0.5), P99: m.latency.Quantile(0.99), Max: m.latency.Max()}, nil
}

// Pause returns after d, or when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Bounds for a caller without answers: it must neither spin nor wait forever for a dead server.
const (
	pauseAfterUnknown = 50 * time.Millisecond
	giveUpAfter       = 20
)

func (m *meter) loop(ctx context.Context, call func() Outcome) {
	for lost := 0; lost < giveUpAfter && !m.stop.Load(); {
		begin, began := time.Now(), m.window.Load()
		o := call()
		took := time.Since(begin)
		m.succeeded.Add(o.Succeeded)
		if m.window.Load() {
			m.measured.Add(o.Succeeded)
		}
		if began && o.Succeeded > 0 { // even if the window has closed: otherwise no latency could exceed it
			m.latency.Add(took)
		}
		if m.window.Load() && o.Refused > 0 {
			m.refusedCalls.Add(1)
		}
		if o.Err != nil {
			m.refused.Add(o.Refused)
			m.unknown.Add(o.Unknown)
			m.first.Do(func() { m.firstError = o.Err.Error() })
		}
		if o.Unknown == 0 {
			lost = 0
			if o.retry > 0 {
				Pause(ctx, o.retry)
			}
			continue
		}
		lost++
		time.Sleep(pauseAfterUnknown)
	}
}
