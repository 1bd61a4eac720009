// Package sms sends text messages by HTTP: Twilio, Aliyun (Dysmsapi), Tencent Cloud, and any other provider whose
// request can be written down in the configuration. It owns no tables.
//
// What it promises: one call is at most one request to the provider. A provider's refusal is told apart by its own
// error codes; what is not surely "not sent" is Unknown. None of these providers dedupes by itself, but for a generic
// one whose header for keys is configured. What is kept of a provider's words names neither the number nor the text.
package sms

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// client is what all providers are asked through.
func client(roots *tls.Config) *httpsend.Client {
	return httpsend.New(httpsend.Settings{TLS: roots, Proxy: http.ProxyFromEnvironment})
}

// base checks the address of a provider. In clear only to this machine, or where it is allowed.
func base(text string, plain bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
		// without what was given: a password perhaps
		return nil, errors.New("the URL is invalid, or has a user or a fragment")
	case u.Scheme == "https", u.Scheme == "http" && (plain || loopback(u.Hostname())):
		return u, nil
	}
	return nil, errors.New("the URL must begin with https://: without TLS the password and the messages could be read on their way")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// need tells the first setting that is empty: names and values in turn.
func need(settings ...string) error {
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
