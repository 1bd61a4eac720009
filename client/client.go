package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1/inboxv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
)

// Client calls a ledgerd. Safe for many goroutines; make one and keep it.
type Client struct {
	// Ledger has every call of LedgerService, as generated.
	Ledger ledgerv1connect.LedgerServiceClient
	// Batch has Execute, as generated; Client.Execute is easier to use.
	Batch batchv1connect.BatchServiceClient
	// Idempotency has every call of IdempotencyService.
	Idempotency idempotencyv1connect.IdempotencyServiceClient
	// IDs makes ids and reads them.
	IDs idv1connect.IdServiceClient
	// Inbox has every call of InboxService.
	Inbox inboxv1connect.InboxServiceClient
	// Locks has every call of LockService, as generated. Lock and WithLock also renew.
	Locks lockv1connect.LockServiceClient
	// Notify has every call of NotifyService: messages to people and systems, templates, codes.
	Notify notifyv1connect.NotifyServiceClient
	// Webhooks has every call of WebhookService: the endpoints that webhooks go to.
	Webhooks notifyv1connect.WebhookServiceClient

	http   connect.HTTPClient
	gather *gather // nil: calls go as they come
}

// settings are what the options say.
type settings struct {
	http         connect.HTTPClient
	apiKey       string
	retry        RetryPolicy
	gather       bool
	requestID    func(context.Context) string
	grpc, json   bool
	gzip         bool
	interceptors []connect.Interceptor
}

// Option changes a Client in the making.
type Option func(*settings)

// WithAPIKey sends the key, as `ledgerd apikey create` shows it once, with every call.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithHTTPClient replaces the HTTP client. The default one keeps up to 512 idle connections to the
// server, for 90 s, gives up dialling after 5 s, and follows no redirects. For WithGRPC without TLS it
// has to speak HTTP/2 in clear text.
func WithHTTPClient(h connect.HTTPClient) Option { return func(s *settings) { s.http = h } }

// WithRetry changes how calls are sent again: attempts in all (1: never again), the greatest wait
// before the second, doubling up to limit. Default 3, 100 ms and 1 s. See RetryInterceptor.
func WithRetry(attempts int, base, limit time.Duration) Option {
	return func(s *settings) { s.retry.Attempts, s.retry.Base, s.retry.Max = attempts, base, limit }
}

// WithAttemptTimeout bounds each attempt of a call. Default: the caller's deadline alone.
func WithAttemptTimeout(d time.Duration) Option {
	return func(s *settings) { s.retry.AttemptTimeout = d }
}

// WithGather sends concurrent Transfer calls together, several times as many a second as one by one.
// A call that finds the way free leaves at once; those that come while two RPCs are on their way
// leave together, in one TransferBatch of at most 1,000 calls and 4 MiB, when one of them is back.
// Nothing waits for company.
//
// Every call keeps its own context, key, answer and error: which calls travelled together cannot be
// told from them. But:
//
//   - The batch is one request to the server: it has an X-Request-ID of its own, which stands in the
//     rows and in Info, and its answer waits for the slowest call in it.
//   - A batch takes 10 s at most; calls with more time left are then retried as after a lost connection.
//   - Batches carry no trace context, and are protobuf on the wire also WithJSON.
//   - Calls with headers of their own (connect.NewClientContext), with WithKeyLife, and dry runs go alone. Answers of
//     gathered calls have no headers for connect.NewClientContext: use WithInfo.
func WithGather() Option { return func(s *settings) { s.gather = true } }

// WithRequestID names calls: id is asked for the X-Request-ID of each one. When it returns nothing
// usable, one is made. Default: RequestID, the id of the Connect call that is being answered.
func WithRequestID(id func(context.Context) string) Option {
	return func(s *settings) { s.requestID = id }
}

// WithJSON speaks Connect with JSON. Default: Connect with protobuf.
func WithJSON() Option {
	return func(s *settings) { s.json, s.grpc = true, false }
}

// WithGRPC speaks gRPC.
func WithGRPC() Option {
	return func(s *settings) { s.json, s.grpc = false, true }
}

// WithGzip compresses requests of 4 KiB and more, and asks for compressed answers. Default: neither,
// since within a data centre processors are dearer than bytes.
func WithGzip() Option { return func(s *settings) { s.gzip = true } }

// WithInterceptors adds interceptors nearest to the wire: they see every attempt of every call, and of
// gathered calls the batches.
func WithInterceptors(i ...connect.Interceptor) Option {
	return func(s *settings) { s.interceptors = append(s.interceptors, i...) }
}

// New makes a client for the server at a base URL such as "https://ledger.example.com". Nothing is
// dialled before the first call.
func New(baseURL string, opts ...Option) *Client {
	s := settings{requestID: RequestID}
	for _, o := range opts {
		o(&s)
	}
	if s.http == nil {
		s.http = newHTTPClient(s.grpc)
	}
	c := &Client{http: s.http}
	wire := s.interceptors
	if s.apiKey != "" {
		wire = append([]connect.Interceptor{apiKey("Bearer " + s.apiKey)}, wire...)
	}
	ids := requestIDs{s.requestID}
	call := []connect.Interceptor{ErrorInterceptor(), ids, KeyInterceptor(), SubmitTokenInterceptor(),
		ClaimInterceptor(), RetryInterceptor(s.retry)}
	if s.gather {
		batch := append(s.connect(), connect.WithInterceptors(append([]connect.Interceptor{ids}, wire...)...))
		c.gather = newGather(s.http, baseURL, batch)
		call = append(call, c.gather)
	}
	options := append(s.connect(), connect.WithInterceptors(append(call, wire...)...))
	if s.json {
		options = append(options, connect.WithProtoJSON()) // not for batches, which are encoded already
	}
	c.Ledger = ledgerv1connect.NewLedgerServiceClient(s.http, baseURL, options...)
	c.Batch = batchv1connect.NewBatchServiceClient(s.http, baseURL, options...)
	c.Idempotency = idempotencyv1connect.NewIdempotencyServiceClient(s.http, baseURL, options...)
	c.IDs = idv1connect.NewIdServiceClient(s.http, baseURL, options...)
	c.Inbox = inboxv1connect.NewInboxServiceClient(s.http, baseURL, options...)
	c.Locks = lockv1connect.NewLockServiceClient(s.http, baseURL, options...)
	c.Notify = notifyv1connect.NewNotifyServiceClient(s.http, baseURL, options...)
	c.Webhooks = notifyv1connect.NewWebhookServiceClient(s.http, baseURL, options...)
	return c
}

// connect are the options that calls and batches have in common.
func (s *settings) connect() []connect.ClientOption {
	var o []connect.ClientOption
	if s.grpc {
		o = append(o, connect.WithGRPC())
	}
	if s.gzip {
		return append(o, connect.WithSendGzip(), connect.WithCompressMinBytes(4<<10))
	}
	return append(o, connect.WithAcceptCompression("gzip", nil, nil))
}

// Close closes idle connections. The client can be used on.
func (c *Client) Close() {
	if h, ok := c.http.(interface{ CloseIdleConnections() }); ok {
		h.CloseIdleConnections()
	}
}

// apiKey is an interceptor that sends itself as the Authorization of calls that have none.
type apiKey string

func (k apiKey) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if h := req.Header(); len(h["Authorization"]) == 0 {
			h["Authorization"] = []string{string(k)}
		}
		return next(ctx, req)
	}
}

func (k apiKey) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader()["Authorization"] = []string{string(k)}
		return conn
	}
}

func (k apiKey) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
