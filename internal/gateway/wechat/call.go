package wechat

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// china is the time zone in which WeChat Pay writes times.
var china = time.FixedZone("UTC+8", 8*60*60)

// authorize returns the Authorization header of a request. uri is path and query.
func (g *account) authorize(method, uri, stamp, nonce string, body []byte) (string, error) {
	signature, err := g.sign(method, uri, stamp, nonce, string(body))
	return fmt.Sprintf(`WECHATPAY2-SHA256-RSA2048 mchid="%s",nonce_str="%s",timestamp="%s",serial_no="%s",`+
		`signature="%s"`,
		g.mchid, nonce, stamp, g.serial, signature), err
}

// sign signs lines, each ended by a line feed.
func (g *account) sign(lines ...string) (string, error) {
	var text []byte
	for _, line := range lines {
		text = append(append(text, line...), '\n')
	}
	return gateway.SignRSA(g.key, text)
}

// apiError is the body of an error.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

var (
	absent = map[string]bool{"ORDER_NOT_EXIST": true, "ORDERNOTEXIST": true, "RESOURCE_NOT_EXISTS": true}
	// later are transient refusals: the request had no effect, and may succeed later.
	later = map[string]bool{"NOT_ENOUGH": true, "FREQUENCY_LIMITED": true, "FREQUENCY_LIMIT_EXCEED": true,
		"RATELIMIT_EXCEEDED": true}
	// unsure are errors after which the state has to be queried, even if the status is 4xx.
	unsure = map[string]bool{"SYSTEM_ERROR": true, "SYSTEMERROR": true, "BIZERR_NEED_RETRY": true,
		"BIZ_ERR_NEED_RETRY": true, "TRADE_ERROR": true}
)

// ask makes a request, verifies its answer, and decodes it. It returns the provider's error code too.
func (g *account) ask(ctx context.Context, method, path string, query url.Values, body, into any) (string, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return "", gateway.Invalid(err)
		}
	}
	u, err := url.Parse(g.URL + path)
	if err != nil {
		return "", gateway.Invalid(errors.New("the URL cannot be built"))
	}
	u.RawQuery = query.Encode()
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	authorization, err := g.authorize(method, u.RequestURI(), stamp, rand.Text(), text)
	if err != nil {
		return "", gateway.Invalid(errors.New("the request cannot be signed"))
	}
	r := &httpsend.Request{Method: method, URL: u.String(), Body: text, Header: http.Header{
		"Authorization": {authorization}, "Accept": {"application/json"}, "Content-Type": {"application/json"}}}
	if g.keyID != "" {
		r.Header.Set("Wechatpay-Serial", g.keyID)
	}
	a, err := g.Ask(ctx, r)
	if err != nil {
		return "", err
	}
	ok := a.Status >= 200 && a.Status < 300
	if ok || a.Status == http.StatusNotFound {
		if err := g.verify(a.Header, a.Body, time.Now()); err != nil {
			return "", gateway.BadAnswer("wechat", "the answer is not signed by WeChat Pay: "+err.Error())
		}
	}
	if ok {
		if into != nil && json.Unmarshal(a.Body, into) != nil {
			return "", gateway.BadAnswer("wechat", "the answer is not the JSON of the call")
		}
		return "", nil
	}
	return refused(a)
}

func refused(a *httpsend.Answer) (string, error) {
	var e apiError
	_ = json.Unmarshal(a.Body, &e) // an error without a body has a status
	outcome := gateway.ByStatus(a.Status, e.Code != "")
	if a.Status == http.StatusForbidden && e.Code != "" && e.Code != "NO_AUTH" {
		outcome = gateway.Refused // a business rule, not a missing permission
	}
	switch {
	case a.Status == http.StatusNotFound && absent[e.Code]:
		return e.Code, gateway.ErrNoTrade
	case later[e.Code]:
		outcome = gateway.NotSent
	case unsure[e.Code]:
		outcome = gateway.Unknown
	case e.Code == "":
		e.Code = "http_" + strconv.Itoa(a.Status)
	}
	return e.Code, gateway.Failed(outcome, "wechat", e.Code, e.Message, a)
}

type amountOf struct {
	Total    json.Number `json:"total,omitempty"`
	Refund   json.Number `json:"refund,omitempty"`
	Currency string      `json:"currency"`
}

type payer struct {
	OpenID string `json:"openid"`
}

type scene struct {
	PayerIP string            `json:"payer_client_ip"`
	H5      map[string]string `json:"h5_info,omitempty"`
}

type order struct {
	AppID       string   `json:"appid"`
	MchID       string   `json:"mchid"`
	Description string   `json:"description"`
	OutTradeNo  string   `json:"out_trade_no"`
	TimeExpire  string   `json:"time_expire,omitempty"`
	NotifyURL   string   `json:"notify_url"`
	Amount      amountOf `json:"amount"`
	Payer       *payer   `json:"payer,omitempty"`
	Scene       *scene   `json:"scene_info,omitempty"`
}

// Create makes a prepaid order. A repeat with the same content returns a new way to pay the same order.
func (g *account) Create(ctx context.Context, p *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	if err := check(p); err != nil {
		return nil, gateway.Notice{}, gateway.Invalid(err)
	}
	t, _ := gateway.CheckPayType(p.PayType, payTypes) // checked
	total, _ := gateway.Minor("amount", p.Amount, decimals)
	o := &order{AppID: g.appids[t.Name], MchID: g.mchid, Description: p.Description, OutTradeNo: p.OutTradeNo,
		NotifyURL: g.NotifyURL, Amount: amountOf{Total: json.Number(total), Currency: p.Currency}}
	if o.Description == "" {
		o.Description = p.OutTradeNo
	}
	if !p.ExpiresAt.IsZero() {
		o.TimeExpire = p.ExpiresAt.In(china).Format(time.RFC3339)
	}
	if p.PayerIP != "" {
		o.Scene = &scene{PayerIP: p.PayerIP}
	}
	switch t.Name {
	case "jsapi":
		o.Payer = &payer{p.Payer}
	case "h5":
		o.Scene.H5 = map[string]string{"type": "Wap"}
	}
	var got prepaid
	if _, err := g.ask(ctx, http.MethodPost, "/v3/pay/transactions/"+t.Name, nil, o, &got); err != nil {
		n, err := gateway.AfterRefusedCreate(err,
			func() (gateway.Notice, error) { return g.state(ctx, "create", p) })
		return nil, n, err
	}
	c, err := g.credential(t.Name, &got, p)
	return c, gateway.Notice{ID: gateway.AnswerID("create", gateway.Pending, p.OutTradeNo), Kind: gateway.Pending,
		OutTradeNo: p.OutTradeNo, Amount: p.Amount, Currency: p.Currency}, err
}

type prepaid struct {
	PrepayID string `json:"prepay_id"`
	CodeURL  string `json:"code_url"`
	H5URL    string `json:"h5_url"`
}

// credential returns what the payer's client needs, with the names that WeChat's clients use.
func (g *account) credential(payType string, got *prepaid, p *gateway.Payment) (gateway.Credential, error) {
	appid, stamp, nonce := g.appids[payType], strconv.FormatInt(time.Now().Unix(), 10), rand.Text()
	missing := gateway.BadAnswer("wechat", "the answer has nothing to pay with")
	switch payType {
	case "native":
		if got.CodeURL == "" {
			return nil, missing
		}
		return gateway.Credential{"code_url": got.CodeURL}, nil
	case "h5":
		if got.H5URL == "" {
			return nil, missing
		}
		if p.ReturnURL != "" {
			got.H5URL += "&redirect_url=" + url.QueryEscape(p.ReturnURL)
		}
		return gateway.Credential{"h5_url": got.H5URL}, nil
	}
	if got.PrepayID == "" {
		return nil, missing
	}
	if payType == "app" {
		signature, err := g.sign(appid, stamp, nonce, got.PrepayID)
		return gateway.Credential{"appid": appid, "partnerid": g.mchid, "prepayid": got.PrepayID,
			"package": "Sign=WXPay", "noncestr": nonce, "timestamp": stamp, "sign": signature}, err
	}
	pack := "prepay_id=" + got.PrepayID
	signature, err := g.sign(appid, stamp, nonce, pack)
	return gateway.Credential{"appId": appid, "timeStamp": stamp, "nonceStr": nonce, "package": pack,
		"signType": "RSA", "paySign": signature}, err
}

// Query returns the state of an order.
func (g *account) Query(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	return g.state(ctx, "query", p)
}

func (g *account) state(ctx context.Context, call string, p *gateway.Payment) (gateway.Notice, error) {
	var t transaction
	if _, err := g.ask(ctx, http.MethodGet, "/v3/pay/transactions/out-trade-no/"+url.PathEscape(p.OutTradeNo),
		url.Values{"mchid": {g.mchid}}, nil, &t); err != nil {
		return gateway.Notice{}, err
	}
	n, err := g.transaction(&t)
	if err != nil {
		return n, err
	}
	if t.Amount.Total == 0 { // only paid orders have an amount in the answer
		n.Currency = ""
	}
	n.ID = gateway.AnswerID(call, n.Kind, n.OutTradeNo, n.TransactionID)
	return n, nil
}

// Close closes an order.
func (g *account) Close(ctx context.Context, p *gateway.Payment) (gateway.Notice, error) {
	path := "/v3/pay/transactions/out-trade-no/" + url.PathEscape(p.OutTradeNo) + "/close"
	_, err := g.ask(ctx, http.MethodPost, path, nil,
		map[string]string{"mchid": g.mchid}, nil)
	return gateway.AfterClose(p, err, func() (gateway.Notice, error) { return g.state(ctx, "close", p) })
}

type refundOrder struct {
	TransactionID string   `json:"transaction_id,omitempty"`
	OutTradeNo    string   `json:"out_trade_no,omitempty"`
	OutRefundNo   string   `json:"out_refund_no"`
	Reason        string   `json:"reason,omitempty"`
	NotifyURL     string   `json:"notify_url"`
	Amount        amountOf `json:"amount"`
}

const maxReason = 80 // bytes

// Refund requests a refund.
func (g *account) Refund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	if err := gateway.CheckNumber("refund_no", r.RefundNo, "_-|*@", 64); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	part, err := gateway.Minor("amount", r.Amount, decimals)
	total, err2 := gateway.Minor("paid", r.Paid, decimals)
	if err := errors.Join(err, err2); err != nil {
		return gateway.Notice{}, gateway.Invalid(err)
	}
	o := &refundOrder{TransactionID: r.TransactionID, OutRefundNo: r.RefundNo, NotifyURL: g.NotifyURL,
		Reason: httpsend.Cut(r.Reason, maxReason),
		Amount: amountOf{Refund: json.Number(part), Total: json.Number(total), Currency: r.Currency}}
	if o.TransactionID == "" {
		o.OutTradeNo = r.OutTradeNo
	}
	var got refund
	if _, err := g.ask(ctx, http.MethodPost, "/v3/refund/domestic/refunds", nil, o, &got); err != nil {
		return gateway.Notice{}, err
	}
	return refundAnswer("refund", &got)
}

// QueryRefund returns the state of a refund.
func (g *account) QueryRefund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	var got refund
	if _, err := g.ask(ctx, http.MethodGet, "/v3/refund/domestic/refunds/"+url.PathEscape(r.RefundNo), nil, nil,
		&got); err != nil {
		return gateway.Notice{}, err
	}
	return refundAnswer("query_refund", &got)
}

func refundAnswer(call string, r *refund) (gateway.Notice, error) {
	n := r.notice()
	if n.Kind == "" {
		return n, gateway.BadAnswer("wechat", "the answer has an unknown status")
	}
	n.ID = gateway.AnswerID(call, n.Kind, n.RefundNo, n.GatewayRefundID, n.Amount.String())
	return n, nil
}
