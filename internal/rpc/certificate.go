package rpc

import (
	"context"
	"crypto/x509"
	"net/http"
)

type certificateKey struct{}

// Certified puts the verified client certificate of a request's connection into its context, with its chain: the gate
// sees only the header.
func Certified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			r = r.WithContext(context.WithValue(r.Context(), certificateKey{}, r.TLS.PeerCertificates))
		}
		next.ServeHTTP(w, r)
	})
}

// certificateOf returns the client certificate and its chain; nil if there is none.
func certificateOf(ctx context.Context) []*x509.Certificate {
	chain, _ := ctx.Value(certificateKey{}).([]*x509.Certificate)
	return chain
}
