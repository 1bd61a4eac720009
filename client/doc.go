// Package client calls a ledgerd, a double-entry ledger service, so that money moves once.
//
//	c := client.New("https://ledger.example.com", client.WithAPIKey(key))
//	res, err := c.Ledger.Transfer(ctx, &ledgerv1.TransferRequest{
//		BizNo:    "order-1001",
//		Postings: []*ledgerv1.Posting{{From: "user:7", To: "shop", Asset: "CNY", Amount: "12.30"}},
//	})
//
// Client.Ledger is the generated client of LedgerService: every call is there, and what they mean is
// written in its proto. What this package adds happens on the way:
//
// # Keys
//
// Every changing call goes with an Idempotency-Key, which the server records together with the effect
// of the call: the same key again gets the recorded answer, and moves nothing. A call that brings no
// key is given one, the same for all its attempts. That makes it safe against lost connections, not
// against a crash of the caller, who no longer knows the key. What may be done again later (a queue
// message, a job, a form) needs a key that is kept with it: see WithKey and NewKey. The server forgets
// keys after 24 hours by default; the biz_no of a transfer is unique for ever.
//
// # Retries
//
// A call is sent up to 3 times, after random waits of at most 100 ms, then 200 ms, doubling to 1 s, if
// the error says that the same key may run again (class system, or a conflict such as BUSY), or if the
// connection was lost. Refusals, bad requests and STALE_VERSION are returned at once: to repeat those
// is a decision. A retry never outlasts the caller's deadline; so give calls one. WithRetry and
// WithAttemptTimeout change the numbers. Streams are not retried: WatchEntries goes on from a cursor.
//
// # Errors
//
// Every error is an *Error: what kind of "no" it is (Class), why (Reason), what to do (NextStep),
// whether users may see it (ShowToUser), and the state it speaks of (State). Compare reasons:
//
//	if errors.Is(err, client.ReasonInsufficientFunds) { … }
//
// AsError gives all of it, connect.CodeOf the Connect code, and ItemError the same of an item of a
// TransferBatch. After an error of class system, or without
// a class, and after the end of the caller's own context, the call may have been done: only the same
// key, or the same biz_no, tells.
//
// # Forms
//
// A form that must be submitted once gets a submit token when its page is made (Client.Idempotency.IssueTokens),
// and the call that the submit makes spends it: see WithSubmitToken. The second submit fails with
// ReasonTokenSpent, and State names what the first one made.
//
// # Answers
//
// WithInfo tells the key, the request id, the number of attempts, whether the answer was replayed, and the
// next submit token.
//
// # Claims
//
// WithClaim puts a key before a call of which the first use wins, such as the id of a page: two submits are one
// effect, also when they have different Idempotency-Keys.
//
// # Many calls at once
//
// WithGather sends concurrent Transfer calls together. Nothing waits for company, and each call has its
// own key, deadline and error: see there for what is different. It is off by default.
//
// # Locks
//
// WithLock runs a function while it holds a lock, which is renewed meanwhile, and whose context ends before
// anybody else can have it. Lock does the same in two steps, and Client.Locks has the calls underneath.
//
// # Handlers of other services
//
// Package once, below this one, makes any HTTP or Connect handler idempotent, with ledgerd as its memory.
//
// # Other Connect services
//
// The parts work with any Connect client, in this order:
//
//	connect.WithInterceptors(client.ErrorInterceptor(), client.RequestIDInterceptor(),
//		client.KeyInterceptor(), client.SubmitTokenInterceptor(), client.ClaimInterceptor(),
//		client.RetryInterceptor(client.RetryPolicy{}))
//
// KeyInterceptor wants a service that reads Idempotency-Key, and RetryInterceptor retries by the
// ledgerd.errors.v1.ErrorDetail of its errors. RequestIDInterceptor also stands in front of handlers.
package client
