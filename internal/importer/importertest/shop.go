package importertest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/order/v1/orderv1connect"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// Shop is a server with simulated gateways, whose answers the test sets.
type Shop struct {
	*testing.T
	URL    string
	Client *importer.Client
	DB     *pgtest.DB

	orders orderv1connect.OrderServiceClient
	mu     sync.Mutex
	says   map[string]Said // by the number of the payment or refund
}

// Said is a gateway's answer about a payment or refund.
type Said struct {
	Gateway, ID    string // ID is the gateway's number of the transaction or refund
	Amount         string
	Currency       string
	At             time.Time
	Failed         bool // of refunds
	Number, Refund string
}

// NewShop starts a server with the gateways stripe (USD), alipay and wechat (CNY). At the end of the test the database
// is checked against all invariants.
func NewShop(t *testing.T) *Shop {
	t.Helper()
	s := &Shop{T: t, DB: pgtest.New(t), says: map[string]Said{}}
	vendor := httptest.NewServer(s)
	t.Cleanup(vendor.Close)
	settings := "gateways:\n"
	for _, name := range []string{"stripe", "alipay", "wechat"} {
		settings += "  - {kind: standard, name: " + name + ", tenant: import, url: \"" + vendor.URL +
			"\", notify_url: \"http://127.0.0.1:1\", secrets: [whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0]}\n"
	}
	pay, err := gateway.ReadFile(Write(t, "pay.yaml", settings), dialects.All)
	if err != nil {
		t.Fatal(err)
	}
	tenant, err := access.EnsureTenant(t.Context(), pgtest.Pool(t, s.DB.AdminDSN), "import")
	if err != nil {
		t.Fatal(err)
	}
	started, err := server.Start(context.Background(), server.Options{DatabaseURL: s.DB.AppDSN, Listen: "127.0.0.1:0",
		Anyone: &access.Identity{Tenant: tenant, Principal: "import", Role: access.Admin}, Pay: pay,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(started.Stop)
	s.URL = "http://" + started.Addr()
	s.Client, s.orders = Dial(s.URL), orderv1connect.NewOrderServiceClient(http.DefaultClient, s.URL)
	OK(s, s.Client.Ledger.CreateAssets, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{
		{Code: "USD", Scale: 2}, {Code: "CNY", Scale: 2}}})
	accounts := []*ledgerv1.NewAccount{{Code: "shop", Asset: "USD"}, {Code: "shop", Asset: "CNY"},
		{Code: "gateway:stripe", Asset: "USD", Unbounded: true},
		{Code: "gateway:alipay", Asset: "CNY", Unbounded: true},
		{Code: "gateway:wechat", Asset: "CNY", Unbounded: true}}
	OK(s, s.Client.Ledger.CreateAccounts, &ledgerv1.CreateAccountsRequest{Accounts: accounts})
	for _, name := range []string{"stripe", "alipay", "wechat"} {
		OK(s, s.Client.Payments.PutGateway, &paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: name,
			Clearing: "gateway:" + name, Payee: "shop"}})
	}
	return s
}

// OK calls a method, and fails the test on an error.
func OK[Q, R any](s *Shop, method func(context.Context, Q) (R, error), q Q) R {
	s.Helper()
	r, err := method(s.Context(), q)
	if err != nil {
		s.Fatalf("%T: %v", q, err)
	}
	return r
}

// Pay creates an order and its payment, which the gateway's first answer reports as paid.
func (s *Shop) Pay(x Said) {
	s.Helper()
	s.tell(x.Number, x)
	OK(s, s.orders.CreateOrder, &orderv1.CreateOrderRequest{OrderNo: "o-" + x.Number, Subject: "u", Asset: x.Currency,
		Amount: x.Amount, Payee: "shop"})
	r := OK(s, s.Client.Payments.CreatePayment, &paymentv1.CreatePaymentRequest{OrderNo: "o-" + x.Number,
		Gateway: x.Gateway, OutTradeNo: x.Number})
	if r.GetPayment().GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUCCEEDED {
		s.Fatalf("%s: %s", x.Number, r)
	}
}

// Refund refunds a payment, or a part of it if Amount is set.
func (s *Shop) Refund(x Said) {
	s.Helper()
	s.tell(x.Refund, x)
	q := &paymentv1.RefundPaymentRequest{RefundNo: x.Refund, OutTradeNo: x.Number}
	if x.Amount != "" {
		q.Amount = &x.Amount
	}
	r := OK(s, s.Client.Payments.RefundPayment, q)
	want := paymentv1.RefundState_REFUND_STATE_SUCCEEDED
	if x.Failed {
		want = paymentv1.RefundState_REFUND_STATE_FAILED
	}
	if r.GetRefund().GetState() != want {
		s.Fatalf("%s: %s", x.Refund, r)
	}
}

// Balance is the balance of an account, or its error.
func (s *Shop) Balance(code, asset string) string {
	s.Helper()
	r, err := s.Client.Ledger.GetBalance(s.Context(), &ledgerv1.GetBalanceRequest{
		Account: &ledgerv1.AccountRef{Code: code, Asset: asset}})
	if err != nil {
		return connect.CodeOf(err).String()
	}
	return r.GetBalance()
}

func (s *Shop) tell(number string, x Said) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says[number] = x
}

// ServeHTTP answers as the gateways.
func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		OutTradeNo string `json:"out_trade_no"`
		RefundNo   string `json:"refund_no"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.says[q.OutTradeNo]
	data := map[string]string{"out_trade_no": q.OutTradeNo, "transaction_id": x.ID, "amount": x.Amount,
		"currency": x.Currency}
	kind := "payment.paid"
	if q.RefundNo != "" {
		x = s.says[q.RefundNo]
		data["refund_no"], data["refund_id"], data["amount"], kind = q.RefundNo, x.ID, x.Amount, "refund.succeeded"
		if x.Failed {
			kind = "refund.failed"
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "timestamp": x.At, "data": data,
		"credential": map[string]string{"url": "https://vendor.example"}})
}
