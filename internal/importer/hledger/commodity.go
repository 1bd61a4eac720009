package hledger

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
)

// symbols are unambiguous currency signs, which the command line can override.
var symbols = map[string]string{"$": "USD", "€": "EUR", "£": "GBP", "₿": "BTC", "₹": "INR", "₩": "KRW", "₽": "RUB",
	"zł": "PLN"}

// ambiguous signs denote several currencies.
var ambiguous = map[string]string{"¥": "JPY or CNY", "￥": "JPY or CNY", "₨": "one of several rupees",
	"﷼": "one of several rials"}

var assetCode = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,31}$`)

// commodities maps hledger's commodities to asset codes and determines each asset's scale.
type commodities struct {
	named  map[string]string // from the command line
	assets map[string]*assetOf
	taken  map[string]string // commodity by asset
}

type assetOf struct {
	code  string
	scale uint8
}

// ParseCommodities parses flags such as "$=USD": the commodity and the asset code.
func ParseCommodities(flags []string) (map[string]string, error) {
	named := map[string]string{}
	for _, f := range flags {
		i := strings.LastIndexByte(f, '=')
		if i < 0 || !assetCode.MatchString(f[i+1:]) {
			return nil, fmt.Errorf("--commodity %q: must be a commodity and an asset code, such as '$=USD'", f)
		}
		if before, ok := named[f[:i]]; ok && before != f[i+1:] {
			return nil, fmt.Errorf("--commodity: %q cannot be %s and %s", f[:i], before, f[i+1:])
		}
		named[f[:i]] = f[i+1:]
	}
	return named, nil
}

func newCommodities(named map[string]string) *commodities {
	return &commodities{named: named, assets: map[string]*assetOf{}, taken: map[string]string{}}
}

// asset returns the asset of a commodity. It refuses ambiguous commodities.
func (c *commodities) asset(commodity string) (*assetOf, error) {
	if a := c.assets[commodity]; a != nil {
		return a, nil
	}
	code, named := c.named[commodity]
	switch {
	case named:
	case commodity == "":
		return nil, fmt.Errorf("an amount has no commodity: name its asset with --commodity '=CODE'")
	case ambiguous[commodity] != "":
		return nil, fmt.Errorf("%s may mean %s: choose one with --commodity '%s=CODE'", commodity, ambiguous[commodity],
			commodity)
	case symbols[commodity] != "":
		code = symbols[commodity]
	case assetCode.MatchString(commodity):
		code = commodity
	default:
		return nil, fmt.Errorf("the commodity %q cannot be an asset code (up to 32 letters, digits and ._/-): "+
			"give it one with --commodity '%s=CODE'",
			commodity, commodity)
	}
	if other, taken := c.taken[code]; taken {
		_, otherNamed := c.named[other]
		if !named || !otherNamed {
			return nil, fmt.Errorf("%q and %q would both be %s: if they are the same, confirm it with --commodity "+
				"'%s=%s' --commodity '%s=%s'",
				other, commodity, code, other, code, commodity, code)
		}
	}
	c.taken[code] = commodity
	a := &assetOf{code: code}
	for _, other := range c.assets {
		if other.code == code {
			a = other
		}
	}
	c.assets[commodity] = a
	return a, nil
}

// see raises the asset's scale to a number's decimals: as written, or as needed if hledger computed more than
// an asset can have.
func (a *assetOf) see(q quantity, d amount.Decimal) {
	places := d.Scale
	if q.Places <= amount.MaxScale {
		places = max(places, uint8(q.Places))
	}
	a.scale = max(a.scale, places)
}

// list returns all assets, by code.
func (c *commodities) list() []*ledgerv1.Asset {
	scales := map[string]uint8{}
	for _, a := range c.assets {
		scales[a.code] = a.scale
	}
	var all []*ledgerv1.Asset
	for code, scale := range maps.All(scales) {
		all = append(all, &ledgerv1.Asset{Code: code, Scale: int32(scale)})
	}
	slices.SortFunc(all, func(a, b *ledgerv1.Asset) int { return cmp.Compare(a.GetCode(), b.GetCode()) })
	return all
}
