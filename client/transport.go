package client

import (
	"net"
	"net/http"
	"time"
)

const (
	idleConnections = 512
	// idleTime is below the server's two minutes, so that it is not the server which closes a
	// connection just as a call takes it.
	idleTime    = 90 * time.Second
	dialTimeout = 5 * time.Second
)

// newHTTPClient makes the default HTTP client. HTTP/1.1 is left for clear text unless gRPC needs more:
// a connection each costs concurrent calls less than the frames of HTTP/2 do.
func newHTTPClient(grpc bool) *http.Client {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true, // Connect asks for what it can read
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP2(true)
	if grpc {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirected POST would lose its body, or its key
	}}
}
