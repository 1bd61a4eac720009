package client

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

const (
	idleConnections = 512
	// idleTime is below the server's two minutes, so that the server does not close a connection just as a call
	// uses it.
	idleTime    = 90 * time.Second
	dialTimeout = 5 * time.Second
)

// newHTTPClient makes the default HTTP client. It uses HTTP/1.1 unless TLS or gRPC requires HTTP/2: for
// concurrent calls, separate connections cost less than HTTP/2 framing.
func newHTTPClient(grpc bool, config *tls.Config) *http.Client {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true, // Connect negotiates compression itself
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP2(true)
	if grpc {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return &http.Client{Transport: t, CheckRedirect: RefuseRedirect}
}

// withoutRedirects returns a copy of an HTTP client that refuses redirects, unless it has a CheckRedirect of its own.
func withoutRedirects(h connect.HTTPClient) connect.HTTPClient {
	c, ok := h.(*http.Client)
	if !ok || c.CheckRedirect != nil {
		return h
	}
	refusing := *c
	refusing.CheckRedirect = RefuseRedirect
	return &refusing
}

// RefuseRedirect is the CheckRedirect of HTTP clients that call a ledgerd. A redirect could lose the body of a call, or
// send its API key to another server. The error has CodeFailedPrecondition, so it ends retries.
func RefuseRedirect(to *http.Request, _ []*http.Request) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
		"redirected to %s://%s: redirects are refused, because they would take the API key there; "+
			"use the server's address",
		to.URL.Scheme, to.URL.Host))
}
