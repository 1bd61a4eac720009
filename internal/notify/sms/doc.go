// Package sms sends text messages by HTTP: through Twilio, Aliyun (Dysmsapi), Tencent Cloud, and any other provider
// whose request can be described in the configuration. It owns no tables.
//
// Promises: one call makes at most one request to the provider. Failures are classified by the provider's own error
// codes, and anything ambiguous is Unknown. None of these providers deduplicates, except a generic one with a
// configured key header. Stored error texts contain neither the number nor the text.
package sms

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// client returns the HTTP client for a provider.
func client(roots *tls.Config) *httpsend.Client {
	return httpsend.New(httpsend.Settings{TLS: roots, Proxy: http.ProxyFromEnvironment})
}

// base parses the URL of a provider. Plain HTTP is allowed only to this machine, or if plain is set.
func base(text string, plain bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
		// omit the input: it may contain a password
		return nil, errors.New("the URL is invalid, or has a user or a fragment")
	case u.Scheme == "https", u.Scheme == "http" && (plain || settings.Loopback(u.Hostname())):
		return u, nil
	}
	return nil, errors.New("the URL must begin with https://: without TLS the password and the messages could " +
		"be read on their way")
}

// require returns an error for the first empty setting of name, value pairs.
func require(settings ...string) error {
	for i := 0; i < len(settings); i += 2 {
		if strings.TrimSpace(settings[i+1]) == "" {
			return fmt.Errorf("%s is missing", settings[i])
		}
	}
	return nil
}

func failure(outcome send.Outcome, code, text string) *send.Failure {
	return &send.Failure{Outcome: outcome, Code: httpsend.Code(code), Text: text}
}
