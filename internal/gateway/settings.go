package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// entry is the part of the settings of a gateway that every kind has. All other settings are options of the kind.
type entry struct {
	Name   string `json:"name"` // default: the kind
	Kind   string `json:"kind"`
	Tenant string `json:"tenant"`
	// URL replaces the provider's base URL, for sandboxes and simulators.
	URL string `json:"url"`
	// NotifyURL is the public base URL of this server, such as https://pay.shop.example.
	NotifyURL string            `json:"notify_url"`
	Timeout   settings.Duration `json:"timeout"` // of a call; default 10 s
	// Currencies are the currencies that the gateway takes, each with its asset. Empty: every currency, under its own
	// code.
	Currencies map[string]string `json:"currencies"`
}

var entryFields = []string{"name", "kind", "tenant", "url", "notify_url", "timeout", "currencies"}

const (
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Minute
	// maxAnswer fits a list of 100 refunds.
	maxAnswer = 1 << 20
)

// Options are the settings of a gateway's kind.
type Options map[string]any

// Decode decodes options into a struct with json tags, with references to variables and files resolved. Unknown fields
// are errors.
func (o Options) Decode(into any) error { return settings.Decode(o, into) }

// Dialects are all dialects, by the name of their kind.
type Dialects map[string]Dialect

// File is a settings file.
type File struct {
	name     string
	entries  []*configuredEntry
	dialects Dialects
}

type configuredEntry struct {
	entry
	options Options
	line    int
}

// ReadFile reads a settings file in YAML, which includes JSON. It validates everything that needs no database.
func ReadFile(name string, dialects Dialects) (*File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var top map[string][]yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&top); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, withoutValues(err))
	}
	for field := range top {
		if field != "gateways" {
			return nil, fmt.Errorf("%s: unknown setting %q: the file has one list, gateways", name, field)
		}
	}
	f, names := &File{name: name, dialects: dialects}, map[string]bool{}
	for i := range top["gateways"] {
		e, err := f.read(&top["gateways"][i])
		if err == nil && names[e.Name] {
			err = fmt.Errorf("name: two gateways have the name %s", e.Name)
		}
		if err == nil {
			_, err = f.build(e)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: gateways[%d], line %d: %w", name, i, top["gateways"][i].Line, err)
		}
		names[e.Name] = true
		f.entries = append(f.entries, e)
	}
	if len(f.entries) == 0 {
		return nil, fmt.Errorf("%s: there are no gateways", name)
	}
	return f, nil
}

// withoutValues returns an error of package yaml without text of the file, which may be a secret.
func withoutValues(err error) error {
	text := err.Error()
	if key := regexp.MustCompile(`line \d+: mapping key "[A-Za-z0-9_]+" already defined at line \d+`); key.MatchString(
		text) {
		return errors.New(key.FindString(text))
	}
	if line := regexp.MustCompile(`line \d+`).FindString(text); line != "" {
		return fmt.Errorf("%s: is not valid YAML here, or not a list of gateways", line)
	}
	return errors.New("is not valid YAML")
}

func (f *File) read(node *yaml.Node) (*configuredEntry, error) {
	all := map[string]any{}
	if err := node.Decode(&all); err != nil {
		return nil, withoutValues(err)
	}
	own, options := map[string]any{}, Options{}
	for field, value := range all {
		if slices.Contains(entryFields, field) {
			own[field] = value
		} else {
			options[field] = value
		}
	}
	e := &configuredEntry{options: options, line: node.Line}
	if err := settings.Decode(own, &e.entry); err != nil {
		return nil, err
	}
	if _, ok := f.dialects[e.Kind]; !ok {
		return nil, fmt.Errorf("kind: must be one of %s", strings.Join(slices.Sorted(maps.Keys(f.dialects)), ", "))
	}
	if e.Name == "" {
		e.Name = e.Kind
	}
	if e.Timeout == 0 {
		e.Timeout = settings.Duration(defaultTimeout)
	}
	switch {
	case !gatewayName.MatchString(e.Name):
		return nil, errors.New("name: must be 1 to 32 lower-case letters, digits, dots, - and _, " +
			"and begin with a letter or digit")
	case e.Tenant == "":
		return nil, errors.New("tenant: is missing; a gateway belongs to one tenant")
	case e.Timeout.Value() < time.Second || e.Timeout.Value() > maxTimeout:
		return nil, fmt.Errorf("timeout: must be 1s to %v", maxTimeout)
	case e.NotifyURL == "":
		return nil, errors.New("notify_url: is missing; set the public base URL of this server")
	}
	for field, text := range map[string]*string{"url": &e.URL, "notify_url": &e.NotifyURL} {
		if *text != "" {
			if err := CheckURL(field, *text); err != nil {
				return nil, err
			}
			*text = strings.TrimRight(*text, "/")
		}
	}
	return e, e.checkCurrencies()
}

var (
	gatewayName  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)
	currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)
	assetCode    = regexp.MustCompile(`^\S{1,32}$`)
)

func (e *entry) checkCurrencies() error {
	by := map[string]string{}
	for currency, asset := range e.Currencies {
		switch {
		case !currencyCode.MatchString(currency):
			return errors.New("currencies: names must be ISO 4217 codes, such as CNY")
		case !assetCode.MatchString(asset):
			return fmt.Errorf("currencies: %s: must be the code of an asset", currency)
		case by[asset] != "":
			return fmt.Errorf("currencies: %s is the asset of two currencies", asset)
		}
		by[asset] = currency
	}
	return nil
}

// CheckURL checks a base URL: https, or http to this machine, without user, query or fragment.
func CheckURL(field, text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" || u.ForceQuery:
		return fmt.Errorf("%s: must be a URL without user, query and fragment", field) // omit the input
	case u.Scheme == "https", u.Scheme == "http" && settings.Loopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("%s: must begin with https://, except on this machine", field)
}

// build builds the gateway of an entry. Nothing is opened until its first call.
func (f *File) build(e *configuredEntry) (*Configured, error) {
	c := &Configured{Dialect: f.dialects[e.Kind], Name: e.Name, Kind: e.Kind, TenantName: e.Tenant,
		Timeout: e.Timeout.Value(),
		client: httpsend.New(httpsend.Settings{Timeout: e.Timeout.Value(), MaxAnswer: maxAnswer,
			Proxy: http.ProxyFromEnvironment})}
	if len(e.Currencies) > 0 {
		c.assets, c.currencies = e.Currencies, map[string]string{}
		for currency, asset := range e.Currencies {
			c.currencies[asset] = currency
		}
	}
	g, err := c.New(&Account{Name: e.Name, URL: e.URL, NotifyURL: e.NotifyURL + Path + e.Name, Client: c.client,
		Options: e.options})
	c.Gateway = g
	return c, err
}

// Env has the dependencies of gateways.
type Env struct {
	// Tenant returns the number of a tenant.
	Tenant     func(name string) (int32, error)
	Registerer prometheus.Registerer // nil: no metrics
}

// Set has the gateways of a file.
type Set struct {
	ByName  map[string]*Configured
	metrics *metrics
}

// Build builds the gateways without connecting to any provider.
func (f *File) Build(env *Env) (*Set, error) {
	s := &Set{ByName: map[string]*Configured{}, metrics: newMetrics(env.Registerer)}
	for i, e := range f.entries {
		c, err := f.build(e)
		if err == nil {
			if c.Tenant, err = env.Tenant(e.Tenant); err != nil {
				err = fmt.Errorf("tenant %s: %w", e.Tenant, err)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: gateways[%d], line %d: %w", f.name, i, e.line, err)
		}
		c.Gateway = &checked{Gateway: c.Gateway, metrics: s.metrics, name: c.Name}
		s.metrics.export(c.Name)
		s.ByName[c.Name] = c
	}
	return s, nil
}

// Close closes idle connections.
func (s *Set) Close() {
	for _, c := range s.ByName {
		c.client.CloseIdle()
	}
}
