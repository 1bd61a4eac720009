package client

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
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
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirected POST would lose its body or its key
	}}
}
