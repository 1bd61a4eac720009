package server_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// till is a shop that is paid through one gateway: its calls go to one server, and callbacks come to another one.
type till struct {
	*servertest.Caller
	kind      string // of the gateway, and its name
	simulator string // URL
	settings  string // file
	relayed   *sync.Map
}

// newTills starts two servers on one database, and a simulator of all gateways.
func newTills(t *testing.T) *till {
	t.Helper()
	db := pgtest.New(t)
	first := &servertest.Site{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &servertest.Log{}}
	second := *first
	x := &till{Caller: &servertest.Caller{Site: first, APIKey: first.Key("shop", "boss", access.Admin)},
		relayed: &sync.Map{}}
	front := httptest.NewServer(x.front(&second))
	t.Cleanup(front.Close)
	x.settings = x.simulate(front.URL)
	for _, s := range []*servertest.Site{first, &second} {
		f, err := gateway.ReadFile(x.settings, dialects.All)
		if err != nil {
			t.Fatal(err)
		}
		s.Start(server.Options{Pay: f})
	}
	return x
}

// front is the address that gateways call. It forwards to the second server, but hands callbacks of relayed gateways to
// the first one by HandleCallback.
func (x *till) front(to *servertest.Site) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		u, _ := url.Parse(to.Base)
		r.SetURL(u)
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := strings.TrimPrefix(r.URL.Path, gateway.Path)
		if _, relayed := x.relayed.Load(kind); !relayed {
			proxy.ServeHTTP(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		q := &paymentv1.HandleCallbackRequest{Gateway: kind, Body: body, Headers: map[string]string{"Cookie": "mine"}}
		for name := range r.Header {
			q.Headers[strings.ToLower(name)] = r.Header.Get(name)
		}
		a := x.Call(servertest.ConnectProto, "Payment.HandleCallback", q)
		if a.Code != "" {
			http.Error(w, a.Reason(x.T), http.StatusForbidden)
			return
		}
		res := new(paymentv1.HandleCallbackResponse)
		servertest.ConnectProto.Decode(x.T, a.Raw, res)
		w.Header().Set("Content-Type", res.GetContentType())
		w.WriteHeader(int(res.GetStatus()))
		_, _ = w.Write(res.GetBody())
	})
}

// simulate starts the simulator, and returns the file of the settings for it.
func (x *till) simulate(notify string) string {
	x.T.Helper()
	dir := x.T.TempDir()
	cmd := exec.Command(pgtest.Program(x.T, "github.com/ledgerd/ledgerd/examples/gateway"), "-listen", "127.0.0.1:0",
		"-dir", dir, "-notify-url", notify, "-tenant", "shop", "-speed", "10000", "-forget")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for range 2 { // its URL, and then a line when the settings are written
		if !lines.Scan() {
			x.T.Fatal("the simulator ended")
		}
		if x.simulator == "" {
			x.simulator = lines.Text()
		}
	}
	return filepath.Join(dir, "pay.yaml")
}

// of returns the till of one gateway, in a subtest.
func (x *till) of(t *testing.T, kind string) *till {
	y, site := *x, *x.Site
	site.T, y.kind = t, kind
	y.Caller = &servertest.Caller{Site: &site, APIKey: x.APIKey}
	return &y
}

// tell makes a call to the simulator.
func tell[A any](x *till, method, path string, body any) (answer A) {
	x.T.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		x.T.Fatal(err)
	}
	req, err := http.NewRequestWithContext(x.T.Context(), method, x.simulator+path, bytes.NewReader(text))
	if err != nil {
		x.T.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := servertest.HTTP1.Do(req)
	if err != nil {
		x.T.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && strings.HasPrefix(path, "/control") && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(got, &answer)
	}
	if err != nil || res.StatusCode != http.StatusOK {
		x.T.Fatalf("%s %s: %v: %d %s", method, path, err, res.StatusCode, got)
	}
	return answer
}

type fate = map[string]any

func (x *till) plan(number string, p fate) {
	x.T.Helper()
	tell[fate](x, "PUT", "/control/plans/"+number, p)
}

// act makes the payer, or the merchant in the console, act on a payment at the simulator.
func (x *till) act(number string, a fate) {
	x.T.Helper()
	tell[fate](x, "POST", "/control/payments/"+x.kind+"/"+number, a)
}

// quiet waits until the simulator has nothing left to do.
func (x *till) quiet() {
	x.T.Helper()
	tell[fate](x, "GET", "/control/quiet?timeout=20s", nil)
}

// taken returns the money that the gateway has taken and given back under a number.
func (x *till) taken(number string) string {
	x.T.Helper()
	type total struct {
		Taken string
		Back  string `json:"given_back"`
	}
	all := tell[struct{ Numbers map[string]map[string]total }](x, "GET", "/control/totals", nil).Numbers
	m := all[x.kind+"/"+number]["CNY"]
	return m.Taken + " " + m.Back
}

// misspelt is the default payee of the gateway. There is no such account.
const misspelt = "payee:misspelt"

// prepare creates accounts, stock and the gateway.
func (x *till) prepare() {
	x.T.Helper()
	x.OK("CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2},
		{Code: "USD", Scale: 2}}}, new(ledgerv1.CreateAssetsResponse))
	accounts := []*ledgerv1.NewAccount{{Code: x.kind, Asset: "CNY", Unbounded: true},
		{Code: x.kind, Asset: "USD", Unbounded: true}}
	for _, asset := range []string{"CNY", "USD"} {
		accounts = append(accounts, &ledgerv1.NewAccount{Code: "suspense:" + x.kind, Asset: asset})
	}
	x.OK("CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: accounts}, new(ledgerv1.CreateAccountsResponse))
	x.OK("Stock.PutItem", &stockv1.PutItemRequest{Item: "tea"}, new(stockv1.PutItemResponse))
	x.OK("Stock.Restock", &stockv1.RestockRequest{Item: "tea", ChangeNo: x.kind, Quantity: 1000},
		new(stockv1.RestockResponse))
	x.OK("Payment.PutGateway", &paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: x.kind,
		Clearing: x.kind,
		Suspense: "suspense:" + x.kind, Payee: misspelt}}, new(paymentv1.PutGatewayResponse))
}

// order creates an order, and starts its payment.
func (x *till) order(no string, change ...func(*orderv1.CreateOrderRequest)) *paymentv1.Payment {
	x.T.Helper()
	x.createOrder(no, change...)
	return x.pay(no).GetPayment()
}

// createOrder creates an order of 12.30 with an account of its own as payee.
func (x *till) createOrder(no string, change ...func(*orderv1.CreateOrderRequest)) {
	x.T.Helper()
	x.OK("CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "payee:" + no,
		Asset: "CNY"}}}, new(ledgerv1.CreateAccountsResponse))
	r := &orderv1.CreateOrderRequest{OrderNo: no, Subject: "u", Asset: "CNY", Amount: "12.30", Payee: "payee:" + no,
		Reserve: true, Lines: []*orderv1.OrderLine{{Item: "tea", Quantity: 1}}}
	for _, f := range change {
		f(r)
	}
	x.OK("Order.CreateOrder", r, new(orderv1.CreateOrderResponse))
}

func (x *till) pay(no string, headers ...string) *paymentv1.CreatePaymentResponse {
	x.T.Helper()
	res := new(paymentv1.CreatePaymentResponse)
	x.OK("Payment.CreatePayment", x.payRequest(no), res, headers...)
	return res
}

func (x *till) payRequest(no string) *paymentv1.CreatePaymentRequest {
	r := &paymentv1.CreatePaymentRequest{OrderNo: no, Gateway: x.kind, OutTradeNo: no, Payer: "o1",
		PayerIp: "127.0.0.1"}
	if x.kind == "alipay" {
		r.PayType = "precreate"
	}
	return r
}

// opened starts the payment of a new order, and opens it as the payer's client does.
func (x *till) opened(no string, change ...func(*orderv1.CreateOrderRequest)) {
	x.T.Helper()
	p := x.order(no, change...)
	if p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUBMITTED || len(p.GetCredential()) == 0 {
		x.T.Fatalf("the payer cannot pay: %v", p)
	}
	tell[fate](x, "POST", "/control/open/"+x.kind, p.GetCredential())
}

func (x *till) payment(no string) *paymentv1.Payment {
	x.T.Helper()
	res := new(paymentv1.GetPaymentResponse)
	x.OK("Payment.GetPayment", &paymentv1.GetPaymentRequest{OutTradeNo: no}, res)
	return res.GetPayment()
}

// state returns the state of a payment, that of its order and of the reserved unit, and the balance of the payee.
func (x *till) state(no string) string {
	x.T.Helper()
	o, r, b := new(orderv1.GetOrderResponse), new(stockv1.GetReservationResponse), new(ledgerv1.GetBalanceResponse)
	x.OK("Order.GetOrder", &orderv1.GetOrderRequest{OrderNo: no}, o)
	x.OK("Stock.GetReservation", &stockv1.GetReservationRequest{Item: "tea", ReservationNo: no + "/1"}, r)
	x.OK("GetBalance", &ledgerv1.GetBalanceRequest{Account: &ledgerv1.AccountRef{Code: "payee:" + no, Asset: "CNY"}}, b)
	return strings.Join([]string{strings.TrimPrefix(x.payment(no).GetState().String(), "PAYMENT_STATE_"),
		o.GetOrder().GetState(), strings.TrimPrefix(r.GetReservation().GetState().String(), "RESERVATION_STATE_"),
		b.GetBalance()}, " ")
}

const (
	isOpen = "SUBMITTED awaiting_payment RESERVED 0.00"
	isPaid = "SUCCEEDED paid SOLD 12.30"
)

// becomes waits until a payment has a state.
func (x *till) becomes(no, want string) {
	x.T.Helper()
	var got string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if got = x.state(no); got == want {
			return
		}
	}
	x.T.Fatalf("%s is %s, not %s", no, got, want)
}

// stays checks that a payment has a state when the simulator is idle.
func (x *till) stays(no, want string) {
	x.T.Helper()
	x.quiet()
	if got := x.state(no); got != want {
		x.T.Fatalf("%s is %s, not %s", no, got, want)
	}
}
