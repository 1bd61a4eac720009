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

// Env is what providers are built with.
type Env struct {
	// Tenant finds the number of a tenant by its name. nil: the file may name none.
	Tenant     func(name string) (int32, error)
	Registerer prometheus.Registerer // nil: no metrics
	Log        *slog.Logger
	// Webhooks sends webhooks, whether the file mentions them or not. nil: nobody does.
	Webhooks send.Sender
}

// Senders are all that was built: one sender for each channel that has providers.
type Senders struct {
	ByChannel map[send.Channel]send.Sender
	// Concurrency is how many messages of a channel its providers take at once, all together.
	Concurrency map[send.Channel]int
	// Reports reads what providers post, by their names: as the first of a provider's variants does that proves it.
	Reports map[string]report.Source
	closers []io.Closer
}

// Close closes what senders keep open.
func (s *Senders) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Build makes the senders. It connects to nobody. Of a file that is nil nobody is made but the sender of webhooks.
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

// Development is a file that has the messages of all channels written to another one, or to standard error if
// path is empty.
func Development(path string) *File {
	f := &File{name: "development", channels: map[send.Channel][]*Settings{}}
	for _, channel := range channels {
		f.channels[channel] = []*Settings{{Kind: "file", Name: "file-" + string(channel),
			Concurrency: DefaultConcurrency, Timeout: DefaultTimeout,
			Options: map[string]any{"path": path}, channel: channel}}
	}
	return f
}

// Else has the channels that the file does not name sent as another one has them; but webhooks need no file.
func (f *File) Else(other *File) *File {
	if other == nil {
		return f
	}
	all := &File{name: f.name, channels: maps.Clone(other.channels)}
	delete(all.channels, send.Webhook)
	maps.Copy(all.channels, f.channels)
	return all
}

// build makes a provider, and notes in out what is to be closed.
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
	p := &provider{Settings: s, log: e.Log, slots: make(chan struct{}, s.Concurrency), many: k.many,
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
