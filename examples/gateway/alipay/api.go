package alipay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// Routes adds the API, and the page of the payer.
func (g *Gateway) Routes(mux *http.ServeMux) {
	mux.HandleFunc("/gateway.do", g.gateway)
}

// request is a verified request.
type request struct {
	r       *http.Request
	form    map[string]string
	method  string
	biz     map[string]any
	charset string
	err     *failure
}

// failure is an error answer.
type failure struct{ code, msg, subCode, subMsg string }

func business(subCode, subMsg string) *failure {
	return &failure{"40004", "Business Failed", subCode, subMsg}
}

func invalid(subCode, subMsg string) *failure {
	return &failure{"40002", "Invalid Arguments", subCode, subMsg}
}

// has returns a field of biz_content as text; amounts may be JSON numbers.
func (q *request) has(field string) string {
	switch v := q.biz[field].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

func (g *Gateway) gateway(w http.ResponseWriter, r *http.Request) {
	q := g.read(w, r)
	q.r = r
	operations := map[string]struct {
		name string
		do   func(*request) (any, *failure)
	}{
		"alipay.trade.page.pay": {"create", nil}, "alipay.trade.wap.pay": {"create", nil},
		"alipay.trade.app.pay": {"create", nil}, "alipay.trade.precreate": {"create", g.precreate},
		"alipay.trade.query": {"query", g.query}, "alipay.trade.close": {"close", g.close},
		"alipay.trade.refund":               {"refund", g.refund},
		"alipay.trade.fastpay.refund.query": {"query_refund", g.refundQuery},
	}
	op, known := operations[q.method]
	if !known && q.err == nil {
		q.err = invalid("isv.invalid-method", "不存在的方法名")
	}
	number := q.has("out_trade_no")
	if p := g.find(q); p != nil {
		number = p.Number
	}
	if q.err != nil {
		number = ""
	}
	var result any
	call := book.Call{Gateway: name, Operation: op.name, Number: number}
	call.Fail = func(status int) book.Answer {
		return book.Answer{Status: status, Body: []byte("Unavailable"),
			Header: http.Header{"Content-Type": {"text/html"}}}
	}
	call.Effect = func() book.Answer {
		fail := q.err
		if fail == nil && op.do == nil {
			return g.openForm(q)
		}
		if fail == nil {
			result, fail = op.do(q)
		}
		return q.answer(result, fail)
	}
	call.Sign = func(a *book.Answer, f book.Forgery) { g.signAnswer(q, a, f) }
	g.Book.Serve(w, r, call)
}

// read verifies a request (form or query), which the application's key signs over all parameters but sign.
func (g *Gateway) read(w http.ResponseWriter, r *http.Request) *request {
	q := &request{form: map[string]string{}, biz: map[string]any{}, charset: "utf-8"}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		q.err = invalid("isv.invalid-parameter", "参数无效")
		return q
	}
	for _, part := range []string{r.URL.RawQuery, string(body)} {
		values, err := url.ParseQuery(part)
		if err != nil {
			q.err = invalid("isv.invalid-parameter", "参数无效")
			return q
		}
		for k, v := range values {
			q.form[k] = v[0]
		}
	}
	q.method = q.form["method"]
	if q.form["charset"] != "" {
		q.charset = q.form["charset"]
	}
	_, clockErr := time.ParseInLocation(layout, q.form["timestamp"], beijing)
	switch {
	case q.form["app_id"] != g.Keys.AppID:
		q.err = invalid("isv.invalid-app-id", "无效的AppID参数")
	case q.form["sign_type"] != "RSA2":
		q.err = invalid("isv.invalid-signature-type", "无效签名类型")
	case !verified(&g.Keys.App.PublicKey, Content(q.form, "sign"), q.form["sign"]):
		q.err = invalid("isv.invalid-signature", "验签出错，请确认各参数值使用charset参数指示的字符集编码")
	case q.form["version"] != "1.0":
		q.err = invalid("isv.invalid-parameter", "version")
	case clockErr != nil:
		q.err = invalid("isv.invalid-timestamp", "非法的时间戳参数")
	default:
		text := json.NewDecoder(strings.NewReader(decode(q.form["biz_content"], q.charset)))
		text.UseNumber()
		if err := text.Decode(&q.biz); err != nil {
			q.err = invalid("isv.invalid-parameter", "biz_content")
		}
	}
	return q
}

type node map[string]any

// answer writes the answer's node of the method; signAnswer adds the signature.
func (q *request) answer(result any, fail *failure) book.Answer {
	fields := node{"code": "10000", "msg": "Success"}
	if fail != nil {
		fields = node{"code": fail.code, "msg": fail.msg, "sub_code": fail.subCode, "sub_msg": fail.subMsg}
		if more, ok := result.(node); ok {
			for k, v := range more {
				fields[k] = v
			}
		}
	} else if more, ok := result.(node); ok {
		for k, v := range more {
			fields[k] = v
		}
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(fields); err != nil {
		panic(err)
	}
	body := encode(strings.ReplaceAll(strings.TrimSpace(text.String()), "/", `\/`), q.charset)
	return book.Answer{Status: http.StatusOK, Body: []byte(body),
		Header: http.Header{"Content-Type": {"application/json;charset=" + q.charset}}}
}

// signAnswer signs the exact text of the node. Answers to an unknown application are not signed.
func (g *Gateway) signAnswer(q *request, a *book.Answer, f book.Forgery) {
	if a.Header.Get("Content-Type") == "text/html; charset=utf-8" || a.Status != http.StatusOK {
		return
	}
	wrapper := strings.ReplaceAll(q.method, ".", "_") + "_response"
	if q.err != nil {
		wrapper = "error_response"
	}
	text := `{"` + wrapper + `":` + string(a.Body)
	key := g.Keys.Alipay
	if f == book.Key || f == book.Probe {
		key = g.Forger
	}
	if f != book.None && (q.err == nil || q.err.subCode != "isv.invalid-app-id") {
		text += `,"sign":"` + sign(key, string(a.Body)) + `"`
	}
	a.Body = []byte(text + "}")
}

// find returns the payment that a request names; trade_no has precedence over out_trade_no.
func (g *Gateway) find(q *request) *book.Payment {
	if id := q.has("trade_no"); id != "" {
		p, err := g.Book.ByTransaction(name, id)
		if err != nil {
			return nil
		}
		return p
	}
	p, err := g.Book.Payment(name, q.has("out_trade_no"))
	if err != nil {
		return nil
	}
	return p
}

// create creates the payment of a request.
func (g *Gateway) create(q *request, payType string, s book.Status) (*book.Payment, *failure) {
	number := q.has("out_trade_no")
	amount, err := book.Parse(q.has("total_amount"), 2)
	expires, expiryErr := q.expiry()
	switch {
	case number == "" || len(number) > 64:
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: out_trade_no")
	case err != nil || amount > 100000000_00:
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: total_amount")
	case q.has("subject") == "" || len(q.has("subject")) > 256 || strings.ContainsAny(q.has("subject"), "/=&"):
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: subject")
	case expiryErr != nil:
		return nil, business("ACQ.INVALID_PARAMETER", "参数无效: time_expire")
	case q.has("seller_id") != "" && q.has("seller_id") != g.Keys.SellerID:
		return nil, business("ACQ.ACCESS_FORBIDDEN", "无权限使用接口")
	}
	made, existed, err := g.Book.Create(book.Payment{Gateway: name, Key: number, Number: number, ID: tradeNo(),
		PayType: payType, Amount: amount, Scale: 2, Currency: "CNY", Status: s, ExpiresAt: expires,
		Description: q.has("subject"), Secret: book.Alnum(22), NotifyURL: q.form["notify_url"],
		ReturnURL: q.form["return_url"], Details: map[string]string{"charset": q.charset}}, "")
	switch {
	case errors.Is(err, book.ErrDifferent):
		return nil, business("ACQ.CONTEXT_INCONSISTENT", "交易信息被篡改")
	case existed && made.Status == book.Paid:
		return nil, business("ACQ.TRADE_HAS_SUCCESS", "交易已被支付")
	case existed && made.Status == book.Closed:
		return nil, business("ACQ.TRADE_HAS_CLOSE", "交易已经关闭")
	}
	return made, nil
}

// expiry reads time_expire, or timeout_express such as 30m, 2h or 1d.
func (q *request) expiry() (time.Time, error) {
	if at := q.has("time_expire"); at != "" {
		return time.ParseInLocation(layout, at, beijing)
	}
	text := q.has("timeout_express")
	if text == "" {
		return time.Time{}, nil
	}
	var n int
	var unit string
	if _, err := fmt.Sscanf(text, "%d%s", &n, &unit); err != nil {
		return time.Time{}, err
	}
	each, ok := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[unit]
	if !ok {
		return time.Time{}, fmt.Errorf("unit %q", unit)
	}
	return time.Now().Add(time.Duration(n) * each), nil
}

func (g *Gateway) precreate(q *request) (any, *failure) {
	p, fail := g.create(q, "precreate", book.Unopened)
	if fail != nil {
		return nil, fail
	}
	g.Book.Play(q.r.Context(), p)
	return node{"out_trade_no": p.Number, "qr_code": g.URL + "/pay/alipay?qr=" + p.Secret}, nil
}

// openForm handles a signed form that the payer's browser or app sends: it creates the trade.
func (g *Gateway) openForm(q *request) book.Answer {
	payType := strings.Split(q.method, ".")[2] // page, wap or app
	product := map[string]string{"page": "FAST_INSTANT_TRADE_PAY", "wap": "QUICK_WAP_WAY", "app": "QUICK_MSECURITY_PAY"}
	p, fail := (*book.Payment)(nil), (*failure)(nil)
	if q.has("product_code") != product[payType] {
		fail = business("ACQ.INVALID_PARAMETER", "参数无效: product_code")
	} else {
		p, fail = g.create(q, payType, book.Payable)
	}
	a := book.Answer{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}}
	var text bytes.Buffer
	if fail != nil {
		a.Status = http.StatusBadRequest
		_ = page.Execute(&text, map[string]string{"Failure": fail.subCode + " " + fail.subMsg})
	} else {
		p = g.Book.Play(q.r.Context(), p)
		_ = page.Execute(&text, map[string]string{"Number": p.Number, "Amount": book.Format(p.Amount, 2) + " CNY",
			"For": p.Description, "Status": string(p.Status), "Pay": "/pay/alipay?qr=" + p.Secret})
	}
	a.Body = text.Bytes()
	return a
}

var page = template.Must(template.New("").Parse(`<!doctype html><meta charset="utf-8"><title>Cashier</title>
{{with .Failure}}<p id="failure">{{.}}</p>{{else}}<h1 id="amount">{{$.Amount}}</h1><p>{{$.For}}, {{$.Number}}:
<b id="status">{{$.Status}}</b></p><p><a id="pay" href="{{$.Pay}}">Pay or decline</a></p>{{end}}
`))
