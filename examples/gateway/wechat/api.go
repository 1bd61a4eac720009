package wechat

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// Routes adds the API.
func (g *Gateway) Routes(mux *http.ServeMux) {
	for payType := range tradeTypes {
		mux.HandleFunc("POST /v3/pay/transactions/"+payType, g.handle("create", func(c *call) book.Answer {
			return g.create(c, payType)
		}))
	}
	mux.HandleFunc("GET /v3/pay/transactions/out-trade-no/{number}", g.handle("query", g.query))
	mux.HandleFunc("GET /v3/pay/transactions/id/{id}", g.handle("query", g.query))
	mux.HandleFunc("POST /v3/pay/transactions/out-trade-no/{number}/close", g.handle("close", g.close))
	mux.HandleFunc("POST /v3/refund/domestic/refunds", g.handle("refund", g.refund))
	mux.HandleFunc("GET /v3/refund/domestic/refunds/{refund}", g.handle("query_refund", g.queryRefund))
	mux.HandleFunc("GET /v3/certificates", g.handle("certificates", g.certificates))
}

// call is a request; its fields are those of all requests.
type call struct {
	r    *http.Request
	Body struct {
		AppID       string `json:"appid"`
		MchID       string `json:"mchid"`
		Description string `json:"description"`
		OutTradeNo  string `json:"out_trade_no"`
		TimeExpire  string `json:"time_expire"`
		Attach      string `json:"attach"`
		NotifyURL   string `json:"notify_url"`
		Amount      struct {
			Total    int64  `json:"total"`
			Refund   int64  `json:"refund"`
			Currency string `json:"currency"`
		} `json:"amount"`
		Payer struct {
			OpenID string `json:"openid"`
		} `json:"payer"`
		SceneInfo struct {
			PayerClientIP string `json:"payer_client_ip"`
			H5Info        struct {
				Type string `json:"type"`
			} `json:"h5_info"`
		} `json:"scene_info"`
		TransactionID string `json:"transaction_id"`
		OutRefundNo   string `json:"out_refund_no"`
		Reason        string `json:"reason"`
	}
}

func answer(status int, o object) book.Answer {
	a := book.Answer{Status: status, Header: http.Header{"Request-Id": {book.Alnum(32)}}}
	if status == http.StatusNoContent {
		return a
	}
	body, err := marshal(o)
	if err != nil {
		panic(err)
	}
	a.Body = body
	a.Header.Set("Content-Type", "application/json; charset=utf-8")
	return a
}

func fail(status int, code, message string) book.Answer {
	return answer(status, object{"code": code, "message": message})
}

func overloaded(status int) book.Answer {
	if status == http.StatusTooManyRequests {
		return fail(status, "FREQUENCY_LIMITED", "频率超限")
	}
	return fail(status, "SYSTEM_ERROR", "系统异常，请稍后重试")
}

func (g *Gateway) handle(operation string, f func(*call) book.Answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{r: r}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		b := book.Call{Gateway: name, Operation: operation, Fail: overloaded,
			Effect: func() book.Answer { return f(c) }}
		// The public key signs for every merchant that names it, even while certificates are in use.
		byCertificate := g.Certificates && r.Header.Get("Wechatpay-Serial") != g.Keys.PublicKeyID
		b.Sign = func(a *book.Answer, f book.Forgery) {
			if a.Header == nil {
				a.Header = http.Header{}
			}
			g.sign(a.Header, a.Body, time.Now(), f, byCertificate)
		}
		refused := func(a book.Answer) { b.Effect = func() book.Answer { return a } }
		unsigned := g.authorize(r, body)
		switch {
		case err != nil:
			refused(fail(http.StatusBadRequest, "PARAM_ERROR", "请求过大"))
		case unsigned != nil:
			refused(fail(http.StatusUnauthorized, "SIGN_ERROR", unsigned.Error()))
			b.Sign = nil
		case !strings.Contains(r.Header.Get("Accept"), "application/json"):
			refused(fail(http.StatusNotAcceptable, "PARAM_ERROR", "Accept 必须为 application/json"))
		case len(body) > 0 && json.Unmarshal(body, &c.Body) != nil:
			refused(fail(http.StatusBadRequest, "PARAM_ERROR", "请求不是合法的 JSON"))
		case !g.ours(c):
			refused(fail(http.StatusBadRequest, "APPID_MCHID_NOT_MATCH", "商户号与 appid 不匹配"))
		default:
			b.Number = g.number(c)
		}
		g.Book.Serve(w, r, b)
	}
}

// ours reports whether a request is for this merchant and application.
func (g *Gateway) ours(c *call) bool {
	mchid := c.Body.MchID + c.r.URL.Query().Get("mchid")
	needed := strings.HasPrefix(c.r.URL.Path, "/v3/pay/")
	return (mchid == g.Keys.MchID || (mchid == "" && !needed)) && (c.Body.AppID == "" || c.Body.AppID == g.Keys.AppID)
}

func (g *Gateway) number(c *call) string {
	if p, _ := g.find(c); p != nil {
		return p.Number
	}
	if r, err := g.Book.FindRefund(name, c.r.PathValue("refund")); err == nil {
		return r.Payment
	}
	return c.Body.OutTradeNo + c.r.PathValue("number")
}

// find returns the payment and the transaction that a call names.
func (g *Gateway) find(c *call) (*book.Payment, *book.Transaction) {
	if id := c.Body.TransactionID + c.r.PathValue("id"); id != "" {
		p, err := g.Book.ByTransaction(name, id)
		if err != nil {
			return nil, nil
		}
		return p, p.Transaction(id)
	}
	p, err := g.Book.Payment(name, c.Body.OutTradeNo+c.r.PathValue("number"))
	if err != nil {
		return nil, nil
	}
	return p, p.First()
}

var numbers = regexp.MustCompile(`^[0-9A-Za-z_|*-]{6,32}$`)

// param returns the name of an invalid parameter of a payment, or "".
func (c *call) param(g *Gateway, payType string) string {
	b := &c.Body
	at, err := time.Parse(time.RFC3339, b.TimeExpire)
	switch {
	case b.AppID != g.Keys.AppID:
		return "appid"
	case !numbers.MatchString(b.OutTradeNo):
		return "out_trade_no"
	case b.Description == "" || len(b.Description) > 127:
		return "description"
	case b.Amount.Total < 1:
		return "amount.total"
	case b.Amount.Currency != "" && b.Amount.Currency != "CNY":
		return "amount.currency"
	case !strings.HasPrefix(b.NotifyURL, "http") || strings.Contains(b.NotifyURL, "?"):
		return "notify_url"
	case b.TimeExpire != "" && (err != nil || at.Before(time.Now())):
		return "time_expire"
	case payType == "jsapi" && b.Payer.OpenID == "":
		return "payer.openid"
	case payType == "h5" && (b.SceneInfo.PayerClientIP == "" || b.SceneInfo.H5Info.Type == ""):
		return "scene_info"
	}
	return ""
}

func (g *Gateway) create(c *call, payType string) book.Answer {
	if wrong := c.param(g, payType); wrong != "" {
		return fail(http.StatusBadRequest, "PARAM_ERROR", "参数错误: "+wrong)
	}
	b := &c.Body
	expires, _ := time.Parse(time.RFC3339, b.TimeExpire)
	p, existed, err := g.Book.Create(book.Payment{Gateway: name, Key: b.OutTradeNo, Number: b.OutTradeNo,
		PayType: payType, Amount: b.Amount.Total, Scale: 2, Currency: "CNY", ExpiresAt: expires,
		Description: b.Description, Payer: b.Payer.OpenID, NotifyURL: b.NotifyURL,
		Secret: "wx" + time.Now().In(beijing).Format("20060102150405") + book.Alnum(20)}, "")
	switch {
	case errors.Is(err, book.ErrDifferent), existed && p.PayType != payType:
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "请求重入时，参数与首次请求时不一致")
	case existed && p.Status == book.Paid:
		return fail(http.StatusBadRequest, "ORDERPAID", "该订单已支付")
	case existed && p.Status == book.Closed:
		return fail(http.StatusBadRequest, "ORDER_CLOSED", "订单已关闭")
	}
	g.Book.Play(c.r.Context(), p)
	switch payType {
	case "native":
		return answer(http.StatusOK, object{"code_url": "weixin://wxpay/bizpayurl?pr=" + p.Secret})
	case "h5":
		link := g.URL + "/pay/wechat?prepay_id=" + p.Secret + "&package=" + book.Digits(10)
		return answer(http.StatusOK, object{"h5_url": link})
	}
	return answer(http.StatusOK, object{"prepay_id": p.Secret})
}

func (g *Gateway) query(c *call) book.Answer {
	p, t := g.find(c)
	if p == nil {
		return fail(http.StatusNotFound, "ORDER_NOT_EXIST", "订单不存在")
	}
	o := g.transaction(p, t)
	if t != nil && slices.ContainsFunc(g.Book.Refunds(name, p.Key), func(r *book.Refund) bool {
		return r.Transaction == t.ID && r.Status != book.RefundFailed
	}) {
		o["trade_state"], o["trade_state_desc"] = "REFUND", "订单发生过退款"
	}
	return answer(http.StatusOK, o)
}

func (g *Gateway) close(c *call) book.Answer {
	p, _ := g.find(c)
	if p == nil {
		return fail(http.StatusNotFound, "ORDER_NOT_EXIST", "订单不存在")
	}
	_, err := g.Book.Act(name, p.Key, book.Act{Do: "close"})
	var state *book.StateError
	if errors.As(err, &state) {
		switch state.Status {
		case book.Paid:
			return fail(http.StatusBadRequest, "ORDERPAID", "该订单已支付")
		case book.Processing:
			return fail(http.StatusAccepted, "USERPAYING", "用户支付中，需要输入密码")
		case book.Unopened, book.Payable, book.Declined, book.Closed:
		}
	}
	return answer(http.StatusNoContent, nil)
}

func (g *Gateway) refund(c *call) book.Answer {
	b := &c.Body
	p, t := g.find(c)
	switch {
	case p == nil:
		return fail(http.StatusNotFound, "RESOURCE_NOT_EXISTS", "订单不存在")
	case b.OutRefundNo == "" || len(b.OutRefundNo) > 64:
		return fail(http.StatusBadRequest, "PARAM_ERROR", "参数错误: out_refund_no")
	case len(b.Reason) > 80*4:
		return fail(http.StatusBadRequest, "PARAM_ERROR", "参数错误: reason")
	case t == nil:
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "订单未支付")
	case b.Amount.Total != t.Amount || b.Amount.Refund < 1:
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "订单金额或退款金额与之前请求不一致")
	case b.Amount.Currency != t.Currency:
		return fail(http.StatusBadRequest, "PARAM_ERROR", "参数错误: amount.currency")
	}
	r, _, err := g.Book.Refund(book.Refund{Gateway: name, Key: b.OutRefundNo, Number: b.OutRefundNo,
		ID: "5030" + book.Digits(25), Payment: p.Key, Transaction: t.ID, Amount: b.Amount.Refund, Reason: b.Reason,
		NotifyURL: b.NotifyURL}, "", false)
	switch {
	case errors.Is(err, book.ErrDifferent):
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "退款单号重复，参数与首次请求时不一致")
	case errors.Is(err, book.ErrTooMuch):
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "申请退款金额大于订单金额")
	case err != nil:
		return fail(http.StatusForbidden, "NOT_ENOUGH", "基本账户余额不足，请充值后重新发起")
	}
	a := answer(http.StatusOK, refundObject(p, t, r))
	g.Book.PlayRefund(c.r.Context(), r)
	return a
}

func refundObject(p *book.Payment, t *book.Transaction, r *book.Refund) object {
	o := object{"refund_id": r.ID, "out_refund_no": r.Number, "transaction_id": t.ID, "out_trade_no": p.Number,
		"channel": "ORIGINAL", "user_received_account": "招商银行信用卡0403", "create_time": clock(r.CreatedAt),
		"status": refundStatus(r), "funds_account": "AVAILABLE", "amount": object{"total": t.Amount,
			"refund": r.Amount, "payer_total": t.Amount, "payer_refund": r.Amount, "settlement_total": t.Amount,
			"settlement_refund": r.Amount, "discount_refund": 0, "currency": t.Currency}}
	if r.Status == book.RefundSucceeded {
		o["success_time"] = clock(r.EndedAt)
	}
	return o
}

func (g *Gateway) queryRefund(c *call) book.Answer {
	r, err := g.Book.FindRefund(name, c.r.PathValue("refund"))
	if err != nil {
		return fail(http.StatusNotFound, "RESOURCE_NOT_EXISTS", "退款单不存在")
	}
	p, err := g.Book.Payment(name, r.Payment)
	if err != nil {
		return fail(http.StatusNotFound, "RESOURCE_NOT_EXISTS", "退款单不存在")
	}
	return answer(http.StatusOK, refundObject(p, p.Transaction(r.Transaction), r))
}

// certificates returns the platform's certificate, encrypted.
func (g *Gateway) certificates(*call) book.Answer {
	c := g.Keys.Certificate
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	nonce := book.Alnum(12)
	return answer(http.StatusOK, object{"data": []object{{"serial_no": Serial(c), "effective_time": clock(c.NotBefore),
		"expire_time": clock(c.NotAfter), "encrypt_certificate": object{"algorithm": "AEAD_AES_256_GCM", "nonce": nonce,
			"associated_data": "certificate", "ciphertext": g.seal(text, nonce, "certificate")}}}})
}
