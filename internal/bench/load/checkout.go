package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"google.golang.org/protobuf/proto"

	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/order/v1/orderv1connect"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1/paymentv1connect"
)

// Gateway is the gateway of all payments, and Price the amount of an order.
const (
	Gateway = "standard"
	Price   = "2.00"
)

// Seller is the account that is paid for an item.
func Seller(item string) string { return "seller:" + item }

// checkoutCaller creates and pays one order after the other.
type checkoutCaller struct {
	conn   httpConn
	spec   *Spec
	caller int
	next   uint64
	signs  *standardwebhooks.Webhook
}

func newCheckoutCaller(spec *Spec, n int) (*checkoutCaller, error) {
	signs, err := standardwebhooks.NewWebhook(spec.Secret)
	if err != nil {
		return nil, err
	}
	c := &checkoutCaller{spec: spec, caller: n, signs: signs}
	return c, c.conn.open(spec)
}

func (c *checkoutCaller) close() { c.conn.close() }

func (c *checkoutCaller) call() Outcome {
	no, item := ReservationNo(c.spec.Run, c.next, c.caller), ItemName(c.spec.Prefix, rand.IntN(c.spec.Accounts))
	c.next++
	if err := c.pay(no, item); err != nil {
		return Outcome{Unknown: 1, Err: err}
	}
	return Outcome{Succeeded: 1}
}

// pay orders a unit, starts its payment, and delivers the gateway's callback.
func (c *checkoutCaller) pay(no, item string) error {
	if err := c.conn.unary(c.spec, orderv1connect.OrderServiceCreateOrderProcedure, &orderv1.CreateOrderRequest{
		OrderNo: no, Subject: "buyer", Asset: Asset, Amount: Price, Payee: Seller(item), Reserve: true,
		Lines: []*orderv1.OrderLine{{Item: item, Quantity: 1}}}, nil); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	var p paymentv1.CreatePaymentResponse
	if err := c.conn.unary(c.spec, paymentv1connect.PaymentServiceCreatePaymentProcedure,
		&paymentv1.CreatePaymentRequest{OrderNo: no, Gateway: Gateway, OutTradeNo: no}, &p); err != nil {
		return fmt.Errorf("payment: %w", err)
	}
	if len(p.GetPayment().GetCredential()) == 0 {
		return fmt.Errorf("payment %s has no credential: it is %s", no, p.GetPayment().GetState())
	}
	r, err := c.callback(no)
	if err != nil {
		return err
	}
	var answer paymentv1.HandleCallbackResponse
	if err := c.conn.unary(c.spec, paymentv1connect.PaymentServiceHandleCallbackProcedure, r, &answer); err != nil {
		return fmt.Errorf("callback: %w", err)
	}
	if answer.GetStatus() != http.StatusNoContent {
		return fmt.Errorf("callback: the status for the gateway is %d, not 204", answer.GetStatus())
	}
	return nil
}

// callback is the gateway's signed callback for a paid payment.
func (c *checkoutCaller) callback(no string) (*paymentv1.HandleCallbackRequest, error) {
	now := time.Now()
	body := []byte(callbackBody(no, now))
	signature, err := c.signs.Sign("paid_"+no, now, body)
	return &paymentv1.HandleCallbackRequest{Gateway: Gateway, Body: body, Headers: map[string]string{
		standardwebhooks.HeaderWebhookID: "paid_" + no, standardwebhooks.HeaderWebhookSignature: signature,
		standardwebhooks.HeaderWebhookTimestamp: strconv.FormatInt(now.Unix(), 10)}}, err
}

// callbackBody is the body of a callback.
func callbackBody(no string, at time.Time) string {
	return fmt.Sprintf(`{"type":"payment.paid","timestamp":%q,"data":{"out_trade_no":%q,"transaction_id":%q,`+
		`"amount":%q,"currency":%q}}`, at.UTC().Format(time.RFC3339), no, TransactionID(no), Price, Asset)
}

// TransactionID is the gateway's number for the money of a payment.
func TransactionID(no string) string { return "t-" + no }

// Credential is what the gateway gives to the payer of a payment.
func Credential(no string) string { return "https://gateway.example/" + no }

// serveGateway serves a gateway that creates every payment.
func serveGateway(ctx context.Context, address string) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(createAtGateway)}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }, nil
}

func createAtGateway(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Number string `json:"out_trade_no"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, `{"type":"payment.pending","data":{"out_trade_no":%q},"credential":{"url":%q}}`, q.Number,
		Credential(q.Number))
}

// unary makes a unary call of Connect. Without a response the answer is not decoded.
func (c *httpConn) unary(spec *Spec, procedure string, request, response proto.Message) error {
	body, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	head, err := frame(spec, procedure, "", len(body))
	if err != nil {
		return err
	}
	status, answer, err := c.roundTrip(append(head, body...))
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("HTTP %d: %s", status, answer)
	}
	if response == nil {
		return nil
	}
	return proto.Unmarshal(answer, response)
}
