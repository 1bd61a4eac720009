package once_test

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/client/once"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

// userOf stands for a service's authentication: a session, a token, a certificate.
func userOf(context.Context, http.Header) string { return "user:1001" }

func ExampleMiddleware_Handler() {
	orders := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempt, ok := once.AttemptOf(r.Context()); ok {
			_ = attempt.Fence // pass it on to the storage
		}
		w.WriteHeader(http.StatusCreated)
	})

	c := client.New("https://ledger.example.com", client.WithAPIKey("key"))
	middleware := once.New(c, "shop", userOf, once.WithRequiredKey())
	http.Handle("POST /orders", middleware.Handler(orders))
}

func ExampleMiddleware_Interceptor() {
	var service ledgerv1connect.LedgerServiceHandler // any Connect service

	c := client.New("https://ledger.example.com", client.WithAPIKey("key"))
	middleware := once.New(c, "shop", userOf)
	http.Handle(ledgerv1connect.NewLedgerServiceHandler(service, connect.WithInterceptors(middleware.Interceptor())))
}
