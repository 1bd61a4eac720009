package alipay

import (
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/text/encoding/simplifiedchinese"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
)

// party is Alipay's side of a test. Its signatures are made by openssl, or by Go where many are needed.
type party struct {
	key, old *rsa.PrivateKey
	file     string // of key
	app      *rsa.PublicKey
	gw       *gateway.Configured
}

func newParty(t testing.TB, address string) *party {
	t.Helper()
	key, private, public := gatewaytest.Key(t)
	old, _, oldPublic := gatewaytest.Key(t)
	app, appPrivate, _ := gatewaytest.Key(t)
	p := &party{key: key, old: old, app: &app.PublicKey, file: filepath.Join(t.TempDir(), "key.pem")}
	if err := os.WriteFile(p.file, []byte(private), 0o600); err != nil {
		t.Fatal(err)
	}
	// As Alipay's pages show keys: base64 without PEM.
	bare := strings.Join(strings.Split(strings.TrimSpace(oldPublic), "\n")[1:], "")
	bare = strings.TrimSuffix(bare, "-----END PUBLIC KEY-----")
	settings := map[string]any{"app_id": "2021001", "seller_id": "2088001", "private_key": appPrivate,
		"public_keys": []string{public, bare}}
	if address != "" {
		settings["url"] = address
	}
	p.gw = gatewaytest.New(t, "alipay", Dialect, settings)
	return p
}

// openssl signs a form.
func (p *party) openssl(t testing.TB, form map[string]string) string {
	return base64.StdEncoding.EncodeToString(gatewaytest.OpenSSL(t, content(form, false), "dgst", "-sha256", "-sign",
		p.file))
}

func encode(form map[string]string, signature string) []byte {
	values := url.Values{"sign": {signature}, "sign_type": {"RSA2"}}
	for name, value := range form {
		values.Set(name, value)
	}
	return []byte(values.Encode())
}

func (p *party) signedByGo(form map[string]string) []byte {
	signature, err := gateway.SignRSA(p.key, content(form, false))
	if err != nil {
		panic(err)
	}
	return encode(form, signature)
}

// paid returns the form of a paid payment, with changes: name, value, name, value.
func paid(changes ...string) map[string]string {
	form := map[string]string{"notify_id": "n1", "notify_type": "trade_status_sync",
		"notify_time": "2026-11-25 12:00:01", "charset": "utf-8",
		"version": "1.0", "app_id": "2021001", "seller_id": "2088001", "out_trade_no": "P1", "trade_no": "2026T1",
		"trade_status": "TRADE_SUCCESS",
		"total_amount": "12.30", "receipt_amount": "10.00", "buyer_pay_amount": "10.00",
		"gmt_payment": "2026-11-25 12:00:00", "subject": "茶 & = +"}
	for i := 0; i < len(changes); i += 2 {
		form[changes[i]] = changes[i+1]
	}
	return form
}

func say(n gateway.Notice, err error) string {
	switch {
	case errors.Is(err, gateway.ErrFormat):
		return "format"
	case errors.Is(err, gateway.ErrForged):
		return "forged"
	case err != nil:
		return err.Error()
	}
	text := fmt.Sprint(n.Kind, " ", n.OutTradeNo, " ", n.TransactionID, " ", n.RefundNo, " ", n.Amount, " ", n.Currency)
	if n.Foreign != "" {
		text += " foreign " + n.Foreign
	}
	return text
}

const ok = "paid P1 2026T1  12.3 CNY"

func TestSignaturesByOpenSSL(t *testing.T) {
	p := newParty(t, "")
	read := func(body []byte) string { return say(p.gw.Notice(nil, body, time.Now())) }
	form := paid()
	good := p.openssl(t, form)
	if got := read(encode(form, good)); got != ok {
		t.Error(got)
	}
	// In GBK the signed bytes are those of the charset.
	subject, err := simplifiedchinese.GBK.NewEncoder().String("中文商品")
	if err != nil {
		t.Fatal(err)
	}
	gbk := paid("charset", "GBK", "subject", subject)
	if got := read(encode(gbk, p.openssl(t, gbk))); got != ok {
		t.Errorf("GBK: %s", got)
	}
	// Empty values: some of Alipay's libraries sign them, some do not.
	empty := paid("body", "")
	if got := read(encode(empty, good)) + ", " + read(encode(empty, p.openssl(t, empty))); got != ok+", "+ok {
		t.Errorf("empty value: %s", got)
	}
	rotated, err := gateway.SignRSA(p.old, content(form, false))
	if err != nil || read(encode(form, rotated)) != ok {
		t.Error("the second key does not verify")
	}
	for name, body := range map[string][]byte{
		"changed amount": encode(paid("total_amount", "1230"), good),
		"added field":    encode(paid("refund_fee", "1"), good),
		"no signature":   encode(form, ""),
		"cut signature":  encode(form, good[:100]),
		"RSA with SHA-1": []byte(strings.Replace(string(encode(form, good)), "RSA2", "RSA", 1)),
		"a name twice":   append(encode(form, good), "&total_amount=0.01"...),
		"the same twice": append(encode(form, good), "&notify_id=n1"...),
		"not a form":     []byte(`{"trade_status":"TRADE_SUCCESS"}`),
		"wrong percent":  append(encode(form, good), "&x=%zz"...),
		"empty":          nil,
		"key of the app": encode(form, func() string {
			s, _ := gateway.SignRSA(p.foreign(t), content(form, false))
			return s
		}()),
		"a semicolon added": append(encode(form, good), ";x=1"...),
	} {
		if got := read(body); got != "forged" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func (p *party) foreign(t testing.TB) *rsa.PrivateKey {
	key, _, _ := gatewaytest.Key(t)
	return key
}

func TestNotices(t *testing.T) {
	p := newParty(t, "")
	for _, c := range []struct {
		form map[string]string
		want string
	}{
		{paid(), ok},
		{paid("trade_status", "TRADE_FINISHED"), ok},
		{paid("trade_status", "WAIT_BUYER_PAY"), "pending P1 2026T1  12.3 CNY"},
		{paid("trade_status", "TRADE_CLOSED"), "closed P1 2026T1  12.3 CNY"},
		{paid("seller_id", "2088002"), ok + " foreign seller_id 2088002"},
		{paid("app_id", "2021002"), ok + " foreign app_id 2021002"},
		{paid("trans_currency", "USD"), "paid P1 2026T1  12.3 USD"},
		// Notices of refunds look like payments. Their refund_fee is the sum of all refunds.
		{paid("refund_fee", "2.30", "out_biz_no", "R1", "gmt_refund", "2026-11-25 13:00:00.123"),
			"refund_pending P1 2026T1 R1 0 "},
		{paid("refund_fee", "2.30"), "refund_pending P1 2026T1 P1 0 "},
		{paid("out_biz_no", "R1"), "refund_pending P1 2026T1 R1 0 "},
		{paid("trade_status", "TRADE_CLOSED", "refund_fee", "12.30", "gmt_refund", "2026-11-25 13:00:00"),
			"refund_pending P1 2026T1 P1 0 "},
		{paid("trade_status", "TRADE_FINISHED", "refund_fee", "0.00"), "paid P1 2026T1  12.3 CNY"},
		{paid("notify_type", "dut_user_sign"), "other    0 "},
		{paid("notify_id", ""), "format"},
		{paid("trade_status", "TRADE_PENDING"), "format"},
		{paid("total_amount", ""), "format"},
		{paid("total_amount", "-1"), "format"},
		{paid("total_amount", "0.00"), "format"},
		{paid("total_amount", "1e3"), "format"},
		{paid("total_amount", strings.Repeat("9", 99)), "format"},
		{paid("trade_no", ""), "format"},
		{paid("out_trade_no", ""), "format"},
		{paid("out_trade_no", "\xd6\xd0"), "format"},
		{paid("out_trade_no", strings.Repeat("1", 300)), "format"},
	} {
		n, err := p.gw.Notice(nil, p.signedByGo(c.form), time.Now())
		if got := say(n, err); got != c.want || err == nil && n.ID != "n1" {
			t.Errorf("%v\n%s, want %s (%v)", c.form, got, c.want, err)
		}
	}
	n, _ := p.gw.Notice(nil, p.signedByGo(paid()), time.Now())
	if want := time.Date(2026, 11, 25, 4, 0, 0, 0, time.UTC); !n.At.Equal(want) {
		t.Errorf("%v, want %v", n.At, want)
	}
	if a, b := p.gw.Acknowledge(true), p.gw.Acknowledge(false); a.Status != 200 || string(a.Body) != "success" ||
		b.Status < 500 || string(b.Body) != "fail" {
		t.Errorf("%+v %+v", a, b)
	}
}

// api answers calls in order, signed, and keeps them.
type api struct {
	*party
	answers []string // status and result; a leading ! omits the signature
	asked   []string
}

func newAPI(t *testing.T) *api {
	a := &api{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.URL.RawQuery != "charset=utf-8" {
			t.Errorf("%v %s", err, r.URL)
		}
		a.asked = append(a.asked, a.checked(t, r.PostForm))
		if len(a.answers) == 0 {
			t.Error("unexpected request")
			return
		}
		answer, unsigned := strings.CutPrefix(a.answers[0], "!")
		a.answers = a.answers[1:]
		status, text, _ := strings.Cut(answer, " ")
		signature, _ := gateway.SignRSA(a.key, []byte(text))
		if unsigned {
			signature = ""
		}
		code, _ := strconv.Atoi(status)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"`+strings.ReplaceAll(r.PostForm.Get("method"), ".", "_")+`_response":`+text+
			`,"sign":"`+signature+`"}`)
	}))
	t.Cleanup(s.Close)
	a.party = newParty(t, s.URL+"/gateway.do")
	return a
}

// checked checks the common parameters and the signature of a request, and returns method and content.
func (a *api) checked(t testing.TB, form url.Values) string {
	signed := map[string]string{}
	for name := range form {
		if signed[name] = form.Get(name); len(form[name]) != 1 {
			t.Errorf("%s occurs twice", name)
		}
	}
	delete(signed, "sign")
	at := timeOf(signed["timestamp"])
	if !gateway.VerifiesRSA(a.app, content(signed, false), form.Get("sign")) || signed["sign_type"] != "RSA2" ||
		signed["app_id"] != "2021001" ||
		signed["version"] != "1.0" || signed["charset"] != "utf-8" || at.Before(time.Now().Add(-time.Minute)) ||
		at.After(time.Now().Add(time.Minute)) {
		t.Errorf("%v", form)
	}
	return signed["method"] + " " + signed["biz_content"]
}

func (a *api) script(answers ...string) { a.answers, a.asked = answers, nil }

func (a *api) want(t *testing.T, requests ...string) {
	t.Helper()
	if got := strings.Join(a.asked, "\n"); got != strings.Join(requests, "\n") {
		t.Errorf("asked\n%s\nwant\n%s", got, strings.Join(requests, "\n"))
	}
}

func payment(t *testing.T, payType string) *gateway.Payment {
	return &gateway.Payment{OutTradeNo: "P1", PayType: payType, Amount: gatewaytest.Amount(t, "12.3"), Currency: "CNY",
		Description: "茶",
		ReturnURL:   "https://shop.example/?a=1&timestamp=2", ExpiresAt: time.Date(2026, 11, 25, 4, 30, 0, 0, time.UTC)}
}

func TestInstantPayments(t *testing.T) {
	a := newAPI(t)
	start := `{"out_trade_no":"P1","total_amount":"12.30","subject":"茶","product_code":"`
	for payType, want := range map[string]string{
		"":    "alipay.trade.page.pay " + start + `FAST_INSTANT_TRADE_PAY","time_expire":"2026-11-25 12:30:00"}`,
		"wap": "alipay.trade.wap.pay " + start + `QUICK_WAP_WAY","time_expire":"2026-11-25 12:30:00","quit_url":"https://shop.example/?a=1\u0026timestamp=2"}`,
		"app": "alipay.trade.app.pay " + start + `QUICK_MSECURITY_PAY","time_expire":"2026-11-25 12:30:00"}`,
	} {
		c, n, err := a.gw.Create(t.Context(), payment(t, payType))
		text := c["order_string"]
		if payType != "app" {
			_, text, _ = strings.Cut(c["form_url"], "/gateway.do?")
		}
		form, _ := url.ParseQuery(text)
		if say(n, err) != "pending P1   12.3 CNY" || a.checked(t, form) != want ||
			form.Get("notify_url") != "https://pay.shop.example/pay/callbacks/alipay" ||
			form.Get("return_url") != map[bool]string{true: "", false: "https://shop.example/?a=1&timestamp=2"}[payType == "app"] {
			t.Errorf("%s: %s, %v, want %s", payType, say(n, err), form, want)
		}
	}
	a.want(t) // no request was made
}

func TestPaymentCalls(t *testing.T) {
	a, p := newAPI(t), payment(t, "precreate")
	a.script(`200 {"code":"10000","out_trade_no":"P1","qr_code":"https://qr.alipay.com/x"}`)
	c, n, err := a.gw.Create(t.Context(), p)
	if c["qr_code"] != "https://qr.alipay.com/x" || say(n, err) != "pending P1   12.3 CNY" {
		t.Errorf("%v %s", c, say(n, err))
	}
	a.want(t, `alipay.trade.precreate `+
		`{"out_trade_no":"P1","total_amount":"12.30","subject":"茶","product_code":"FACE_TO_FACE_PAYMENT",`+
		`"time_expire":"2026-11-25 12:30:00","seller_id":"2088001"}`)
	state := func(s string) string {
		return `200 {"code":"10000","msg":"Success","out_trade_no":"P1","trade_no":"2026T1","trade_status":"` + s +
			`","total_amount":"12.30","buyer_pay_amount":"1.00","send_pay_date":"2026-11-25 12:00:00"}`
	}
	const absent = `200 {"code":"40004","msg":"Business Failed","sub_code":"ACQ.TRADE_NOT_EXIST"}`
	a.script(`200 {"code":"40004","sub_code":"ACQ.TRADE_HAS_SUCCESS"}`, state("TRADE_SUCCESS"))
	if _, n, err = a.gw.Create(t.Context(), p); say(n, err) != ok {
		t.Error(say(n, err))
	}
	for _, c := range []struct{ answer, want string }{{state("TRADE_SUCCESS"), ok}, {state("TRADE_FINISHED"), ok},
		{state("WAIT_BUYER_PAY"), "pending P1 2026T1  12.3 CNY"},
		{state("TRADE_CLOSED"), "closed P1 2026T1  12.3 CNY"}} {
		a.script(c.answer)
		if n, err := a.gw.Query(t.Context(), p); say(n, err) != c.want {
			t.Errorf("%s, want %s", say(n, err), c.want)
		}
		a.want(t, `alipay.trade.query {"out_trade_no":"P1"}`)
	}
	a.script(absent, absent)
	if _, err := a.gw.Query(t.Context(), p); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	if _, err := a.gw.Close(t.Context(), p); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	a.script(`200 {"code":"10000","out_trade_no":"P1"}`)
	if n, err := a.gw.Close(t.Context(), p); say(n, err) != "closed P1   0 " {
		t.Error(say(n, err))
	}
	a.script(`200 {"code":"40004","sub_code":"ACQ.TRADE_STATUS_ERROR"}`, state("TRADE_SUCCESS"))
	if n, err := a.gw.Close(t.Context(), p); say(n, err) != ok {
		t.Error(say(n, err))
	}
}

func TestFailedCalls(t *testing.T) {
	a, p := newAPI(t), payment(t, "")
	for answer, want := range map[string]struct {
		outcome gateway.Outcome
		code    string
	}{
		`200 {"code":"20000","sub_code":"aop.unknow-error"}`: {gateway.Unknown, "alipay_unknow-error"},
		`200 {"code":"40004","sub_code":"ACQ.SYSTEM_ERROR"}`: {gateway.Unknown,
			"alipay_ACQ.SYSTEM_ERROR"},
		`200 {"code":"40004","sub_code":"ACQ.INVALID_PARAMETER"}`: {gateway.Refused,
			"alipay_ACQ.INVALID_PARAMETER"},
		`!200 {"code":"40002","sub_code":"isv.invalid-signature"}`: {gateway.NotSent,
			"alipay_isv.invalid-signature"},
		`!200 {"code":"40006","sub_code":"isv.insufficient-isv-permissions"}`: {gateway.NotSent,
			"alipay_isv.insufficient-isv-permissions"},
		`200 {"code":"40005","sub_code":"isv.app-call-limited"}`: {gateway.NotSent, "alipay_isv.app-call-limited"},
		`200 {"code":"50000"}`: {gateway.Unknown, "alipay_50000"},
		`502 {}`:               {gateway.Unknown, "alipay_http_502"},
		`200 {}`:               {gateway.Unknown, "alipay_unreadable"},
		`200 x`:                {gateway.Unknown, "alipay_unreadable"},
		`!200 {"code":"10000","out_trade_no":"P1"}`:                  {gateway.Unknown, "alipay_unreadable"},
		`!200 {"code":"40004","sub_code":"ACQ.TRADE_NOT_EXIST"}`:     {gateway.Unknown, "alipay_unreadable"},
		`200 {"code":"10000","out_trade_no":"P1","trade_status":""}`: {gateway.Unknown, "alipay_unreadable"},
	} {
		a.script(answer)
		_, err := a.gw.Query(t.Context(), p)
		gatewaytest.Failed(t, err, want.outcome, want.code)
	}
}

func TestRefundCalls(t *testing.T) {
	a := newAPI(t)
	r := &gateway.Refund{RefundNo: "R1", OutTradeNo: "P1", TransactionID: "2026T1",
		Amount: gatewaytest.Amount(t, "2.3"),
		Paid:   gatewaytest.Amount(t, "12.3"), Currency: "CNY", Reason: "坏了"}
	// refund_fee is the sum of this refund and an earlier one.
	done := `200 {"code":"10000","out_trade_no":"P1","trade_no":"2026T1","fund_change":"Y","refund_fee":"5.30"}`
	a.script(done, strings.Replace(done, `"Y"`, `"N"`, 1))
	if n, err := a.gw.Refund(t.Context(), r); say(n, err) != "refunded P1 2026T1 R1 2.3 CNY" {
		t.Error(say(n, err))
	}
	a.want(t, `alipay.trade.refund {"out_trade_no":"P1","trade_no":"2026T1","refund_amount":"2.30",`+
		`"out_request_no":"R1","refund_reason":"坏了"}`)
	if n, err := a.gw.Refund(t.Context(), r); say(n, err) != "refund_pending P1 2026T1 R1 2.3 CNY" {
		t.Error(say(n, err))
	}
	a.script(`200 {"code":"10000","out_trade_no":"P1","trade_no":"2026T1","out_request_no":"R1",`+
		`"refund_amount":"2.30","refund_status":"REFUND_SUCCESS",`+
		`"gmt_refund_pay":"2026-11-25 12:00:00"}`, `200 {"code":"10000","msg":"Success"}`)
	if n, err := a.gw.QueryRefund(t.Context(), r); say(n, err) != "refunded P1 2026T1 R1 2.3 CNY" {
		t.Error(say(n, err))
	}
	a.want(t, `alipay.trade.fastpay.refund.query {"out_trade_no":"P1","trade_no":"2026T1","out_request_no":"R1",`+
		`"query_options":["gmt_refund_pay"]}`)
	if _, err := a.gw.QueryRefund(t.Context(), r); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	a.script(`200 {"code":"40004","sub_code":"ACQ.SELLER_BALANCE_NOT_ENOUGH"}`)
	_, err := a.gw.Refund(t.Context(), r)
	gatewaytest.Failed(t, err, gateway.NotSent, "alipay_ACQ.SELLER_BALANCE_NOT_ENOUGH")
}

func TestCheckAndSettings(t *testing.T) {
	for want, change := range map[string]func(p *gateway.Payment){
		"": func(*gateway.Payment) {}, "out_trade_no:": func(p *gateway.Payment) { p.OutTradeNo = "a-b" },
		"currency:":    func(p *gateway.Payment) { p.Currency = "USD" },
		"pay_type:":    func(p *gateway.Payment) { p.PayType = "cash" },
		"description:": func(p *gateway.Payment) { p.Description = "a&b" },
		"amount:":      func(p *gateway.Payment) { p.Amount = gatewaytest.Amount(t, "0.001") },
	} {
		p := payment(t, "")
		change(p)
		if err := Dialect.Check(p); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	_, private, public := gatewaytest.Key(t)
	_, _, other := gatewaytest.Key(t)
	for want, change := range map[string]map[string]any{
		"seller_id: is missing":                 {"seller_id": ""},
		"public_keys[0]: is the key of the app": {"public_keys": []string{public}},
		"private_key: is neither":               {"private_key": "pencil!"},
		"public_keys: is missing":               {"public_keys": []string{}},
		"public_keys[0]: is a private key":      {"public_keys": []string{private}},
		"unknown setting":                       {"colour": "pencil"},
	} {
		settings := map[string]any{"app_id": "1", "seller_id": "2", "private_key": private,
			"public_keys": []string{other}}
		for name, value := range change {
			settings[name] = value
		}
		_, err := gatewaytest.Try(t, "alipay", Dialect, settings)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pencil") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzNotice(f *testing.F) {
	p := newParty(f, "")
	f.Add("TRADE_SUCCESS", "12.30", "", "P1")
	f.Add("TRADE_CLOSED", "-0", "1", "\xff")
	f.Fuzz(func(t *testing.T, status, total, fee, number string) {
		n, err := p.gw.Notice(nil, p.signedByGo(paid("trade_status", status, "total_amount", total, "refund_fee", fee,
			"out_trade_no", number)), time.Now())
		if err != nil && !errors.Is(err, gateway.ErrFormat) || err == nil && n.Kind == gateway.Paid &&
			(fee != "" || n.Amount.Coef.Sign() <= 0) {
			t.Errorf("%+v, %v", n, err)
		}
	})
}
