package provider

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Env is what providers are built with.
type Env struct {
	// Tenant finds the number of a tenant by its name. nil: the file may name none.
	Tenant     func(name string) (int32, error)
	Registerer prometheus.Registerer // nil: no metrics
	Log        *slog.Logger
	// Webhooks is what the sender of webhooks is made with, but for what the file says. nil: there are none. Not nil: there
	// are, whether the file mentions them or not.
	Webhooks *webhook.Settings
}

// Senders are all that was built: one sender for each channel that has providers.
type Senders struct {
	ByChannel map[send.Channel]send.Sender
	closers   []io.Closer
}

// Close closes what senders keep open.
func (s *Senders) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Build makes the senders. It connects to nobody.
func (f *File) Build(e *Env) (_ *Senders, err error) {
	out := &Senders{ByChannel: map[send.Channel]send.Sender{}}
	defer func() {
		if err != nil {
			_ = out.Close()
		}
	}()
	metrics := newMetrics(e.Registerer)
	all := maps.Clone(f.channels)
	if all[send.Webhook] == nil && e.Webhooks != nil {
		s := &Settings{Kind: "webhook", channel: send.Webhook}
		if err := s.complete(); err != nil {
			return nil, err
		}
		all[send.Webhook] = []*Settings{s}
	}
	for _, channel := range slices.Sorted(maps.Keys(all)) {
		order := &Order{}
		for i, s := range all[channel] {
			p, err := s.build(e, out)
			if err != nil {
				return nil, fmt.Errorf("%s: %s[%d], line %d: %w", f.name, channel, i, s.line, err)
			}
			p.metrics = metrics.of(s.Name, channel)
			order.all = append(order.all, p)
		}
		out.ByChannel[channel] = order
	}
	return out, nil
}

// Development writes the messages of all channels to a file, or to standard error if it has no name.
func Development(path string) (*Senders, error) {
	f := &File{name: "development", channels: map[send.Channel][]*Settings{}}
	for _, channel := range channels {
		s := &Settings{Kind: "file", Name: "file-" + string(channel), Options: map[string]any{"path": path}, channel: channel}
		if err := s.complete(); err != nil {
			return nil, err
		}
		f.channels[channel] = []*Settings{s}
	}
	return f.Build(&Env{Log: slog.New(slog.DiscardHandler)})
}

// build makes a provider, and notes in out what is to be closed.
func (s *Settings) build(e *Env, out *Senders) (*provider, error) {
	numbers := map[string]int32{}
	for _, name := range s.tenantNames() {
		if e.Tenant == nil {
			return nil, errors.New("tenants: cannot be told apart here")
		}
		n, err := e.Tenant(name)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", name, err)
		}
		numbers[name] = n
	}
	k := kinds[s.Kind]
	p := &provider{Settings: s, log: e.Log, slots: make(chan struct{}, s.Concurrency), breaker: newBreaker(), many: k.many}
	if s.Rate > 0 {
		p.limit = rate.NewLimiter(rate.Limit(s.Rate), max(1, int(s.Rate/10)))
	}
	if len(s.Tenants) > 0 {
		p.tenants = map[int32]bool{}
		for _, name := range s.Tenants {
			p.tenants[numbers[name]] = true
		}
	}
	// What differs in its identity alone shares what is open.
	variants, shared := s.variants(), map[int32]map[string]any{}
	for name, change := range s.Overrides {
		onlyIdentity := len(k.identity) > 0
		for field := range change {
			onlyIdentity = onlyIdentity && slices.Contains(k.identity, field)
		}
		if onlyIdentity {
			shared[numbers[name]] = variants[name]
			delete(variants, name)
		}
	}
	for name, options := range variants {
		others := map[int32]map[string]any(nil)
		if name == "" {
			others = shared
		}
		sender, err := k.build(e, s, options, others)
		if err != nil {
			return nil, err
		}
		if c, ok := sender.(io.Closer); ok {
			out.closers = append(out.closers, c)
		}
		if name == "" {
			p.sender = sender
			continue
		}
		if p.own == nil {
			p.own = map[int32]send.Sender{}
		}
		p.own[numbers[name]] = sender
	}
	return p, nil
}
