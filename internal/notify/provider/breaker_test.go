package provider

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func TestBreakerOpensAndCloses(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBreaker()
	b.now = func() time.Time { return now }
	permitted := func(want bool) (probe bool, wait time.Duration) {
		t.Helper()
		ok, probe, wait := b.permit()
		if ok != want || ok == (wait > 0) {
			t.Fatalf("permitted: %v, in %v", ok, wait)
		}
		return probe, wait
	}
	// Failures with successes in between do not open it.
	for range 3 {
		for range openAfter - 1 {
			permitted(true)
			b.record(false, failing)
		}
		b.record(false, fine)
	}
	for range openAfter {
		permitted(true)
		b.record(false, stalling)
	}
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		_, wait := permitted(false)
		if want *= time.Second; wait < want*8/10 || wait > want*12/10 {
			t.Errorf("%d: open for %v, want %v", n, wait, want)
		}
		b.record(false, fine) // an attempt from before the breaker opened
		permitted(false)
		now = now.Add(wait)
		probe, _ := permitted(true)
		if !probe {
			t.Error("the attempt after the wait is not a probe")
		}
		permitted(false) // only one probe runs
		b.record(probe, stalling)
	}
	_, wait := permitted(false)
	now = now.Add(wait)
	probe, _ := permitted(true)
	b.record(probe, nothing) // a cancelled probe: the next attempt probes
	probe, _ = permitted(true)
	if _, closed := b.record(probe, fine); !closed {
		t.Error("the breaker is not closed")
	}
	permitted(true)
	permitted(true)
	// Down opens it at once. After failed probes that got an answer the time does not double.
	b.record(false, down)
	for range 4 {
		_, wait = permitted(false)
		if wait > minOpen*12/10 {
			t.Errorf("open for %v", wait)
		}
		now = now.Add(wait)
		probe, _ = permitted(true)
		b.record(probe, failing)
	}
}

type panicking struct{}

func (panicking) Send(context.Context, *send.Message) (send.Receipt, error) { panic("+8613812345678") }

func TestPanicOfASenderIsUnknown(t *testing.T) {
	var log bytes.Buffer
	p := &provider{Settings: &Settings{Name: "a", Timeout: time.Second}, account: account{panicking{}, newBreaker()},
		slots:   make(chan struct{}, 1),
		metrics: newMetrics(nil).of("a", send.SMS), log: slog.New(slog.NewTextHandler(&log, nil))}
	o := &Order{all: []*provider{p}}
	for range 2 { // the panicking attempt released its slot
		_, err := o.Send(t.Context(), &send.Message{})
		if f := send.Failed(err); f.Outcome != send.Unknown || f.Code != "panic" || f.Provider != "a" {
			t.Errorf("%v", err)
		}
	}
	if strings.Contains(log.String(), "13812345678") || !strings.Contains(log.String(), "panicked") {
		t.Errorf("%s", &log)
	}
}

type failingSender struct{ f send.Failure }

func (s failingSender) Send(context.Context, *send.Message) (send.Receipt, error) {
	return send.Receipt{}, &s.f
}

func TestFailingEndpointDoesNotOpenTheBreaker(t *testing.T) {
	for _, many := range []bool{false, true} {
		f := File{channels: map[send.Channel][]*Settings{send.Webhook: {{Kind: "webhook", Name: "w", Concurrency: 1,
			Timeout: time.Second}}}}
		if !many {
			f.channels[send.Webhook][0].Kind = "file"
		}
		senders, err := f.Build(&Env{Log: slog.New(slog.DiscardHandler),
			Webhooks: failingSender{send.Failure{Outcome: send.Unknown, Code: "timeout"}}})
		if err != nil {
			t.Fatal(err)
		}
		o := senders.ByChannel[send.Webhook].(*Order)
		o.all[0].sender = failingSender{send.Failure{Outcome: send.Unknown, Code: "timeout"}}
		last := ""
		for range 3 * openAfter {
			_, err := o.Send(t.Context(), &send.Message{})
			last = send.Failed(err).Code
		}
		if passed := last == "passed_over"; passed == many {
			t.Errorf("webhook: %v, skipped: %v", many, passed)
		}
	}
}

// A wrong password in one tenant's overrides opens the breaker for that tenant only.
func TestBreakerIsPerAccount(t *testing.T) {
	p := &provider{Settings: &Settings{Name: "a", Timeout: time.Second}, account: account{takes{}, newBreaker()},
		own: map[int32]*account{2: {failingSender{send.Failure{Outcome: send.Refused, Code: "login", Down: true}},
			newBreaker()}},
		slots: make(chan struct{}, 1), metrics: newMetrics(nil).of("a", send.SMS), log: slog.New(slog.DiscardHandler)}
	o := &Order{all: []*provider{p}}
	for range 3 {
		if _, err := o.Send(t.Context(), &send.Message{Tenant: 2}); err == nil {
			t.Error("sent with a wrong password")
		}
		if _, err := o.Send(t.Context(), &send.Message{Tenant: 1}); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
	if !p.isOpen() {
		t.Error("isOpen is false")
	}
}

type takes struct{}

func (takes) Send(context.Context, *send.Message) (send.Receipt, error) { return send.Receipt{}, nil }

// However many callers there are, the rate is kept and fully used.
func TestRateLimitIsFullyUsed(t *testing.T) {
	p := &provider{Settings: &Settings{Name: "a", Timeout: time.Second}, account: account{takes{}, newBreaker()},
		limit: rate.NewLimiter(200, 20),
		slots: make(chan struct{}, 1000), metrics: newMetrics(nil).of("a", send.SMS),
		log: slog.New(slog.DiscardHandler)}
	o := &Order{all: []*provider{p}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var taken atomic.Int64
	var all sync.WaitGroup
	for range 600 { // a third of these find no place within maxWait
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := o.Send(ctx, &send.Message{}); err == nil {
					taken.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := taken.Load(); n < 500 || n > 700 {
		t.Errorf("%d sent in 3 s, want about 600", n)
	}
}

// If one provider refused and another was skipped, the message waits for the skipped one without counting an attempt.
func TestSkippedProviderOutweighsARefusal(t *testing.T) {
	add := func(all ...send.Failure) *send.Failure {
		var s summary
		for _, f := range all {
			s.add(&f)
		}
		return s.failure()
	}
	no := send.Failure{Outcome: send.Refused, Code: "no_template", Provider: "a"}
	later := send.Failure{Outcome: send.Temporary, Code: "passed_over", RetryAfter: time.Second}
	down := send.Failure{Outcome: send.Refused, Code: "login", Provider: "b", Down: true}
	for _, c := range []struct {
		of   []send.Failure
		want send.Failure
	}{
		{[]send.Failure{no, later}, later},
		{[]send.Failure{later, no}, later},
		{[]send.Failure{no}, no},
		{[]send.Failure{down, no, later}, send.Failure{Outcome: send.Temporary, Code: "no_template", Provider: "a"}},
	} {
		if got := add(c.of...); *got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
