package gateway

import (
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// Account is the input of Dialect.New: the settings of one gateway.
type Account struct {
	Name      string
	URL       string // base URL that replaces the provider's; empty: the provider's own
	NotifyURL string // where the provider sends callbacks: the public base URL and /pay/callbacks/NAME
	Client    *httpsend.Client
	Options   Options
}

// Configured is a gateway of the settings file, built.
type Configured struct {
	Gateway
	Dialect
	Name   string // in paths, metrics and tables
	Kind   string // the name of the dialect
	Tenant int32
	// Timeout of a request to it.
	Timeout time.Duration
	// TenantName is the tenant as in the file.
	TenantName string

	assets     map[string]string // by currency; nil: equal codes
	currencies map[string]string // by asset
	client     *httpsend.Client
}

// Asset returns the asset in which a currency is booked; false: the file does not list the currency.
func (c *Configured) Asset(currency string) (string, bool) {
	if c.assets == nil {
		return currency, currency != ""
	}
	asset, ok := c.assets[currency]
	return asset, ok
}

// Currency returns the currency of an asset; false: the gateway does not take it.
func (c *Configured) Currency(asset string) (string, bool) {
	if c.assets == nil {
		return asset, asset != ""
	}
	currency, ok := c.currencies[asset]
	return currency, ok
}

// Raw is a callback as it arrived, for the archive. Header lacks credentials that belong to others, such as cookies.
type Raw struct {
	Header http.Header
	Body   []byte
	At     time.Time // of arrival
}
