// Package once makes the handlers of any service idempotent, with ledgerd as their memory: plain net/http
// handlers, and unary handlers of Connect services. A request with an Idempotency-Key takes effect once,
// however often it is sent, by however many copies of the service it is met.
//
//	c := client.New("https://ledger.example.com", client.WithAPIKey(key))
//	guard := once.New(c, "shop", func(ctx context.Context, _ http.Header) string { return userOf(ctx) })
//	http.Handle("POST /orders", guard.Handler(orders))
//
// For Connect put guard.Interceptor() among the handler's options, innermost.
//
// # What happens
//
// The first request with a key gets the right to run, under a lease which is renewed while the handler
// works. Others with the same key wait for it, up to 10 s (WithWait), and get its answer, marked with
// Idempotency-Replayed: true. Keys are the caller's own: the function given to New tells who calls, by
// what he proved to be, so that nobody gets the answer of somebody else by sending his key. Let it name
// the principal, not the credential, which may be rotated between a request and its retry.
//
//	situation                          HTTP                             Connect
//	the same key with other content    422                              already_exists
//	still running when the wait ends   409 with Retry-After             aborted
//	nobody knows whether it was done   409                              failed_precondition
//	key missing where it is required   400                              invalid_argument
//	key not 1 to 255 printable ASCII   400                              invalid_argument
//	ledgerd cannot be reached          503, unless WithFailOpen         unavailable
//
// HTTP answers of the guard's own are application/problem+json with a code; Connect errors have a
// google.rpc.ErrorInfo (IDEMPOTENCY_KEY_REUSED, WORK_RUNNING, OUTCOME_PARKED, IDEMPOTENCY_KEY_MISSING,
// IDEMPOTENCY_KEY_INVALID, NOT_RUN) by which client.RetryInterceptor knows what to send again.
//
// # What is recorded
//
// Status, headers and body, byte for byte, up to 1 MiB; never Set-Cookie, Date, or what belongs to a
// connection (see WithHeaders). A larger answer goes out once; repeats learn its status, and are told by
// Idempotency-Body: omitted that the body was not kept. By default, of HTTP answers:
//
//	2xx, 3xx                   Done: repeats get the same
//	402, 409, 410, 422         Refused, a business "no": repeats get the same
//	other 4xx                  Forget: not recorded, and the key may come with corrected content
//	408, 412, 423, 424, 425, 429, 5xx, and panics
//	                           Free: not recorded; the same request may run again at once
//
// and of Connect errors: failed_precondition, already_exists and out_of_range are Refused, aborted,
// unavailable, resource_exhausted, deadline_exceeded, canceled, internal, unknown and data_loss Free,
// all others Forget. WithRule and WithConnectRule change that. A handler that cannot know whether it has
// done its work, because a payment provider did not answer, says so with Unknown: then the work is parked,
// and nobody runs it until ResolveRecord settles it.
//
// # When the service dies in the middle
//
// Its lease runs out, and nobody can know what it had done. So the work is parked, as with Unknown. A
// handler whose effect is safe to begin again, because all it does is idempotent itself or refuses old
// fences (see AttemptOf), can have the next request run it instead: WithRerun.
//
// # What handlers should know
//
// Their context does not end when the caller goes away, since he may come back for the answer. It ends
// when the lease is about to be lost, with the cause ErrLeaseLost: stop then. The answer is held back
// until it is recorded, so http.Flusher and http.Hijacker are not there, and streaming calls of Connect
// are not guarded.
package once
