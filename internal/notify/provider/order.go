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
	// minRemaining is the time that must be left of an attempt to ask another provider.
	minRemaining = 3 * time.Second
	// maxWait limits the wait for the concurrency or rate limit of a provider.
	maxWait = 2 * time.Second
)

// Order is the sender of a channel. It asks the channel's providers one after the other.
type Order struct {
	all []*provider
}

// provider is a configured provider with its runtime state.
type provider struct {
	*Settings
	account
	own          map[int32]*account // tenants with overrides
	tenants      map[int32]bool     // nil: all
	slots        chan struct{}
	limit        *rate.Limiter // nil: no limit
	limiting     sync.Mutex
	perRecipient bool // each recipient is a server of its own: no circuit breaker
	metrics      *gauges
	log          *slog.Logger
}

// account is a sender with the settings of one or more tenants. Each has its own breaker, because a wrong password of
// one tenant must not affect others.
type account struct {
	sender  send.Sender
	breaker *breaker
}

// Send asks the providers of the message's tenant, beginning after the one that failed last, until one has accepted the
// message or may have sent it.
//
// A Failure without Provider means that no provider was asked: all are skipped or at their limits.
func (o *Order) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	list, first, f := o.list(m)
	if f != nil {
		return send.Receipt{}, f
	}
	var sum summary
	asked := first // the provider recorded in the database
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

// list returns the providers to ask, in order, and the first provider of the configuration.
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
			Text: "the provider that may have sent the message is no longer configured: an operator must find out " +
				"whether it was sent"}
	}
	return list, first, nil
}

func lacksTime(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(end) < minRemaining
}

// ask makes an attempt with one provider. A Failure without Provider means that no attempt was made.
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
	defer func() { p.updateBreaker(a, probe, v, f) }()
	free, f := p.acquire(ctx)
	if f != nil {
		return r, f
	}
	defer free()
	if f := p.record(ctx, m, asked); f != nil {
		return r, f
	}
	start := time.Now()
	if r, f = p.attempt(ctx, a, m); f != nil {
		f.Provider = p.Name
	}
	if v = verdictOf(ctx, f); p.perRecipient {
		v = nothing
	}
	p.metrics.tried(f, time.Since(start))
	return r, f
}

// record records the provider before it is asked, unless it is recorded already.
func (p *provider) record(ctx context.Context, m *send.Message, asked **provider) *send.Failure {
	if *asked == p || m.MarkProvider == nil || m.Park {
		return nil
	}
	if err := m.MarkProvider(ctx, p.Name); err != nil {
		return &send.Failure{Outcome: send.Temporary, Code: "turn",
			Text: "the provider to be tried could not be recorded", RetryAfter: time.Second}
	}
	*asked = p
	return nil
}

// attempt calls the sender. A panic counts as an unknown outcome.
func (p *provider) attempt(ctx context.Context, a *account, m *send.Message) (r send.Receipt, f *send.Failure) {
	defer func() {
		if cause := recover(); cause != nil {
			if _, ok := cause.(runtime.Error); !ok {
				cause = fmt.Sprintf("%T", cause) // the panic value may contain the message
			}
			p.log.Error("a sender panicked", "provider", p.Name, "cause", cause, "stack", string(debug.Stack()))
			f = &send.Failure{Outcome: send.Unknown, Code: "panic", Text: "the sender panicked: see the log"}
		}
	}()
	within, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	r, err := a.sender.Send(within, m)
	if err != nil {
		failed := *send.Failed(err) // the Sender may return a shared Failure
		return send.Receipt{}, &failed
	}
	return r, nil
}

// acquire waits for the concurrency and rate limits. free releases the slot.
func (p *provider) acquire(ctx context.Context) (free func(), f *send.Failure) {
	within, cancel := context.WithTimeout(ctx, maxWait)
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
	turn, wait, ok := p.reserveRate(within)
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

// reserveRate reserves the next place in the rate limit, unless that comes after the deadline. The mutex makes the
// reservation and its cancellation one step: without it rate.Limiter miscounts concurrent cancellations, and allows up
// to twice the rate.
func (p *provider) reserveRate(ctx context.Context) (turn *rate.Reservation, wait time.Duration, ok bool) {
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

// verdictOf returns what a failure says about the provider's health.
func verdictOf(ctx context.Context, f *send.Failure) verdict {
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

// updateBreaker updates the breaker, and logs when it opens or closes.
func (p *provider) updateBreaker(a *account, probe bool, v verdict, f *send.Failure) {
	opened, closed := a.breaker.record(probe, v)
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

// isOpen reports whether the breaker is open for any account.
func (p *provider) isOpen() bool {
	for _, a := range p.own {
		if a.breaker.isOpen() {
			return true
		}
	}
	return p.breaker.isOpen()
}

// summary combines the failures of several providers into one.
type summary struct {
	last    *send.Failure // of the last provider that was asked
	tried   bool          // a provider that was asked may accept the message later
	notYet  *send.Failure // of a provider that was not asked
	unknown *send.Failure // of a provider that may have sent the message
	later   *send.Failure // the one with the shortest wait
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
	case s.unknown != nil: // whatever the others returned, the message may have been sent
		return s.unknown
	case s.last == nil, s.notYet != nil && !s.tried &&
		s.last.Outcome == send.Refused: // the provider that may accept the message was not asked
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
