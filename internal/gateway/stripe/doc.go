// Package stripe speaks the API of Stripe: PaymentIntents that the payer's client confirms, refunds, and events.
//
// Promises: an event counts only if one of the endpoint's secrets signed it within 5 minutes. Creation carries our
// number as idempotency key and as metadata; a payment without that metadata belongs to another system.
package stripe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
)

// Dialect is the kind stripe.
var Dialect = gateway.Dialect{PayTypes: payTypes, Check: check, New: build}

var payTypes = []gateway.PayType{{Name: "intent"}}

// options are the settings of the kind.
type options struct {
	// APIKeys are secret or restricted keys. Only the first is used; others may remain in the file during a rotation.
	APIKeys []string `json:"api_keys"`
	// WebhookSecrets are secrets of the endpoint, whsec_…; any verifies.
	WebhookSecrets []string `json:"webhook_secrets"`
	// PublishableKey is handed to the payer's client.
	PublishableKey string `json:"publishable_key"`
	// Account is a connected account, acct_…, on whose behalf calls are made; empty: our own.
	Account string `json:"account"`
	// Mode is live or test. Empty: as the API key says.
	Mode string `json:"mode"`
}

type account struct {
	*gateway.Account
	key, publishable, connected string
	secrets                     []string
	live                        bool
}

func build(a *gateway.Account) (gateway.Gateway, error) {
	var o options
	if err := a.Options.Decode(&o); err != nil {
		return nil, err
	}
	for i, s := range o.WebhookSecrets {
		if !strings.HasPrefix(s, "whsec_") || len(s) < 16 {
			return nil, fmt.Errorf("webhook_secrets[%d]: must be the signing secret of the endpoint, whsec_…", i)
		}
	}
	if o.Mode == "" && len(o.APIKeys) > 0 {
		if _, after, ok := strings.Cut(o.APIKeys[0], "_"); ok {
			o.Mode, _, _ = strings.Cut(after, "_")
		}
	}
	switch {
	case len(o.APIKeys) == 0 || o.APIKeys[0] == "":
		return nil, errors.New("api_keys: is missing")
	case slices.ContainsFunc(o.APIKeys, func(k string) bool { return strings.HasPrefix(k, "pk_") }):
		return nil, errors.New("api_keys: has a publishable key; use secret or restricted keys")
	case len(o.WebhookSecrets) == 0:
		return nil, errors.New("webhook_secrets: is missing")
	case o.Mode != "live" && o.Mode != "test":
		return nil, errors.New("mode: must be live or test, unless the first API key names one")
	}
	g := &account{Account: a, key: o.APIKeys[0], publishable: o.PublishableKey, connected: o.Account,
		secrets: o.WebhookSecrets, live: o.Mode == "live"}
	if g.URL == "" {
		g.URL = "https://api.stripe.com"
	}
	return g, nil
}

// decimals of currencies in Stripe's API, where they differ from 2: https://docs.stripe.com/currencies. ISK has 2
// there, always 00. UGX is missing: the page lists it with 0 and with 2.
var decimals = map[string]uint8{"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "JPY": 0, "KMF": 0, "KRW": 0, "MGA": 0,
	"PYG": 0, "RWF": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "JOD": 3, "KWD": 3, "OMR": 3, "TND": 3}

// decimalsOf returns the decimals of a currency, by its upper-case code.
func decimalsOf(currency string) (uint8, bool) {
	if n, ok := decimals[currency]; ok {
		return n, true
	}
	return 2, len(currency) == 3 && currency != "UGX"
}

// whole are currencies without subunits that have 2 decimals in the API: https://docs.stripe.com/currencies.
var whole = map[string]bool{"ISK": true}

// minor returns an amount as Stripe takes it.
func minor(d amount.Decimal, currency string) (string, error) {
	n, ok := decimalsOf(currency)
	if !ok {
		return "", errors.New("currency: is not supported for Stripe")
	}
	text, err := gateway.Minor("amount", d, n)
	switch {
	case err != nil:
		return "", err
	case n == 3 && !strings.HasSuffix(text, "0"):
		return "", errors.New("amount: Stripe takes two decimals in this currency; the third must be 0")
	case whole[currency] && !strings.HasSuffix(text, "00"):
		return "", errors.New("amount: must be whole in this currency")
	}
	return text, nil
}

func check(p *gateway.Payment) error {
	if _, err := gateway.CheckPayType(p.PayType, payTypes); err != nil {
		return err
	}
	if err := gateway.CheckNumber("out_trade_no", p.OutTradeNo, "_-", 64); err != nil {
		return err
	}
	if _, err := minor(p.Amount, p.Currency); err != nil {
		return err
	}
	return gateway.CheckText("description", p.Description, 500)
}
