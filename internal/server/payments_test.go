package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// For every behaviour of a gateway, an order is paid once, and the money is in the right account. Each gateway is the
// real simulator: calls go to one server, and callbacks to another one.
func TestOrdersArePaidOnceThroughEveryGateway(t *testing.T) {
	t.Parallel()
	all := newTills(t)
	for _, kind := range []string{"stripe", "alipay", "wechat", "standard"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			all.of(t, kind).prepare()
			for _, story := range []struct {
				name string
				run  func(x *till, no string)
			}{{"paid", paid}, {"declined", declined}, {"repeats", repeated}, {"early", early}, {"reordered", reordered},
				{"wrong", wrong}, {"second", second}, {"never", never}, {"polled", polled}, {"lost", lost},
				{"forged", forged},
				{"refunds", refunded}, {"refused", refundFails}, {"cancel", cancelled}, {"expiry", expired},
				{"relayed", relayed}, {"clicks", clicked}, {"by_hand", givenBackByHand},
				{"by_hand_unnamed", givenBackWithoutNumber},
				{"by_hand_first", givenBackFirst}, {"by_hand_returned", byHandAndReturned}, {"kept", kept},
				{"number_known", numberKnown}, {"number_twice", numberTwice}, {"unnumbered", unnumbered},
				{"returned", returned}, {"messages", messaged}, {"form", formOpensAgain},
				{"before", heardBefore}, {"nowhere", paysNowhere}} {
				t.Run(story.name, func(t *testing.T) { story.run(all.of(t, kind), story.name+"_"+kind) })
			}
		})
	}
}

func paid(x *till, no string) {
	x.opened(no)
	if again := x.pay(no); !again.GetExisted() || again.GetPayment().GetOutTradeNo() != no ||
		len(again.GetPayment().GetCredential()) == 0 {
		x.T.Errorf("again: %v", again)
	}
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	if again := x.pay(no); !again.GetExisted() ||
		again.GetPayment().GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUCCEEDED {
		x.T.Errorf("a paid order: %v", again)
	}
	x.stays(no, isPaid)
	if got := x.taken(no); got != "12.30 0.00" {
		x.T.Errorf("the gateway has %s", got)
	}
}

// clicked: several clicks on "pay" come while the gateway is slow. All get the same credential, from one call to the
// gateway.
func clicked(x *till, no string) {
	x.plan(no, fate{"api": fate{"create": fate{"do": "slow", "after": "700ms"}}})
	var clicks sync.WaitGroup
	answers := make([]*paymentv1.Payment, 4)
	clicks.Go(func() { answers[0] = x.order(no) })
	servertest.Eventually(x.T, 20*time.Second, no+" is there", func() (found bool) {
		err := x.Pool.QueryRow(context.Background(), "select exists (select from payment_payments "+
			"where out_trade_no = $1)",
			no).Scan(&found)
		return found && err == nil
	})
	for i := 1; i < len(answers); i++ {
		clicks.Go(func() { answers[i] = x.pay(no).GetPayment() })
	}
	clicks.Wait()
	for i, p := range answers {
		if p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUBMITTED || len(p.GetCredential()) == 0 ||
			!maps.Equal(p.GetCredential(), answers[0].GetCredential()) {
			x.T.Errorf("click %d: %v", i, p)
		}
	}
	var tries int
	if err := x.Pool.QueryRow(context.Background(), `select count(*) from payment_notices
		where out_trade_no = $1 and kind = 'pending' and not callback`, no).Scan(&tries); err != nil || tries != 1 {
		x.T.Errorf("the gateway answered %d times: %v", tries, err)
	}
}

// messaged: the commit that pays the order sends the messages of its payment.
func messaged(x *till, no string) {
	x.createOrder(no)
	r := x.payRequest(no)
	r.Messages = []*notifyv1.SendRequest{text(), text()}
	r.Messages[1].BizNo = "mine/" + no
	for i, m := range r.GetMessages() {
		m.Recipient = fmt.Sprintf("+86138%08d", crc32.ChecksumIEEE([]byte(no))%1e8+uint32(i))
	}
	res := new(paymentv1.CreatePaymentResponse)
	x.OK("Payment.CreatePayment", r, res)
	tell[fate](x, "POST", "/control/open/"+x.kind, res.GetPayment().GetCredential())
	sent := func() int {
		return x.Count("select count(*) from notify_names where biz_no in ('" + no + "/paid/1', 'mine/" + no + "')")
	}
	if n := sent(); n != 0 {
		x.T.Errorf("%d messages before the payer has paid", n)
	}
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	if n := sent(); n != 2 {
		x.T.Errorf("%d messages", n)
	}
}

// heardBefore: the gateway reports a payment as paid before it is created, and does not know it when queried. The
// notice that was kept pays the order.
func heardBefore(x *till, no string) {
	if x.kind != "standard" {
		return // the test signs callbacks only for this one
	}
	if status := x.signed("m_"+no, "payment.paid", time.Now().UTC().Format(time.RFC3339), `"out_trade_no": "`+no+
		`", "transaction_id": "t_`+no+`"`); status !=
		http.StatusServiceUnavailable {
		x.T.Errorf("of an unknown payment: %d", status)
	}
	x.createOrder(no)
	if p := x.pay(no).GetPayment(); p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUCCEEDED ||
		p.GetTransactionId() != "t_"+no {
		x.T.Errorf("%v", p)
	}
	x.becomes(no, isPaid)
}

// unnumbered: the gateway must redeliver a notice of a refund without a number of ours, since the notice of its
// transaction may be late.
func unnumbered(x *till, no string) {
	if x.kind != "standard" {
		return
	}
	for age, want := range map[time.Duration]int{time.Minute: http.StatusServiceUnavailable,
		2 * time.Hour: http.StatusNoContent} {
		if status := x.signed(fmt.Sprint("m_", no, age), "refund.succeeded",
			time.Now().Add(-age).UTC().Format(time.RFC3339),
			`"transaction_id": "t_`+no+`", "refund_id": "re_`+no+`"`); status != want {
			x.T.Errorf("after %v: %d", age, status)
		}
	}
}

// kept: notices that concern no known payment are kept unchanged, and apply if they are redelivered in time.
func kept(x *till, no string) {
	if x.kind != "standard" {
		return
	}
	at := time.Now().UTC().Format(time.RFC3339)
	is := func(what, id, want string) {
		x.T.Helper()
		var got string
		if err := x.Pool.QueryRow(context.Background(), `select coalesce(string_agg(concat_ws(' ', kind, effect,
			out_trade_no, case when body <> '' then 'kept' end), ', '), 'nothing') from payment_notices
			where notify_id like $1`, id).Scan(&got); err != nil || got != want {
			x.T.Errorf("%s: %s, want %s (%v)", what, got, want, err)
		}
	}
	for range 2 {
		if status := x.signed("dispute_"+no, "dispute.opened", at, `"transaction_id": "t_`+no+
			`"`); status != http.StatusNoContent {
			x.T.Errorf("a dispute: %d", status)
		}
	}
	is("a dispute", "dispute_"+no, "other known  kept")
	refund := func(want int) {
		x.T.Helper()
		if status := x.signed("refund_"+no, "refund.succeeded", at, `"transaction_id": "t_`+no+`", "refund_id": "re_`+
			no+`"`); status != want {
			x.T.Errorf("the refund: %d, want %d", status, want)
		}
	}
	x.opened(no)
	refund(http.StatusServiceUnavailable)
	is("a refund of an unknown transaction", "kept/refund_"+no, "refunded unmatched  kept")
	if status := x.signed("paid_"+no, "payment.paid", at, `"out_trade_no": "`+no+`", "transaction_id": "t_`+no+
		`"`); status != http.StatusNoContent {
		x.T.Errorf("paid: %d", status)
	}
	refund(http.StatusNoContent)
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_UNKNOWN_REFUND || f.GetAmount() != "12.30" {
		x.T.Errorf("%v", f)
	}
	if status := x.signed("failed_"+no, "refund.failed", at, `"transaction_id": "t_`+no+`", "refund_id": "re_`+no+
		`"`); status != http.StatusNoContent {
		x.T.Errorf("its failure: %d", status)
	}
	refund(http.StatusNoContent) // again: it changes nothing
	if f := x.flag(no); f.GetResolution() != paymentv1.Resolution_RESOLUTION_WITHDRAWN {
		x.T.Errorf("%v", f)
	}
	is("the refund", "refund_"+no, "refunded flagged "+no+" kept")
	_, signs := x.standard()
	body, now := []byte(`{"type": "payment.paid", "no": "`+no+`", `), time.Now()
	signature, err := signs.Sign("broken_"+no, now, body)
	if err != nil {
		x.T.Fatal(err)
	}
	for range 2 {
		a := x.Call(servertest.ConnectJSON, "Payment.HandleCallback",
			&paymentv1.HandleCallbackRequest{Gateway: x.kind, Body: body, Headers: map[string]string{
				"webhook-id": "broken_" + no, "webhook-timestamp": strconv.FormatInt(now.Unix(), 10),
				"webhook-signature": signature}})
		if a.Reason(x.T) != "CALLBACK_UNREADABLE" {
			x.T.Errorf("a broken callback: %s", a.Raw)
		}
	}
	is("a broken callback", fmt.Sprintf("unreadable/%x", sha256.Sum256(body)), "unreadable unmatched  kept")
}

// signed sends a callback of the standard gateway, and returns the status of the answer.
func (x *till) signed(id, kind, at, data string) int {
	x.T.Helper()
	merchant, signs := x.standard()
	body, now := []byte(`{"type": "`+kind+`", "timestamp": "`+at+`", "data": {`+data+
		`, "amount": "12.30", "currency": "CNY",
		"merchant": "`+merchant+`"}}`), time.Now()
	signature, err := signs.Sign(id, now, body)
	if err != nil {
		x.T.Fatal(err)
	}
	res := new(paymentv1.HandleCallbackResponse)
	x.OK("Payment.HandleCallback", &paymentv1.HandleCallbackRequest{Gateway: x.kind, Body: body,
		Headers: map[string]string{
			"webhook-id": id, "webhook-timestamp": strconv.FormatInt(now.Unix(), 10), "webhook-signature": signature}},
		res)
	return int(res.GetStatus())
}

// paysNowhere: the payee does not exist. The payment is closed, so that the payer cannot pay into suspense.
func paysNowhere(x *till, no string) {
	x.createOrder(no, func(r *orderv1.CreateOrderRequest) { r.Payee = "" })
	p := x.pay(no).GetPayment()
	if p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_CLOSED || len(p.GetCredential()) > 0 ||
		p.GetFailureCode() != "account_not_found" || !strings.Contains(p.GetFailureText(), misspelt) {
		x.T.Errorf("%v", p)
	}
}

// standard returns the merchant of the standard gateway, and the signer of its callbacks.
func (x *till) standard() (merchant string, signs *standardwebhooks.Webhook) {
	x.T.Helper()
	var f struct {
		Gateways []struct {
			Kind, Merchant string
			Secrets        []string
		}
	}
	text, err := os.ReadFile(x.settings)
	if err == nil {
		err = yaml.Unmarshal(text, &f)
	}
	for _, g := range f.Gateways {
		if err == nil && g.Kind == "standard" {
			merchant = g.Merchant
			signs, err = standardwebhooks.NewWebhook(g.Secrets[0])
		}
	}
	if err != nil {
		x.T.Fatal(err)
	}
	return merchant, signs
}

// formOpensAgain: the submit token of the page can be spent again after a decline.
func formOpensAgain(x *till, no string) {
	if x.kind != "stripe" && x.kind != "standard" {
		return // Alipay and WeChat Pay do not report declines
	}
	x.createOrder(no)
	tokens := new(idempotencyv1.IssueTokensResponse)
	x.OK("Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{}, tokens)
	header := []string{"Submit-Token", tokens.GetTokens()[0]}
	p := x.pay(no, header...).GetPayment()
	tell[fate](x, "POST", "/control/open/"+x.kind, p.GetCredential())
	if a := x.Call(servertest.ConnectJSON, "Payment.CreatePayment", x.payRequest(no),
		header...); a.Reason(x.T) != "TOKEN_SPENT" {
		x.T.Errorf("the form is submitted twice: %s", a.Raw)
	}
	x.act(no, fate{"do": "decline"})
	x.becomes(no, strings.Replace(isOpen, "SUBMITTED", "DECLINED", 1))
	if again := x.pay(no, header...); !again.GetExisted() || again.GetPayment().GetOutTradeNo() != no {
		x.T.Errorf("again: %v", again)
	}
}

// declined: the payer tries again, in the same payment. Alipay and WeChat Pay do not report declines.
func declined(x *till, no string) {
	x.opened(no)
	x.act(no, fate{"do": "decline", "code": "card_declined"})
	if x.kind == "stripe" || x.kind == "standard" {
		x.becomes(no, strings.Replace(isOpen, "SUBMITTED", "DECLINED", 1))
		if p := x.payment(no); !strings.HasPrefix(p.GetFailureCode(), "card_declined") {
			x.T.Errorf("declined for %s", p.GetFailureCode())
		}
	}
	if again := x.pay(no); !again.GetExisted() || again.GetPayment().GetOutTradeNo() != no {
		x.T.Errorf("again: %v", again)
	}
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	if p := x.payment(no); p.GetFailureCode() != "" {
		x.T.Errorf("paid, and declined for %s", p.GetFailureCode())
	}
}

func repeated(x *till, no string) {
	x.plan(no, fate{"copies": 3, "repeats": 2, "late": "50ms"})
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.stays(no, isPaid)
	n := 0
	for _, one := range x.notices(no) {
		if one.GetKind() == paymentv1.NoticeKind_NOTICE_KIND_PAID && one.GetCallback() {
			n++
		}
	}
	if n != 1 {
		x.T.Errorf("%d notices were kept", n)
	}
}

func (x *till) notices(no string) []*paymentv1.Notice {
	x.T.Helper()
	res := new(paymentv1.ListNoticesResponse)
	x.OK("Payment.ListNotices", &paymentv1.ListNoticesRequest{OutTradeNo: no}, res)
	return res.GetNotices()
}

// early: the callback comes before the gateway answers the call that starts the payment.
func early(x *till, no string) {
	x.plan(no, fate{"payer": "pay", "before_answer": true})
	x.order(no)
	x.becomes(no, isPaid)
	x.stays(no, isPaid)
}

// reordered: the notice of success comes before the one of the decline, or before a pending one.
func reordered(x *till, no string) {
	x.plan(no, fate{"hold": -1})
	x.opened(no)
	x.act(no, fate{"do": "decline"})
	x.act(no, fate{"do": "pay"})
	tell[any](x, "POST", "/control/release", fate{"number": no, "order": "reverse"})
	x.becomes(no, isPaid)
	x.stays(no, isPaid)
}

// wrong: the money is kept in suspense, and flagged. The order is not paid.
func wrong(x *till, no string) {
	kinds := map[string]paymentv1.FlagKind{"amount": paymentv1.FlagKind_FLAG_KIND_WRONG_AMOUNT,
		"seller":   paymentv1.FlagKind_FLAG_KIND_WRONG_MERCHANT,
		"currency": paymentv1.FlagKind_FLAG_KIND_WRONG_ASSET}
	if x.kind == "alipay" {
		delete(kinds, "currency") // its notices have no currency
	}
	for what, kind := range kinds {
		no := no + "_" + what
		x.plan(no, fate{"wrong": []string{what}})
		x.opened(no)
		x.act(no, fate{"do": "pay"})
		x.becomes(no, strings.Replace(isOpen, "SUBMITTED", "SUSPENDED", 1))
		if f := x.flag(no); f.GetKind() != kind || f.GetAccount() != "suspense:"+x.kind {
			x.T.Errorf("%s: %v", what, f)
		}
	}
}

// flag returns the only flag of a payment.
func (x *till) flag(no string) *paymentv1.Flag {
	x.T.Helper()
	res := new(paymentv1.ListFlagsResponse)
	x.OK("Payment.ListFlags", &paymentv1.ListFlagsRequest{PageSize: 1000}, res)
	found := slices.DeleteFunc(res.GetFlags(), func(f *paymentv1.Flag) bool { return f.GetOutTradeNo() != no })
	if len(found) != 1 {
		x.T.Fatalf("%s has %d flags: %v", no, len(found), found)
	}
	return found[0]
}

// second: the payer pays twice. The second transaction is flagged, and refunded.
func second(x *till, no string) {
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.act(no, fate{"do": "second"})
	x.quiet()
	x.stays(no, isPaid)
	f := x.flag(no)
	if f.GetKind() != paymentv1.FlagKind_FLAG_KIND_SECOND_TRANSACTION || f.GetAmount() != "12.30" {
		x.T.Errorf("%v", f)
	}
	x.OK("Payment.ResolveFlag", &paymentv1.ResolveFlagRequest{FlagId: f.GetId(), RefundNo: "back_" + no,
		Resolution: paymentv1.Resolution_RESOLUTION_REFUND}, new(paymentv1.ResolveFlagResponse))
	x.refundBecomes("back_"+no, paymentv1.RefundState_REFUND_STATE_SUCCEEDED)
	x.stays(no, isPaid)
	if got := x.taken(no); got != "24.60 12.30" {
		x.T.Errorf("the gateway has %s", got)
	}
}

// never: the callback is lost, and AskGateway finds the outcome.
func never(x *till, no string) {
	x.unheard(no)
	res := new(paymentv1.AskGatewayResponse)
	x.OK("Payment.AskGateway", &paymentv1.AskGatewayRequest{OutTradeNo: no}, res)
	if res.GetPayment().GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUCCEEDED {
		x.T.Errorf("the answer is %v", res)
	}
	x.becomes(no, isPaid)
	x.OK("Payment.AskGateway", &paymentv1.AskGatewayRequest{OutTradeNo: no}, res)
	x.stays(no, isPaid)
}

// polled: the callback is lost, and a server finds the outcome when its query is due.
func polled(x *till, no string) {
	x.unheard(no)
	x.due(no)
	x.becomes(no, isPaid)
}

func (x *till) unheard(no string) {
	x.T.Helper()
	x.plan(no, fate{"callback": "never"})
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.stays(no, isOpen)
}

// due makes the next call about a payment due now.
func (x *till) due(no string) {
	x.T.Helper()
	if _, err := x.Pool.Exec(context.Background(), "update payment_calls set next_call_at = now() where number = $1",
		no); err != nil {
		x.T.Fatal(err)
	}
}

// lost: the call that starts the payment takes effect, and its answer is lost. After a query of the gateway the payer
// can pay; there is never a second charge.
func lost(x *till, no string) {
	x.plan(no, fate{"api": fate{"create": fate{"do": "lost"}}})
	p := x.order(no)
	if p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_CREATED || len(p.GetCredential()) > 0 {
		x.T.Errorf("without an answer: %v", p)
	}
	res := new(paymentv1.AskGatewayResponse)
	x.OK("Payment.AskGateway", &paymentv1.AskGatewayRequest{OutTradeNo: no}, res)
	p = res.GetPayment()
	if p.GetState() != paymentv1.PaymentState_PAYMENT_STATE_SUBMITTED || len(p.GetCredential()) == 0 {
		x.T.Fatalf("the payer cannot pay: %v", p)
	}
	tell[fate](x, "POST", "/control/open/"+x.kind, p.GetCredential())
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	if got := x.taken(no); got != "12.30 0.00" {
		x.T.Errorf("the gateway has %s", got)
	}
	if n := len(tell[[]any](x, "GET", "/control/payments?gateway="+x.kind+"&number="+no, nil)); n != 1 {
		x.T.Errorf("the gateway has %d payments", n)
	}
}

// forged callbacks are refused, and nothing is kept of them.
func forged(x *till, no string) {
	x.opened(no)
	x.quiet()
	before := len(x.notices(no))
	x.forges(no, map[bool]int{true: http.StatusUnauthorized, false: http.StatusForbidden}[x.kind == "wechat"])
	if n := len(x.notices(no)); n != before {
		x.T.Errorf("%d notices more were kept", n-before)
	}
	x.stays(no, isOpen)
}

func (x *till) forges(no string, want int) {
	x.T.Helper()
	for _, how := range []string{"key", "none", "tampered", "old", "future", "probe"} {
		if x.kind == "alipay" && (how == "old" || how == "future") {
			continue // Alipay signs no time
		}
		if a := tell[struct{ Status int }](x, "POST", "/control/forge/"+x.kind+"/"+no,
			fate{"how": how}); a.Status != want {
			x.T.Errorf("forged by %s: %d", how, a.Status)
		}
	}
}

// refunded: a partial refund, then the rest, and no more.
func refunded(x *till, no string) {
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.refund(no, "part_"+no, "2.30")
	x.refundBecomes("part_"+no, paymentv1.RefundState_REFUND_STATE_SUCCEEDED)
	x.becomes(no, "SUCCEEDED paid SOLD 10.00")
	x.refund(no, "rest_"+no, "")
	x.refundBecomes("rest_"+no, paymentv1.RefundState_REFUND_STATE_SUCCEEDED)
	x.becomes(no, "SUCCEEDED refunded SOLD 0.00")
	x.quiet()
	if p := x.payment(no); p.GetRefundedAmount() != "12.30" || p.GetRefundingAmount() != "0.00" {
		x.T.Errorf("%v", p)
	}
	if got := x.taken(no); got != "12.30 12.30" {
		x.T.Errorf("the gateway has %s", got)
	}
	a := x.Call(servertest.ConnectJSON, "Payment.RefundPayment",
		&paymentv1.RefundPaymentRequest{RefundNo: "more_" + no, OutTradeNo: no,
			Amount: proto.String("0.01")})
	if a.Reason(x.T) != "REFUND_EXCEEDS_PAID" {
		x.T.Errorf("more: %s", a.Raw)
	}
}

// refundFails: the money is available again, and the order is paid as before.
func refundFails(x *till, no string) {
	x.plan(no, fate{"refund": "fail"})
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.refund(no, "fails_"+no, "")
	x.refundBecomes("fails_"+no, paymentv1.RefundState_REFUND_STATE_FAILED)
	x.becomes(no, isPaid)
	b := new(ledgerv1.GetBalanceResponse)
	x.OK("GetBalance", &ledgerv1.GetBalanceRequest{Account: &ledgerv1.AccountRef{Code: "payee:" + no, Asset: "CNY"}}, b)
	if b.GetAvailable() != "12.30" {
		x.T.Errorf("%v", b)
	}
	if got := x.taken(no); got != "12.30 0.00" {
		x.T.Errorf("the gateway has %s", got)
	}
}

// givenBackByHand: the merchant refunds in the gateway's console. The refund is flagged, with its amount, once.
func givenBackByHand(x *till, no string) {
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.act(no, fate{"do": "give_back", "amount": "2.30", "refund": "hand_" + no})
	x.quiet()
	x.stays(no, isPaid)
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_UNKNOWN_REFUND || f.GetAmount() != "2.30" {
		x.T.Errorf("%v", f)
	}
}

// byHandAndReturned: a console refund fails later. Its flag is withdrawn.
func byHandAndReturned(x *till, no string) {
	if x.kind == "alipay" {
		return // its notices do not report failed refunds
	}
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.act(no, fate{"do": "give_back", "amount": "2.30", "refund": "hand_" + no})
	x.quiet()
	if p := x.payment(no); p.GetRefundedAmount() != "2.30" {
		x.T.Errorf("given back are %s", p.GetRefundedAmount())
	}
	key := "hand_" + no
	if x.kind == "stripe" {
		if err := x.Pool.QueryRow(context.Background(), "select gateway_refund_id from payment_console_refunds "+
			"where out_trade_no = $1",
			no).Scan(&key); err != nil {
			x.T.Fatal(err)
		}
	}
	tell[fate](x, "POST", "/control/refunds/"+x.kind+"/"+key, fate{"do": "fail"})
	x.quiet()
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_UNKNOWN_REFUND ||
		f.GetResolution() != paymentv1.Resolution_RESOLUTION_WITHDRAWN {
		x.T.Errorf("%v", f)
	}
	if p := x.payment(no); p.GetRefundedAmount() != "0.00" {
		x.T.Errorf("given back are %s", p.GetRefundedAmount())
	}
}

// givenBackWithoutNumber: Alipay's notice of a console refund has no refund number. The query uses the payment's
// number.
func givenBackWithoutNumber(x *till, no string) {
	if x.kind != "alipay" {
		return
	}
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.act(no, fate{"do": "give_back", "amount": "2.30", "refund": no})
	x.quiet()
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_UNKNOWN_REFUND || f.GetAmount() != "2.30" {
		x.T.Errorf("%v", f)
	}
	// If the refund has a number that its notice lacks, the notice is acknowledged. Otherwise Alipay would redeliver it
	// for a day.
	no += "_2"
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.act(no, fate{"do": "give_back", "amount": "1.00", "refund": "unnamed_" + no})
	x.quiet()
	all := tell[[]map[string]any](x, "GET", "/control/notices?number="+no, nil)
	for _, n := range all {
		if n["acknowledged_at"] == nil {
			x.T.Errorf("not acknowledged: %v", n)
		}
	}
	if len(all) != 2 {
		x.T.Errorf("%d notices", len(all))
	}
}

// givenBackFirst: the gateway reports a console refund before the payment that it refunds.
func givenBackFirst(x *till, no string) {
	x.plan(no, fate{"hold": -1})
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.act(no, fate{"do": "give_back", "amount": "2.30", "refund": "hand_" + no})
	tell[any](x, "POST", "/control/release", fate{"number": no, "order": "reverse"})
	x.becomes(no, isPaid)
	x.quiet()
	if p := x.payment(no); p.GetRefundedAmount() != "2.30" {
		x.T.Errorf("given back are %s", p.GetRefundedAmount())
	}
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_UNKNOWN_REFUND || f.GetAmount() != "2.30" {
		x.T.Errorf("%v", f)
	}
}

// numberKnown: the gateway has already refunded under the number of a refund, and refuses another amount under it.
func numberKnown(x *till, no string) {
	if x.kind == "stripe" {
		return // its refunds have only its own numbers
	}
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.plan(no, fate{"hold": -1})
	x.act(no, fate{"do": "give_back", "amount": "2.00", "refund": "known_" + no})
	x.refund(no, "known_"+no, "3.00")
	x.refundBecomes("known_"+no, paymentv1.RefundState_REFUND_STATE_SUCCEEDED)
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_REFUND_RETURNED || f.GetAmount() != "1.00" {
		x.T.Errorf("%v", f)
	}
}

// numberTwice: refund numbers are unique only within a payment.
func numberTwice(x *till, no string) {
	if x.kind != "alipay" {
		return
	}
	for _, no := range []string{no, no + "_2"} {
		x.opened(no)
		x.act(no, fate{"do": "pay"})
		x.becomes(no, isPaid)
		x.act(no, fate{"do": "give_back", "amount": "2.30", "refund": "twice"})
		x.quiet()
		if p := x.payment(no); p.GetRefundedAmount() != "2.30" {
			x.T.Errorf("%s: given back are %s", no, p.GetRefundedAmount())
		}
	}
}

// returned: a refund fails after it succeeded. Its money is at the gateway again, and flagged.
func returned(x *till, no string) {
	if x.kind == "alipay" {
		return // its notices do not report failed refunds
	}
	x.opened(no)
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.refund(no, "back_"+no, "2.30")
	x.refundBecomes("back_"+no, paymentv1.RefundState_REFUND_STATE_SUCCEEDED)
	x.quiet()
	key := "back_" + no
	if x.kind == "stripe" {
		res := new(paymentv1.GetRefundResponse)
		x.OK("Payment.GetRefund", &paymentv1.GetRefundRequest{RefundNo: key}, res)
		key = res.GetRefund().GetGatewayRefundId()
	}
	tell[fate](x, "POST", "/control/refunds/"+x.kind+"/"+key, fate{"do": "fail"})
	x.quiet()
	f := x.flag(no)
	if f.GetKind() != paymentv1.FlagKind_FLAG_KIND_REFUND_RETURNED || f.GetAmount() != "2.30" {
		x.T.Fatalf("%v", f)
	}
	r := &paymentv1.ResolveFlagRequest{FlagId: f.GetId(), Resolution: paymentv1.Resolution_RESOLUTION_REFUND,
		RefundNo: "x"}
	if a := x.Call(servertest.ConnectJSON, "Payment.ResolveFlag", r); a.Reason(x.T) != "FIELD_INVALID" {
		x.T.Errorf("a refund of a refund: %s", a.Raw)
	}
	x.OK("Payment.ResolveFlag", &paymentv1.ResolveFlagRequest{FlagId: f.GetId(), Account: "payee:" + no,
		Resolution: paymentv1.Resolution_RESOLUTION_WRITE_OFF}, new(paymentv1.ResolveFlagResponse))
	x.stays(no, isPaid)
}

func (x *till) refund(no, refundNo, amount string) {
	x.T.Helper()
	r := &paymentv1.RefundPaymentRequest{RefundNo: refundNo, OutTradeNo: no, Reason: "broken"}
	if amount != "" {
		r.Amount = &amount
	}
	for _, existed := range []bool{false, true} {
		res := new(paymentv1.RefundPaymentResponse)
		if x.OK("Payment.RefundPayment", r, res); res.GetExisted() != existed {
			x.T.Errorf("%s: %v", refundNo, res)
		}
	}
}

func (x *till) refundBecomes(no string, want paymentv1.RefundState) {
	x.T.Helper()
	res := new(paymentv1.GetRefundResponse)
	end := time.Now().Add(20 * time.Second)
	for x.OK("Payment.GetRefund", &paymentv1.GetRefundRequest{RefundNo: no}, res); res.GetRefund().GetState() != want; {
		if time.Now().After(end) {
			x.T.Fatalf("%s is %v", no, res)
		}
		x.quiet()
		x.due(no)
		x.OK("Payment.GetRefund", &paymentv1.GetRefundRequest{RefundNo: no}, res)
	}
}

// cancelled: the trade is closed at the gateway too. Money that arrives nevertheless is flagged.
func cancelled(x *till, no string) {
	x.opened(no)
	x.OK("Order.CancelOrder", &orderv1.CancelOrderRequest{OrderNo: no}, new(orderv1.CancelOrderResponse))
	x.becomes(no, "CLOSED cancelled CANCELLED 0.00")
	if got := x.atGateway(no); got != "closed" {
		x.T.Errorf("at the gateway it is %s", got)
	}
	x.act(no, fate{"do": "pay", "force": true})
	x.becomes(no, "LATE cancelled CANCELLED 0.00")
	if f := x.flag(no); f.GetKind() != paymentv1.FlagKind_FLAG_KIND_LATE || f.GetAccount() != "suspense:"+x.kind {
		x.T.Errorf("%v", f)
	}
}

func (x *till) atGateway(no string) string {
	x.T.Helper()
	return tell[[]struct{ Status string }](x, "GET", "/control/payments?gateway="+x.kind+"&number="+no, nil)[0].Status
}

// expired: when the order's time to pay is over, the trade is closed at the gateway.
func expired(x *till, no string) {
	x.opened(no, func(r *orderv1.CreateOrderRequest) { r.PayWithin = durationpb.New(2 * time.Second) })
	x.becomes(no, "CLOSED cancelled EXPIRED 0.00")
	if got := x.atGateway(no); got != "closed" {
		x.T.Errorf("at the gateway it is %s", got)
	}
}

// relayed: callbacks arrive through HandleCallback.
func relayed(x *till, no string) {
	x.relayed.Store(x.kind, true)
	defer x.relayed.Delete(x.kind)
	x.opened(no)
	x.quiet()
	before := len(x.notices(no))
	x.forges(no, http.StatusForbidden)
	if n := len(x.notices(no)); n != before {
		x.T.Errorf("%d forged notices were kept", n-before)
	}
	x.act(no, fate{"do": "pay"})
	x.becomes(no, isPaid)
	x.quiet()
	for _, n := range x.notices(no) {
		if h := n.GetHeaders(); n.GetCallback() && (h["User-Agent"] == "" || h["Cookie"] != "") {
			x.T.Errorf("headers %v", h)
		}
	}
}
