package alipay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// signed returns the parameters of a call, signed.
func (g *account) signed(method string, biz any, extra map[string]string, now time.Time) (url.Values, error) {
	text, err := json.Marshal(biz)
	if err != nil {
		return nil, gateway.Invalid(err)
	}
	form := map[string]string{"app_id": g.app, "method": method, "format": "JSON", "charset": "utf-8",
		"sign_type": "RSA2", "timestamp": now.In(china).Format(timeLayout), "version": "1.0",
		"biz_content": string(text)}
	for name, value := range extra {
		if value != "" {
			form[name] = value
		}
	}
	// Unlike that of notices, the signature of requests covers sign_type.
	signature, err := gateway.SignRSA(g.key, content(form, true))
	if err != nil {
		return nil, gateway.Invalid(errors.New("the request cannot be signed"))
	}
	values := url.Values{"sign": {signature}}
	for name, value := range form {
		values.Set(name, value)
	}
	return values, nil
}

// result is the part that all answers have.
type result struct {
	Code    string `json:"code"`
	SubCode string `json:"sub_code"`
	SubMsg  string `json:"sub_msg"`
}

// ask makes a call, and decodes its answer. The error has the sub_code.
func (g *account) ask(ctx context.Context, method string, biz any, extra map[string]string, into any) error {
	form, err := g.signed(method, biz, extra, time.Now())
	if err != nil {
		return err
	}
	a, err := g.Ask(ctx, &httpsend.Request{URL: g.URL + "?charset=utf-8", Body: []byte(form.Encode()),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}}})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return gateway.Failed(gateway.ByStatus(a.Status, false), "alipay", "http_"+strconv.Itoa(a.Status), "", a)
	}
	var said map[string]json.RawMessage
	if err := json.Unmarshal(a.Body, &said); err != nil {
		return gateway.BadAnswer("alipay", "the answer is not JSON")
	}
	var signature string
	_ = json.Unmarshal(said["sign"], &signature)
	body := said[strings.ReplaceAll(method, ".", "_")+"_response"]
	if body == nil {
		body = said["error_response"]
	}
	var r result
	if err := json.Unmarshal(body, &r); err != nil || r.Code == "" {
		return gateway.BadAnswer("alipay", "the answer has no result")
	}
	// Refusals of the request itself, such as an unknown app, come without a signature.
	if !g.verifies(body, signature) && (r.Code == "10000" || r.Code == "40004") {
		return gateway.BadAnswer("alipay", "the answer is not signed by one of public_keys")
	}
	if r.Code == "10000" {
		if err := json.Unmarshal(body, into); err != nil {
			return gateway.BadAnswer("alipay", "the answer is not in the format of the call")
		}
		return nil
	}
	return r.failed(a)
}

// ours are codes of refusals with a cause on the merchant's side, such as a wrong key, a missing permission or too low
// a balance. They say nothing about the state of the payment.
var ours = map[string]bool{"ACQ.SELLER_BALANCE_NOT_ENOUGH": true, "ACQ.ACCESS_FORBIDDEN": true,
	"isv.app-call-limited": true, "isv.invalid-app-id": true, "isv.missing-app-id": true, "isv.invalid-signature": true,
	"isv.missing-signature": true, "isv.missing-signature-key": true, "isv.invalid-signature-type": true,
	"isv.missing-signature-type": true, "isv.invalid-timestamp": true, "isv.missing-timestamp": true}

func (r *result) failed(a *httpsend.Answer) error {
	sub := strings.TrimPrefix(r.SubCode, "aop.")
	outcome := gateway.Refused
	switch {
	case sub == "ACQ.TRADE_NOT_EXIST":
		return gateway.ErrNoTrade
	case r.Code == "20000", r.Code == "10003", sub == "ACQ.SYSTEM_ERROR", sub == "SYSTEM_ERROR":
		outcome = gateway.Unknown
	case r.Code == "40005", r.Code == "40006", r.Code == "20001", ours[sub]:
		outcome = gateway.NotSent
	case !strings.HasPrefix(r.Code, "400"):
		outcome = gateway.Unknown // a code of later versions
	}
	if sub == "" {
		sub = r.Code
	}
	return gateway.Failed(outcome, "alipay", sub, r.SubMsg, a)
}

// trade is the content of the calls about payments.
type trade struct {
	OutTradeNo string `json:"out_trade_no"`
	Amount     string `json:"total_amount,omitempty"`
	Subject    string `json:"subject,omitempty"`
	Product    string `json:"product_code,omitempty"`
	TimeExpire string `json:"time_expire,omitempty"`
	SellerID   string `json:"seller_id,omitempty"`
	QuitURL    string `json:"quit_url,omitempty"`
}

// Create signs a request that the payer's client sends, or, for precreate, sends it. Alipay has no payment before the
// payer signs in: until then Query and Close return ErrNoTrade.
func (g *account) Create(ctx context.Context, p *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	if err := check(p); err != nil {
		return nil, gateway.Notice{}, gateway.Invalid(err)
	}
	t, _ := gateway.CheckPayType(p.PayType, payTypes) // checked
	method := methods[t.Name]
	biz := &trade{OutTradeNo: p.OutTradeNo, Amount: yuan(p.Amount), Subject: p.Description, Product: method[1]}
	if biz.Subject == "" {
		biz.Subject = p.OutTradeNo
	}
	if !p.ExpiresAt.IsZero() {
		biz.TimeExpire = p.ExpiresAt.In(china).Format(timeLayout)
	}
	extra := map[string]string{"notify_url": g.NotifyURL}
	pending := gateway.Notice{ID: gateway.AnswerID("create", gateway.Pending, p.OutTradeNo), Kind: gateway.Pending,
		OutTradeNo: p.OutTradeNo, Amount: p.Amount, Currency: p.Currency}
	if !t.Instant {
		biz.SellerID = g.seller
		var got struct {
			QRCode string `json:"qr_code"`
		}
		err := g.ask(ctx, method[0], biz, extra, &got)
		switch {
		case err != nil:
			n, err := gateway.AfterRefusedCreate(err,
				func() (gateway.Notice, error) { return g.state(ctx, "create", p) })
			return nil, n, err
		case got.QRCode == "":
			return nil, gateway.Notice{}, gateway.BadAnswer("alipay", "the answer has no qr_code")
		}
		return gateway.Credential{"qr_code": got.QRCode}, pending, nil
	}
	if t.Name != "app" {
		extra["return_url"] = p.ReturnURL
	}
	if t.Name == "wap" {
		biz.QuitURL = p.ReturnURL
	}
	form, err := g.signed(method[0], biz, extra, time.Now())
	if err != nil {
		return nil, gateway.Notice{}, err
	}
	if t.Name == "app" {
		return gateway.Credential{"order_string": form.Encode()}, pending, nil
	}
	return gateway.Credential{"form_url": g.URL + "?" + form.Encode()}, pending, nil
}

// yuan returns a checked amount with two decimals.
func yuan(d amount.Decimal) string {
	n, _ := d.Minor(decimals)
	return string(amount.AppendFormat(nil, n, decimals))
}

// Query returns the state of a payment.
func (g *account) Query(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	return g.state(ctx, "query", p)
}

func (g *account) state(ctx context.Context, call string, p *gateway.Payment) (gateway.Notice, error) {
	var got struct {
		OutTradeNo  string `json:"out_trade_no"`
		TradeNo     string `json:"trade_no"`
		TradeStatus string `json:"trade_status"`
		TotalAmount string `json:"total_amount"`
		Currency    string `json:"trans_currency"`
		PaidAt      string `json:"send_pay_date"`
	}
	if err := g.ask(ctx, "alipay.trade.query", &trade{OutTradeNo: p.OutTradeNo}, nil, &got); err != nil {
		return gateway.Notice{}, err
	}
	n := gateway.Notice{Kind: states[got.TradeStatus], OutTradeNo: got.OutTradeNo, TransactionID: got.TradeNo,
		Currency: currency(got.Currency), At: timeOf(got.PaidAt)}
	var err error
	if n.Amount, err = money(got.TotalAmount); err != nil || n.Kind == "" {
		return n, gateway.BadAnswer("alipay", "the answer has an unknown trade_status or total_amount")
	}
	if n.Kind == gateway.Closed && got.PaidAt != "" {
		n.Code, n.Text = gateway.CodeRefunded, "was paid, and refunded in full"
	}
	n.ID = gateway.AnswerID(call, n.Kind, n.OutTradeNo, n.TransactionID)
	return n, nil
}

// Close closes a payment that is not paid.
func (g *account) Close(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	var got struct{}
	err := g.ask(ctx, "alipay.trade.close", &trade{OutTradeNo: p.OutTradeNo}, nil, &got)
	return gateway.AfterClose(p, err, func() (gateway.Notice, error) { return g.state(ctx, "close", p) })
}

// refundOrder is the content of the calls about refunds.
type refundOrder struct {
	OutTradeNo   string `json:"out_trade_no"`
	TradeNo      string `json:"trade_no,omitempty"`
	Amount       string `json:"refund_amount,omitempty"`
	OutRequestNo string `json:"out_request_no"`
	Reason       string `json:"refund_reason,omitempty"`
}

const maxReason = 256

// Refund requests a refund. fund_change tells whether this call moved money. A repeat moves none, so its notice is
// RefundPending, and the caller has to query. refund_fee in the answer is the sum of all refunds, so it is not read.
func (g *account) Refund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	if err := gateway.CheckNumber("refund_no", r.RefundNo, "_-", 64); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	if _, err := gateway.Minor("amount", r.Amount, decimals); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	var got struct {
		OutTradeNo string `json:"out_trade_no"`
		TradeNo    string `json:"trade_no"`
		FundChange string `json:"fund_change"`
	}
	if err := g.ask(ctx, "alipay.trade.refund", &refundOrder{OutTradeNo: r.OutTradeNo, TradeNo: r.TransactionID,
		Amount: yuan(r.Amount), OutRequestNo: r.RefundNo, Reason: httpsend.Cut(r.Reason, maxReason)}, nil,
		&got); err != nil {
		return gateway.Notice{}, err
	}
	n := gateway.Notice{Kind: gateway.RefundPending, OutTradeNo: got.OutTradeNo, TransactionID: got.TradeNo,
		RefundNo: r.RefundNo, Amount: r.Amount, Currency: r.Currency}
	if got.FundChange == "Y" {
		n.Kind = gateway.Refunded
	}
	n.ID = gateway.AnswerID("refund", n.Kind, r.RefundNo)
	return n, nil
}

// QueryRefund returns the state of a refund. An answer without refund_status means that there is none, or that it
// failed: Refund may be repeated with the same number.
func (g *account) QueryRefund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	var got struct {
		OutTradeNo   string `json:"out_trade_no"`
		TradeNo      string `json:"trade_no"`
		OutRequestNo string `json:"out_request_no"`
		Amount       string `json:"refund_amount"`
		Status       string `json:"refund_status"`
		RefundedAt   string `json:"gmt_refund_pay"`
	}
	if err := g.ask(ctx, "alipay.trade.fastpay.refund.query", &struct {
		refundOrder
		Options []string `json:"query_options"`
	}{refundOrder{OutTradeNo: r.OutTradeNo, TradeNo: r.TransactionID, OutRequestNo: r.RefundNo},
		[]string{"gmt_refund_pay"}}, nil, &got); err != nil {
		return gateway.Notice{}, err
	}
	if got.Status == "" {
		return gateway.Notice{}, gateway.ErrNoTrade
	}
	n := gateway.Notice{Kind: gateway.RefundPending, OutTradeNo: got.OutTradeNo, TransactionID: got.TradeNo,
		RefundNo: got.OutRequestNo, Currency: r.Currency, At: timeOf(got.RefundedAt)}
	if got.Status == "REFUND_SUCCESS" {
		n.Kind = gateway.Refunded
	}
	var err error
	if n.Amount, err = money(got.Amount); err != nil {
		return n, gateway.BadAnswer("alipay", "the answer has no refund_amount")
	}
	n.ID = gateway.AnswerID("query_refund", n.Kind, r.OutTradeNo, n.RefundNo, n.Amount.String()) // unique in a trade
	return n, nil
}
