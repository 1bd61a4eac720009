package rpc_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// Errors name the field as the caller spells it, the rule, and what to do.
func TestErrorsOfPaymentsNameTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.preparePayments("a")
	flag := &paymentv1.ResolveFlagRequest{FlagId: 1, Resolution: paymentv1.Resolution_RESOLUTION_WRITE_OFF}
	for _, x := range []struct {
		call, reason, names string
		r                   proto.Message
	}{
		{"PutGateway", "FIELD_INVALID", "gateway.suspense: must not be the clearing account",
			&paymentv1.PutGatewayRequest{
				Gateway: &paymentv1.Gateway{Gateway: "x", Clearing: "a", Suspense: "a", Payee: "b"}}},
		{"PutGateway", "FIELD_INVALID", "gateway.suspense: must not be the payee", &paymentv1.PutGatewayRequest{
			Gateway: &paymentv1.Gateway{Gateway: "x", Clearing: "a", Suspense: "b", Payee: "b"}}},
		{"PutGateway", "FIELD_INVALID", "gateway.payee: must be non-empty parts separated by colons",
			putGateway("x", "a", "a::b")},
		{"CreatePayment", "GATEWAY_NOT_FOUND", "no gateway none",
			&paymentv1.CreatePaymentRequest{OrderNo: "due-a", Gateway: "none"}},
		{"CreatePayment", "ORDER_NOT_FOUND", "no order none", createPayment("none", "")},
		{"CreatePayment", "OUT_TRADE_NO_TAKEN", `"outTradeNo"`, createPayment("due-a", "paid-a")},
		{"CreatePayment", "FIELD_INVALID", "outTradeNo: ", createPayment("due-a", "x")},
		{"CreatePayment", "FIELD_INVALID", "returnUrl: ",
			&paymentv1.CreatePaymentRequest{OrderNo: "due-a", Gateway: "till", ReturnUrl: "a\x01"}},
		{"CreatePayment", "FIELD_INVALID", "returnUrl: must be a URL that begins with",
			&paymentv1.CreatePaymentRequest{OrderNo: "due-a",
				Gateway: "till", ReturnUrl: "javascript:alert(1)"}},
		{"CreatePayment", "FIELD_INVALID", "payerIp: must be an IP address",
			&paymentv1.CreatePaymentRequest{OrderNo: "due-a",
				Gateway: "till", PayerIp: "localhost"}},
		{"CreatePayment", "FIELD_INVALID", `"messages[0].recipient"`, &paymentv1.CreatePaymentRequest{OrderNo: "due-a",
			Gateway: "till", Messages: []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS,
				Recipient:    "nope",
				BusinessType: "paid",
				Says:         &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "Thank you"}}}}}},
		{"RefundPayment", "PAYMENT_NOT_FOUND", "none-1", refundPayment("refund-1", "none-1", "")},
		{"RefundPayment", "AMOUNT_TOO_PRECISE", "0.001 has more decimals than COIN, which has 2",
			refundPayment("refund-1", "paid-a", "0.001")},
		{"RefundPayment", "FIELD_INVALID", "amount: must be greater than zero",
			refundPayment("refund-1", "paid-a", "0")},
		{"RefundPayment", "FIELD_INVALID", "amount: must be a decimal",
			&paymentv1.RefundPaymentRequest{RefundNo: "refund-1",
				OutTradeNo: "paid-a", Amount: proto.String("")}},
		{"ResolveFlag", "FIELD_INVALID", "account: must be set to write off", flag},
		{"ResolveFlag", "FIELD_INVALID", "refundNo: must be set to refund", &paymentv1.ResolveFlagRequest{FlagId: 1,
			Resolution: paymentv1.Resolution_RESOLUTION_REFUND}},
		{"ResolveFlag", "FIELD_INVALID", "RESOLUTION_WRITE_OFF",
			&paymentv1.ResolveFlagRequest{FlagId: 1, Resolution: 77}},
		{"ResolveFlag", "FIELD_INVALID", "resolution", &paymentv1.ResolveFlagRequest{FlagId: 1, Account: "a",
			Resolution: paymentv1.Resolution_RESOLUTION_WITHDRAWN}},
		{"ResolveFlag", "ACCOUNT_NOT_FOUND", `"account"`, resolveFlag("flag-sold-a", writeOff("nowhere"))},
		{"AskGateway", "GATEWAY_NOT_CONFIGURED", "till", &paymentv1.AskGatewayRequest{OutTradeNo: "paid-a"}},
		{"HandleCallback", "FIELD_INVALID", "headers.Note: must not contain a NUL", &paymentv1.HandleCallbackRequest{
			Gateway: "till", Headers: map[string]string{"Note": "a\x00"}}},
		{"ListFlags", "PAGE_TOKEN_INVALID", "pageToken", &paymentv1.ListFlagsRequest{PageToken: "x"}},
	} {
		for range 3 { // the order of the fields does not change
			a := c.call(connectJSON, "Payment."+x.call, x.r)
			if a.Reason(t) != x.reason || !strings.Contains(a.Message, x.names) &&
				!strings.Contains(string(a.Raw), x.names) {
				t.Errorf("%s: %s: %s, want %s: %s", x.call, a.Reason(t), a.Message, x.reason, x.names)
			}
		}
	}
}
