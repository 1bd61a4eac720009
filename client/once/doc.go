// Package once makes handlers idempotent, with ledgerd as their storage: net/http handlers, and unary handlers of
// Connect services. A request with an Idempotency-Key takes effect once, however often it is sent and to however many
// instances of the service.
//
//	c := client.New("https://ledger.example.com", client.WithAPIKey(key))
//	middleware := once.New(c, "shop", func(ctx context.Context, _ http.Header) string { return userOf(ctx) })
//	http.Handle("POST /orders", middleware.Handler(orders))
//
// For Connect add middleware.Interceptor() to the handler's options, innermost.
//
// # Execution
//
// The first request with a key gets the right to run, under a lease that is renewed while the handler runs. Concurrent
// requests with the same key wait for it, up to 10 s (WithWait), and get its answer, marked with
// Idempotency-Replayed: true. Keys are scoped by caller: the function given to New returns the authenticated caller, so
// that a request cannot obtain another caller's answer with a stolen key. Return the principal, not the credential,
// which may be rotated between a request and its retry.
//
//	situation                          HTTP                             Connect
//	the same key with other content    422                              already_exists
//	still running when the wait ends   409 with Retry-After             aborted
//	the outcome is unknown             409                              failed_precondition
//	key missing where it is required   400                              invalid_argument
//	key not 1 to 255 printable ASCII   400                              invalid_argument
//	ledgerd cannot be reached          503, unless WithFailOpen         unavailable
//
// The middleware's own HTTP answers are application/problem+json with a code. Its Connect errors have a
// google.rpc.ErrorInfo (IDEMPOTENCY_KEY_REUSED, WORK_RUNNING, OUTCOME_PARKED, IDEMPOTENCY_KEY_MISSING,
// IDEMPOTENCY_KEY_INVALID, NOT_RUN), which client.RetryInterceptor understands.
//
// # Recorded answers
//
// The middleware records status, headers and body, byte for byte, up to 1 MiB; never Set-Cookie, Date, or connection
// headers (see WithHeaders). A larger answer is sent once. Repeats then get its status, and the header
// Idempotency-Body: omitted instead of the body. The default outcomes of HTTP answers are:
//
//	2xx, 3xx                   Done: repeats get the same
//	402, 409, 410, 422         Refused by a business rule: repeats get the same
//	other 4xx                  Forget: not recorded, and the key may be used with corrected content
//	408, 412, 423, 424, 425, 429, 5xx, and panics
//	                           Free: not recorded; the same request may run again immediately
//
// Of Connect errors, failed_precondition, already_exists and out_of_range are Refused; aborted, unavailable,
// resource_exhausted, deadline_exceeded, canceled, internal, unknown and data_loss are Free; all others are Forget.
// WithRule and WithConnectRule change the outcomes. A handler that cannot know whether it did its work, because a
// payment provider did not answer, calls Unknown: the work is then parked, and does not run again until ResolveWork
// settles it.
//
// # Crashes
//
// If the service dies while a handler runs, the lease expires with an unknown outcome. So the work is parked, as with
// Unknown. With WithRerun the next request runs the work instead: for handlers that may safely run twice, because
// their effects are idempotent themselves or refuse old fences (see AttemptOf).
//
// # Notes for handlers
//
// The handler's context does not end when the caller disconnects, because the caller may return for the answer. It ends
// before the lease is lost, with the cause ErrLeaseLost: stop then. The answer is held back until it is recorded, so
// http.Flusher and http.Hijacker are unavailable, and streaming calls of Connect are not guarded.
package once
