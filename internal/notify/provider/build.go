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

	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Env has the dependencies of providers.
type Env struct {
	// Tenant returns the number of a tenant. If nil, the file may name no tenants.
	Tenant     func(name string) (int32, error)
	Registerer prometheus.Registerer // nil: no metrics
	Log        *slog.Logger
	// Webhooks sends webhooks, even if the file does not mention them. May be nil.
	Webhooks send.Sender
}

// Senders has one sender for each channel with providers.
type Senders struct {
	ByChannel map[send.Channel]send.Sender
	// Concurrency is the sum of the concurrency limits of a channel's providers.
	Concurrency map[send.Channel]int
	// Reports reads delivery reports, by provider name. With overrides, the first account that authenticates the
	// request reads it.
	Reports map[string]report.Source
	closers []io.Closer
}

// Close closes connections and files of the senders.
func (s *Senders) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Build builds the senders without connecting to any provider. On a nil file it builds only the sender of webhooks.
func (f *File) Build(e *Env) (_ *Senders, err error) {
	out := &Senders{ByChannel: map[send.Channel]send.Sender{}, Concurrency: map[send.Channel]int{},
		Reports: map[string]report.Source{}}
	defer func() {
		if err != nil {
			_ = out.Close()
		}
	}()
	metrics := newMetrics(e.Registerer)
	all, file := map[send.Channel][]*Settings{}, ""
	if f != nil {
		maps.Copy(all, f.channels)
		file = f.name
	}
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
				return nil, fmt.Errorf("%s: %s[%d], line %d: %w", file, channel, i, s.line, err)
			}
			p.metrics = metrics.of(s.Name, channel)
			order.all = append(order.all, p)
			out.Concurrency[channel] += s.Concurrency
		}
		out.ByChannel[channel] = order
	}
	return out, nil
}

// Development returns settings that write the messages of all channels to a file, or to standard error if path is
// empty.
func Development(path string) *File {
	f := &File{name: "development", channels: map[send.Channel][]*Settings{}}
	for _, channel := range channels {
		f.channels[channel] = []*Settings{{Kind: "file", Name: "file-" + string(channel),
			Concurrency: DefaultConcurrency, Timeout: DefaultTimeout,
			Options: map[string]any{"path": path}, channel: channel}}
	}
	return f
}

// WithDefaults returns f with the channels that only other has, except webhooks, which need no file.
func (f *File) WithDefaults(other *File) *File {
	if other == nil {
		return f
	}
	all := &File{name: f.name, channels: maps.Clone(other.channels)}
	delete(all.channels, send.Webhook)
	maps.Copy(all.channels, f.channels)
	return all
}

// build builds a provider, and adds its closers and report sources to out.
func (s *Settings) build(e *Env, out *Senders) (*provider, error) {
	numbers := map[string]int32{}
	for _, name := range s.tenantNames() {
		if e.Tenant == nil {
			return nil, errors.New("tenants: cannot be used here, without the server's database")
		}
		n, err := e.Tenant(name)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", name, err)
		}
		numbers[name] = n
	}
	k := kinds[s.Kind]
	p := &provider{Settings: s, log: e.Log, slots: make(chan struct{}, s.Concurrency), perRecipient: k.perRecipient,
		own: map[int32]*account{}}
	if s.Rate > 0 {
		p.limit = rate.NewLimiter(rate.Limit(s.Rate), max(1, int(s.Rate/10)))
	}
	if len(s.Tenants) > 0 {
		p.tenants = map[int32]bool{}
		for _, name := range s.Tenants {
			p.tenants[numbers[name]] = true
		}
	}
	// Tenants that override only the identity share the sender and its connections.
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
		if r, ok := sender.(report.Source); ok {
			out.Reports[s.Name] = report.Either(out.Reports[s.Name], r)
		}
		if name == "" {
			p.account = account{sender, newBreaker()}
			continue
		}
		p.own[numbers[name]] = &account{sender, newBreaker()}
	}
	return p, nil
}
