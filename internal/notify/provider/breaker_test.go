package provider

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func TestABreakerOpensAndClosesInTime(t *testing.T) {
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
	// Failures with a success between them do not open it.
	for range 3 {
		for range openAfter - 1 {
			permitted(true)
			b.settle(false, failing)
		}
		b.settle(false, fine)
	}
	for range openAfter {
		permitted(true)
		b.settle(false, stalling)
	}
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		_, wait := permitted(false)
		if want *= time.Second; wait < want*8/10 || wait > want*12/10 {
			t.Errorf("%d: passed over for %v, not %v", n, wait, want)
		}
		b.settle(false, fine) // one that was on its way
		permitted(false)
		now = now.Add(wait)
		probe, _ := permitted(true)
		if !probe {
			t.Error("all are let in at once")
		}
		permitted(false) // only one asks
		b.settle(probe, stalling)
	}
	_, wait := permitted(false)
	now = now.Add(wait)
	probe, _ := permitted(true)
	b.settle(probe, nothing) // it was ended, and says nothing: another one asks
	probe, _ = permitted(true)
	if _, closed := b.settle(probe, fine); !closed {
		t.Error("it is not closed")
	}
	permitted(true)
	permitted(true)
	// Down opens it at once. Without an answer that is about the message it does not wait longer and longer.
	b.settle(false, down)
	for range 4 {
		_, wait = permitted(false)
		if wait > openFirst*12/10 {
			t.Errorf("passed over for %v", wait)
		}
		now = now.Add(wait)
		probe, _ = permitted(true)
		b.settle(probe, failing)
	}
}

type panicking struct{}

func (panicking) Send(context.Context, *send.Message) (send.Receipt, error) { panic("+8613812345678") }

func TestNobodyKnowsWhatASenderDidThatPanicked(t *testing.T) {
	var log bytes.Buffer
	p := &provider{Settings: &Settings{Name: "a", Timeout: time.Second}, sender: panicking{}, slots: make(chan struct{}, 1), breaker: newBreaker(),
		metrics: newMetrics(nil).of("a", send.SMS), log: slog.New(slog.NewTextHandler(&log, nil))}
	o := &Order{all: []*provider{p}}
	for range 2 { // it leaves its slot
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

func TestOneEndpointThatIsDownSaysNothingOfOthers(t *testing.T) {
	for _, many := range []bool{false, true} {
		f := File{channels: map[send.Channel][]*Settings{send.Webhook: {{Kind: "webhook", Name: "w", Concurrency: 1, Timeout: time.Second}}}}
		if !many {
			f.channels[send.Webhook][0].Kind = "file"
		}
		senders, err := f.Build(&Env{Log: slog.New(slog.DiscardHandler), Webhooks: failingSender{send.Failure{Outcome: send.Unknown, Code: "timeout"}}})
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
			t.Errorf("many: %v, and it is passed over: %v", many, passed)
		}
	}
}
