package provider

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// Settings are the settings of one provider, as in the file.
type Settings struct {
	Kind string `yaml:"kind"`
	Name string `yaml:"name"` // in events, logs and metrics; default: the kind
	// Tenants that use the provider; empty: all.
	Tenants []string `yaml:"tenants"`
	// Overrides are options by tenant, such as the sender address.
	Overrides   map[string]map[string]any `yaml:"overrides"`
	Concurrency int                       `yaml:"concurrency"` // concurrent messages; default 10
	Rate        float64                   `yaml:"rate"`        // messages per second; 0: no limit
	Timeout     time.Duration             `yaml:"timeout"`     // of an attempt; default 15 s
	// ResendUnknown allows other providers to send a message after an unknown outcome of this one, unless the message
	// forbids sending twice.
	ResendUnknown bool `yaml:"resend_unknown"`
	// Options are the settings of the kind.
	Options map[string]any `yaml:",inline"`

	channel send.Channel
	line    int
}

// Limits and defaults.
const (
	DefaultConcurrency = 10
	DefaultTimeout     = 15 * time.Second
	maxTimeout         = 20 * time.Second // the timeout of a whole attempt
)

// File is a settings file: the providers of each channel, in order.
type File struct {
	name     string
	channels map[send.Channel][]*Settings
}

// ReadFile reads a settings file in YAML, which includes JSON. It validates everything that needs no database.
func ReadFile(name string) (*File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	nodes := map[send.Channel][]yaml.Node{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := &File{name: name, channels: map[send.Channel][]*Settings{}}
	names := map[string]bool{}
	for _, channel := range slices.Sorted(maps.Keys(nodes)) {
		if !slices.Contains(channels, channel) {
			return nil, fmt.Errorf("%s: %s: is not a channel; use email, sms, push or webhook", name, channel)
		}
		for i := range nodes[channel] {
			node := &nodes[channel][i]
			s := &Settings{channel: channel, line: node.Line}
			err := node.Decode(s)
			if err == nil {
				err = s.complete()
			}
			if err == nil && names[s.Name] {
				err = fmt.Errorf("name: two providers have the name %s", s.Name)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s[%d], line %d: %w", name, channel, i, node.Line, err)
			}
			if kinds[s.Kind].perRecipient && i > 0 {
				return nil, fmt.Errorf("%s: %s[%d], line %d: %s must be the only provider of its channel", name,
					channel, i, node.Line, s.Kind)
			}
			names[s.Name] = true
			f.channels[channel] = append(f.channels[channel], s)
		}
	}
	if len(f.channels) == 0 {
		return nil, fmt.Errorf("%s: there are no providers", name)
	}
	return f, nil
}

var channels = []send.Channel{send.Email, send.SMS, send.Push, send.Webhook}

// complete validates the settings and sets defaults.
func (s *Settings) complete() error {
	k, ok := kinds[s.Kind]
	if !ok {
		return fmt.Errorf("kind: must be one of %s, not %q", strings.Join(slices.Sorted(maps.Keys(kinds)), ", "),
			s.Kind)
	}
	if !slices.Contains(k.channels, s.channel) {
		return fmt.Errorf("kind: %s does not support channel %s", s.Kind, s.channel)
	}
	if s.Name == "" {
		s.Name = s.Kind
	}
	if s.Concurrency == 0 {
		s.Concurrency = cmp.Or(k.concurrency, DefaultConcurrency)
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	switch {
	case !settings.Name.MatchString(s.Name):
		return fmt.Errorf("name: must be 1 to 64 letters, digits, dots, - and _, not %q", s.Name)
	case s.Concurrency < 1 || s.Concurrency > 1000:
		return errors.New("concurrency: must be 1 to 1000")
	case !(s.Rate >= 0) || s.Rate > 1e6 || s.Rate > 0 && s.Rate < 0.001:
		return errors.New("rate: must be 0.001 to 1000000 messages a second, or 0 for no limit")
	case s.Timeout < time.Second || s.Timeout > maxTimeout:
		return fmt.Errorf("timeout: must be 1s to %v", maxTimeout)
	case slices.Contains(s.Tenants, ""):
		return errors.New("tenants: names must not be empty")
	}
	if k.perRecipient && len(s.Tenants)+len(s.Overrides) > 0 {
		return fmt.Errorf("tenants, overrides: not supported by kind %s", s.Kind)
	}
	for tenant := range s.Overrides {
		if len(s.Tenants) > 0 && !slices.Contains(s.Tenants, tenant) {
			return fmt.Errorf("overrides: %s is not listed in tenants", tenant)
		}
	}
	if k.check == nil {
		return nil
	}
	for _, options := range s.variants() {
		if err := k.check(s, options); err != nil {
			return err
		}
	}
	return nil
}

// variants returns the options by tenant with overrides, and those of all other tenants under "".
func (s *Settings) variants() map[string]map[string]any {
	all := map[string]map[string]any{"": s.Options}
	for tenant, change := range s.Overrides {
		options := maps.Clone(s.Options)
		if options == nil {
			options = map[string]any{}
		}
		maps.Copy(options, change)
		all[tenant] = options
	}
	return all
}

// tenantNames returns all tenants that the settings name.
func (s *Settings) tenantNames() []string {
	return slices.Concat(s.Tenants, slices.Collect(maps.Keys(s.Overrides)))
}
