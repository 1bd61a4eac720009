package client

import (
	"context"
	"crypto/tls"
	"time"

	"connectrpc.com/connect"

	"github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1/approvalv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1/auditv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1/inboxv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1/machinev1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/order/v1/orderv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1/paymentv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1/salev1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1/stockv1connect"
)

// Client calls a ledgerd. It is safe for concurrent use; make one and keep it.
type Client struct {
	// Ledger has every call of LedgerService, as generated.
	Ledger ledgerv1connect.LedgerServiceClient
	// Batch has Execute, as generated; Client.Execute is more convenient.
	Batch batchv1connect.BatchServiceClient
	// Approvals has every call of ApprovalService: changes that another principal has to approve.
	Approvals approvalv1connect.ApprovalServiceClient
	// Audit has every call of AuditService: who changed which setting. It needs a key of the role admin.
	Audit auditv1connect.AuditServiceClient
	// Idempotency has every call of IdempotencyService.
	Idempotency idempotencyv1connect.IdempotencyServiceClient
	// IDs generates and parses ids.
	IDs idv1connect.IdServiceClient
	// Inbox has every call of InboxService.
	Inbox inboxv1connect.InboxServiceClient
	// Locks has every call of LockService, as generated. Lock and WithLock also renew the lease.
	Locks lockv1connect.LockServiceClient
	// Machines has every call of MachineService: state machines and their instances.
	Machines machinev1connect.MachineServiceClient
	// Orders has every call of OrderService: orders that are created once.
	Orders orderv1connect.OrderServiceClient
	// Payments has every call of PaymentService: orders paid through payment gateways.
	Payments paymentv1connect.PaymentServiceClient
	// Sales has every call of SaleService: flash sales, and coupons.
	Sales salev1connect.SaleServiceClient
	// Stock has every call of StockService: items that are never oversold.
	Stock stockv1connect.StockServiceClient
	// Notify has every call of NotifyService: messages to people and systems, templates, codes.
	Notify notifyv1connect.NotifyServiceClient
	// Webhooks has every call of WebhookService: the endpoints that receive webhooks.
	Webhooks notifyv1connect.WebhookServiceClient

	http   connect.HTTPClient
	gather *gather // nil: every call is an RPC of its own
}

type settings struct {
	http         connect.HTTPClient
	tls          *tls.Config
	apiKey       string
	retry        RetryPolicy
	gather       bool
	requestID    func(context.Context) string
	grpc, json   bool
	gzip         bool
	interceptors []connect.Interceptor
}

// Option configures a Client.
type Option func(*settings)

// WithAPIKey sends an API key with every call; `ledgerd apikey create` prints it once. A token of an issuer that the
// server trusts may take its place.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithHTTPClient replaces the HTTP client. The default one keeps up to 512 idle connections to the server for
// 90 s, and times out dialling after 5 s. Redirects are refused with CodeFailedPrecondition, also by an *http.Client
// without CheckRedirect. WithGRPC without TLS needs a client with unencrypted HTTP/2.
func WithHTTPClient(h connect.HTTPClient) Option {
	return func(s *settings) { s.http = withoutRedirects(h) }
}

// WithTLS configures connections to https addresses: authorities of its own, or a client certificate, which identifies
// the caller instead of an API key. It has no effect together with WithHTTPClient.
func WithTLS(config *tls.Config) Option { return func(s *settings) { s.tls = config } }

// WithRetry configures retries: the total number of attempts (1: no retries), the maximum wait before the
// second attempt, and the limit up to which it doubles. Default 3, 100 ms and 1 s. See RetryInterceptor.
func WithRetry(attempts int, base, limit time.Duration) Option {
	return func(s *settings) { s.retry.Attempts, s.retry.Base, s.retry.Max = attempts, base, limit }
}

// WithAttemptTimeout bounds each attempt of a call. Default: only the caller's deadline.
func WithAttemptTimeout(d time.Duration) Option {
	return func(s *settings) { s.retry.AttemptTimeout = d }
}

// WithGather sends concurrent Transfer calls together, which multiplies the throughput. A call without others
// in flight is sent immediately. Calls that arrive while two RPCs are in flight are sent together when one of
// them returns, in one TransferBatch of at most 1,000 calls and 4 MiB. No call is delayed to wait for others.
//
// Every call keeps its own context, key, answer and error, which do not reveal the batch. The differences are:
//
//   - The batch is one request to the server. Its own X-Request-ID is stored in the rows and in Info, and its
//     answer waits for the slowest call in it.
//   - A batch takes 10 s at most; calls with more time left are then retried as after a lost connection.
//   - Batches carry no trace context, and are sent as protobuf even WithJSON.
//   - Calls with additional headers (connect.NewClientContext), calls with WithKeyLife, and dry runs are sent alone.
//     Answers of gathered calls have no headers for connect.NewClientContext: use WithInfo.
func WithGather() Option { return func(s *settings) { s.gather = true } }

// WithRequestID sets the X-Request-ID of calls: id is called for each one. If it returns an invalid id, one is
// generated. Default: RequestID, the id of the Connect call being answered.
func WithRequestID(id func(context.Context) string) Option {
	return func(s *settings) { s.requestID = id }
}

// WithJSON uses Connect with JSON. Default: Connect with protobuf.
func WithJSON() Option {
	return func(s *settings) { s.json, s.grpc = true, false }
}

// WithGRPC uses gRPC.
func WithGRPC() Option {
	return func(s *settings) { s.json, s.grpc = false, true }
}

// WithGzip compresses requests of 4 KiB and more, and requests compressed answers. The default is neither:
// within a data centre, CPU time costs more than bytes.
func WithGzip() Option { return func(s *settings) { s.gzip = true } }

// WithInterceptors adds interceptors next to the transport: they see every attempt of every call, and batches
// instead of gathered calls.
func WithInterceptors(i ...connect.Interceptor) Option {
	return func(s *settings) { s.interceptors = append(s.interceptors, i...) }
}

// New makes a client for the server at a base URL such as "https://ledger.example.com". It does not connect
// before the first call.
func New(baseURL string, opts ...Option) *Client {
	s := settings{requestID: RequestID}
	for _, o := range opts {
		o(&s)
	}
	if s.http == nil {
		s.http = newHTTPClient(s.grpc, s.tls)
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
		options = append(options, connect.WithProtoJSON()) // not for batches: their items are encoded as protobuf
	}
	c.Ledger = ledgerv1connect.NewLedgerServiceClient(s.http, baseURL, options...)
	c.Approvals = approvalv1connect.NewApprovalServiceClient(s.http, baseURL, options...)
	c.Audit = auditv1connect.NewAuditServiceClient(s.http, baseURL, options...)
	c.Batch = batchv1connect.NewBatchServiceClient(s.http, baseURL, options...)
	c.Idempotency = idempotencyv1connect.NewIdempotencyServiceClient(s.http, baseURL, options...)
	c.IDs = idv1connect.NewIdServiceClient(s.http, baseURL, options...)
	c.Inbox = inboxv1connect.NewInboxServiceClient(s.http, baseURL, options...)
	c.Locks = lockv1connect.NewLockServiceClient(s.http, baseURL, options...)
	c.Machines = machinev1connect.NewMachineServiceClient(s.http, baseURL, options...)
	c.Payments = paymentv1connect.NewPaymentServiceClient(s.http, baseURL, options...)
	c.Sales = salev1connect.NewSaleServiceClient(s.http, baseURL, options...)
	c.Orders = orderv1connect.NewOrderServiceClient(s.http, baseURL, options...)
	c.Stock = stockv1connect.NewStockServiceClient(s.http, baseURL, options...)
	c.Notify = notifyv1connect.NewNotifyServiceClient(s.http, baseURL, options...)
	c.Webhooks = notifyv1connect.NewWebhookServiceClient(s.http, baseURL, options...)
	return c
}

// connect returns the options common to calls and batches.
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

// Close closes idle connections. The client remains usable.
func (c *Client) Close() {
	if h, ok := c.http.(interface{ CloseIdleConnections() }); ok {
		h.CloseIdleConnections()
	}
}

// apiKey is an interceptor that sets the Authorization of calls that have none.
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
