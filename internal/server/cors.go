package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"

	"github.com/ledgerd/ledgerd/internal/rpc"
)

// preflightLife is how long a browser may cache a preflight response: Chromium's maximum.
const preflightLife = 2 * time.Hour

// crossOrigin allows pages of the origins to call, and to read our response headers. Cookies are not allowed: the API
// key identifies the caller.
func crossOrigin(origins []string, next http.Handler) http.Handler {
	if len(origins) == 0 {
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: connectcors.AllowedMethods(),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "Authorization", rpc.KeyHeader, rpc.TokenHeader,
			rpc.ClaimHeader, rpc.RequestIDHeader, "traceparent"),
		ExposedHeaders: append(connectcors.ExposedHeaders(), rpc.ReplayedHeader, rpc.NextTokenHeader,
			rpc.ClaimCountHeader, rpc.RequestIDHeader),
		MaxAge: int(preflightLife / time.Second),
	}).Handler(next)
}

// checkOrigins refuses values that are not origins as browsers send them. It refuses "*" on a server without API keys,
// because any page could call it, and patterns such as http://*, which would allow nearly as much.
func checkOrigins(origins []string, open bool) error {
	for _, o := range origins {
		if o == "*" && open {
			return fmt.Errorf("origin *: not allowed without API keys, because any web page could call the server")
		}
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
			strings.Contains(o, "*") || u.Scheme+"://"+u.Host != o) {
			return fmt.Errorf("origin %q: must be an origin as browsers send it, such as https://shop.example.com", o)
		}
	}
	return nil
}
