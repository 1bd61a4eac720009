package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

const (
	// enough is how much time an attempt must have left for another provider to be asked in it.
	enough = 3 * time.Second
	// patience is how long an attempt waits for a provider that has enough to do: others may have time.
	patience = 2 * time.Second
)

// Order is the sender of a channel: it asks its providers one after the other.
type Order struct {
	all []*provider
}

// provider is one of them at work.
type provider struct {
	*Settings
	account
	own      map[int32]*account // of tenants that have settings of their own
	tenants  map[int32]bool     // nil: all
	slots    chan struct{}
	limit    *rate.Limiter // nil: any rate
	limiting sync.Mutex
	many     bool // each recipient is a server of its own: the breaker stays closed
	metrics  *gauges
	log      *slog.Logger
}

// account is by whose settings a provider is asked. It has a breaker of its own: a wrong password of one tenant's is no
// trouble of others.
type account struct {
	sender  send.Sender
	breaker *breaker
}

// Send asks the providers that there are for the message's tenant, beginning after the one that failed last,
// until one has taken it or it is not sure that none has.
//
// A Failure without a Provider tells that none was asked: all are passed over, or have enough to do.
func (o *Order) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	list, first, f := o.list(m)
	if f != nil {
		return send.Receipt{}, f
	}
	var sum summary
	asked := first // by what is written down
	for _, p := range list {
		if m.Unsure && p.Name == m.LastProvider {
			asked = p
		}
	}
	for i, p := range list {
		if i > 0 && lacksTime(ctx) {
			sum.add(&send.Failure{Outcome: send.Temporary, Code: "late",
				Text: "there was no time left to try the next provider"})
			break
		}
		r, f := p.ask(ctx, m, &asked)
		if f == nil {
			r.Provider = p.Name
			return r, nil
		}
		sum.add(f)
		if f.Outcome == send.Permanent || f.Outcome == send.Unknown && (m.Park || !p.ResendUnknown) {
			break
		}
	}
	return send.Receipt{}, sum.failure()
}

// list is who may be asked, in which order, and who is the first in the order of the configuration.
func (o *Order) list(m *send.Message) (list []*provider, first *provider, f *send.Failure) {
	for _, p := range o.all {
		if p.tenants == nil || p.tenants[m.Tenant] {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil, nil, &send.Failure{Outcome: send.Refused, Code: "no_provider",
			Text: "the tenant has no provider for this channel"}
	}
	first = list[0]
	if m.Unsure && m.LastProvider == "" && !first.ResendUnknown {
		return list[:1], first, nil
	}
	for i, p := range list {
		if p.Name != m.LastProvider {
			continue
		}
		if m.Unsure && !p.ResendUnknown {
			return list[i : i+1], first, nil
		}
		return append(list[i+1:len(list):len(list)], list[:i+1]...), first, nil
	}
	if m.Unsure && m.LastProvider != "" {
		return nil, nil, &send.Failure{Outcome: send.Refused, Code: "provider_gone",
			Text: "the provider that may have sent the message is no longer configured: an operator must find out whether it was sent"}
	}
	return list, first, nil
}

func lacksTime(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(end) < enough
}

// ask makes an attempt with one provider. A failure without a Provider tells that it was not made.
func (p *provider) ask(ctx context.Context, m *send.Message, asked **provider) (r send.Receipt, f *send.Failure) {
	a := &p.account
	if own := p.own[m.Tenant]; own != nil {
		a = own
	}
	ok, probe, wait := a.breaker.permit()
	if !ok {
		p.metrics.skipped.Inc()
		return r, &send.Failure{Outcome: send.Temporary, Code: "passed_over",
			Text: "the provider is skipped because it failed recently", RetryAfter: wait}
	}
	v := nothing
	defer func() { p.settle(a, probe, v, f) }()
	free, f := p.enter(ctx)
	if f != nil {
		return r, f
	}
	defer free()
	if f := p.turn(ctx, m, asked); f != nil {
		return r, f
	}
	start := time.Now()
	if r, f = p.attempt(ctx, a, m); f != nil {
		f.Provider = p.Name
	}
	if v = judge(ctx, f); p.many {
		v = nothing
	}
	p.metrics.tried(f, time.Since(start))
	return r, f
}

// turn writes down who is about to be asked, if by what is written down it is another one.
func (p *provider) turn(ctx context.Context, m *send.Message, asked **provider) *send.Failure {
	if *asked == p || m.Turn == nil || m.Park {
		return nil
	}
	if err := m.Turn(ctx, p.Name); err != nil {
		return &send.Failure{Outcome: send.Temporary, Code: "turn",
			Text: "the provider to be tried could not be recorded", RetryAfter: time.Second}
	}
	*asked = p
	return nil
}

// attempt calls the sender. If that panics, nobody knows what it did.
func (p *provider) attempt(ctx context.Context, a *account, m *send.Message) (r send.Receipt, f *send.Failure) {
	defer func() {
		if cause := recover(); cause != nil {
			if _, ok := cause.(runtime.Error); !ok {
				cause = fmt.Sprintf("%T", cause) // what it says may be what the message says
			}
			p.log.Error("a sender panicked", "provider", p.Name, "cause", cause, "stack", string(debug.Stack()))
			f = &send.Failure{Outcome: send.Unknown, Code: "panic", Text: "the sender panicked: see the log"}
		}
	}()
	within, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	r, err := a.sender.Send(within, m)
	if err != nil {
		failed := *send.Failed(err) // the sender's may be shared
		return send.Receipt{}, &failed
	}
	return r, nil
}

// enter waits until the provider may be given one more message. It is left by free.
func (p *provider) enter(ctx context.Context) (free func(), f *send.Failure) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
	default:
		select {
		case p.slots <- struct{}{}:
		case <-within.Done():
			return nil, &send.Failure{Outcome: send.Temporary, Code: "busy",
				Text: "the provider's concurrency limit is reached", RetryAfter: time.Second}
		}
	}
	free = func() { <-p.slots }
	if p.limit == nil {
		return free, nil
	}
	turn, wait, ok := p.next(within)
	if !ok {
		free()
		return nil, &send.Failure{Outcome: send.Temporary, Code: "rate", Text: "the provider's rate limit is reached",
			RetryAfter: wait}
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-within.Done():
			turn.Cancel()
			free()
			return nil, &send.Failure{Outcome: send.Temporary, Code: "cancelled", Text: "the attempt was cancelled",
				RetryAfter: time.Second}
		}
	}
	return free, nil
}

// next takes a place in the rate, unless that comes too late. In one step: what is given back while others take is
// counted wrong, and many who do so got twice the rate.
func (p *provider) next(ctx context.Context) (turn *rate.Reservation, wait time.Duration, ok bool) {
	p.limiting.Lock()
	defer p.limiting.Unlock()
	turn = p.limit.Reserve()
	wait = turn.Delay()
	if end, bounded := ctx.Deadline(); bounded && wait > time.Until(end) {
		turn.Cancel()
		return nil, wait, false
	}
	return turn, wait, true
}

// judge tells what an attempt says of the provider.
func judge(ctx context.Context, f *send.Failure) verdict {
	switch {
	case f == nil:
		return fine
	case f.Down:
		return down
	case errors.Is(ctx.Err(), context.Canceled):
		return nothing
	case f.Outcome == send.Permanent, f.Outcome == send.Refused:
		return fine
	case f.Outcome == send.Unknown, slices.Contains([]string{"timeout", "connection", "connect"}, f.Code):
		return stalling
	}
	return failing
}

// settle has the breaker know, and tells people of a change.
func (p *provider) settle(a *account, probe bool, v verdict, f *send.Failure) {
	opened, closed := a.breaker.settle(probe, v)
	if opened > 0 || closed {
		p.metrics.open(p.isOpen())
	}
	switch {
	case opened > 0 && f != nil:
		p.log.Warn("a provider is skipped after failures", "provider", p.Name, "for", opened.Round(time.Millisecond),
			"code", f.Code, "error", f.Text)
	case closed:
		p.log.Info("a provider works again", "provider", p.Name)
	}
}

// isOpen tells whether the provider is passed over at present, for somebody at least.
func (p *provider) isOpen() bool {
	for _, a := range p.own {
		if a.breaker.isOpen() {
			return true
		}
	}
	return p.breaker.isOpen()
}

// summary makes one failure of those of the providers, none of which has taken the message.
type summary struct {
	last    *send.Failure // of a provider that was asked
	tried   bool          // one that was asked may take it another time
	notYet  *send.Failure // of one that was not
	unknown *send.Failure // of one that may have sent it
	later   *send.Failure // of the one that may take it first
}

func (s *summary) add(f *send.Failure) {
	switch {
	case f.Provider == "":
		s.notYet = f
	case f.Outcome == send.Unknown:
		s.unknown = f
	}
	later := f.Outcome == send.Temporary || f.Outcome == send.Refused && f.Down
	if f.Provider != "" {
		s.last, s.tried = f, s.tried || later
	}
	if later && (s.later == nil || f.RetryAfter < s.later.RetryAfter) {
		s.later = f
	}
}

func (s *summary) failure() *send.Failure {
	switch {
	case s.unknown != nil: // whatever the others said: it may have been sent
		return s.unknown
	case s.last == nil, s.notYet != nil && !s.tried &&
		s.last.Outcome == send.Refused: // who might take it was not asked
		f := *s.notYet
		f.RetryAfter = s.later.RetryAfter
		return &f
	}
	f := *s.last
	if f.Outcome != send.Permanent && s.later != nil {
		f.Outcome, f.RetryAfter = send.Temporary, s.later.RetryAfter
	}
	return &f
}
