// Package client is the Go client of ledgerd, a double-entry ledger service. Retries never move money twice.
//
//	c := client.New("https://ledger.example.com", client.WithAPIKey(key))
//	res, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
//		BizNo:    "order-1001",
//		Postings: []*ledgerv1.Posting{{From: "user:7", To: "shop", Asset: "CNY", Amount: "12.30"}},
//	})
//
// Client.Ledger is the generated client of LedgerService; the proto documents the calls. This package adds:
//
// # Keys
//
// Every changing call is sent with an Idempotency-Key, which the server records together with the call's effect. A
// repeated call with the same key gets the recorded answer and changes nothing. A call without a key gets a generated
// one, the same for all its attempts. A generated key protects against lost connections, but not against a crash of
// the caller, which loses the key. Work that may be repeated later (a queue message, a job, a form) needs a key that
// is stored with it: see WithKey and NewKey. The server forgets keys after 24 hours by default; the biz_no of a
// transfer is unique forever.
//
// # Retries
//
// A call is sent up to 3 times if the error allows the same key to run again (class system, or a conflict such as
// BUSY), or if the connection was lost. The waits are random, at most 100 ms, then 200 ms, doubling to 1 s. Refusals,
// bad requests and STALE_VERSION are returned immediately, because repeating them is the caller's decision. Retries
// end with the caller's deadline, so set one. WithRetry and WithAttemptTimeout change the numbers. Streams are not
// retried: continue WatchEntries from its cursor.
//
// # Errors
//
// Every error is an *Error with its Class, Reason, NextStep, whether the message may be shown to users (ShowToUser),
// and the Metadata of the error. Compare reasons:
//
//	if errors.Is(err, client.ReasonInsufficientFunds) { … }
//
// AsError returns the whole Error, connect.CodeOf the Connect code, and ItemError the error of a TransferBatch item.
// The outcome is unknown after an error of class system or without a class, and after the end of the caller's context:
// only a call with the same key, or the same biz_no, finds out.
//
// # Forms
//
// For a form that must be submitted once, issue a submit token when rendering the page
// (Client.Idempotency.IssueTokens), and spend it with the call of the submit: see WithSubmitToken. The second submit
// fails with ReasonTokenSpent, and Metadata has the first one's result.
//
// # Answers
//
// WithInfo returns the key, the request id, the number of attempts, whether the answer was replayed, and the next
// submit token.
//
// # Claims
//
// WithClaim adds a key of which the first use wins, such as the id of a page: two submits have one effect, even with
// different Idempotency-Keys.
//
// # Many calls at once
//
// WithGather sends concurrent Transfer calls in batches. No call is delayed to wait for others, and each call has its
// own key, deadline and error; WithGather lists the differences. It is off by default.
//
// # Locks
//
// WithLock runs a function while it holds a lock. The lock is renewed meanwhile, and the function's context ends before
// another holder can acquire it. Lock does the same in two steps, and Client.Locks has the underlying calls.
//
// # Handlers of other services
//
// The subpackage once makes any HTTP or Connect handler idempotent, with ledgerd as its storage.
//
// # Other Connect services
//
// The interceptors work with any Connect client, in this order:
//
//	connect.WithInterceptors(client.ErrorInterceptor(), client.RequestIDInterceptor(),
//		client.KeyInterceptor(), client.SubmitTokenInterceptor(), client.ClaimInterceptor(),
//		client.RetryInterceptor(client.RetryPolicy{}))
//
// KeyInterceptor requires a service that reads Idempotency-Key. RetryInterceptor uses the
// ledgerd.errors.v1.ErrorDetail of errors. RequestIDInterceptor also works for handlers.
package client
