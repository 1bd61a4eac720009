package wechat

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
)

// api answers requests in order, signed, and keeps them.
type api struct {
	*party
	answers []string // status and body; a leading ! omits the signature
	asked   []string
}

var authorization = regexp.MustCompile(`^WECHATPAY2-SHA256-RSA2048 ` +
	`mchid="1900000001",nonce_str="(\w+)",timestamp="(\d+)",serial_no="ABC",signature="(.+)"$`)

func newAPI(t *testing.T) *api {
	a := &api{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
		if m == nil || r.Header.Get("Wechatpay-Serial") != keyID || !gateway.VerifiesRSA(a.merchant,
			[]byte(r.Method+"\n"+r.RequestURI+"\n"+m[2]+"\n"+m[1]+"\n"+string(body)+"\n"), m[3]) {
			t.Errorf("%s %s: header %v", r.Method, r.RequestURI, r.Header)
		}
		a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+string(body)))
		if len(a.answers) == 0 {
			t.Errorf("unexpected request %s", r.RequestURI)
			return
		}
		answer, unsigned := strings.CutPrefix(a.answers[0], "!")
		status, text, _ := strings.Cut(answer, " ")
		a.answers = a.answers[1:]
		if !unsigned {
			for name, values := range a.sign(time.Now(), text) {
				w.Header()[name] = values
			}
		}
		code, _ := strconv.Atoi(status)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	a.party = newParty(t, s.URL+"/wechat")
	return a
}

func (a *api) script(answers ...string) { a.answers, a.asked = answers, nil }

func (a *api) want(t *testing.T, requests ...string) {
	t.Helper()
	if got := strings.Join(a.asked, "\n"); got != strings.Join(requests, "\n") {
		t.Errorf("asked\n%s\nwant\n%s", got, strings.Join(requests, "\n"))
	}
}

func payment(t *testing.T, payType string) *gateway.Payment {
	return &gateway.Payment{OutTradeNo: "P00001", PayType: payType, Amount: gatewaytest.Amount(t, "12.3"),
		Currency:    "CNY",
		Description: "茶", Payer: "o1", PayerIP: "192.0.2.1", ReturnURL: "https://shop.example/?a=1",
		ExpiresAt: time.Date(2026, 11, 25, 4, 30, 0, 0, time.UTC)}
}

func TestCreate(t *testing.T) {
	a := newAPI(t)
	start := `{"appid":"wx1","mchid":"1900000001","description":"茶","out_trade_no":"P00001",` +
		`"time_expire":"2026-11-25T12:30:00+08:00",` +
		`"notify_url":"https://pay.shop.example/pay/callbacks/wechat","amount":{"total":1230,"currency":"CNY"},`
	a.script(`200 {"code_url":"weixin://x"}`)
	c, n, err := a.gw.Create(t.Context(), payment(t, ""))
	if c["code_url"] != "weixin://x" || say(n, err) != "pending P00001   12.3 CNY" {
		t.Errorf("%v %s", c, say(n, err))
	}
	a.want(t, "POST /wechat/v3/pay/transactions/native "+start+`"scene_info":{"payer_client_ip":"192.0.2.1"}}`)
	a.script(`200 {"h5_url":"https://wx.tenpay.com/?id=1"}`)
	c, _, _ = a.gw.Create(t.Context(), payment(t, "h5"))
	if c["h5_url"] != "https://wx.tenpay.com/?id=1&redirect_url=https%3A%2F%2Fshop.example%2F%3Fa%3D1" {
		t.Errorf("%v", c)
	}
	a.want(t, "POST /wechat/v3/pay/transactions/h5 "+start+
		`"scene_info":{"payer_client_ip":"192.0.2.1","h5_info":{"type":"Wap"}}}`)
	a.script(`200 {"prepay_id":"wx20"}`)
	c, _, _ = a.gw.Create(t.Context(), payment(t, "jsapi"))
	if c["package"] != "prepay_id=wx20" || c["signType"] != "RSA" || !gateway.VerifiesRSA(a.merchant,
		[]byte("wx1\n"+c["timeStamp"]+"\n"+c["nonceStr"]+"\nprepay_id=wx20\n"), c["paySign"]) {
		t.Errorf("%v", c)
	}
	a.want(t, "POST /wechat/v3/pay/transactions/jsapi "+start+
		`"payer":{"openid":"o1"},"scene_info":{"payer_client_ip":"192.0.2.1"}}`)
	a.script(`200 {"prepay_id":"wx20"}`)
	c, _, _ = a.gw.Create(t.Context(), payment(t, "app"))
	if c["appid"] != "wx2" || c["partnerid"] != "1900000001" || c["package"] != "Sign=WXPay" ||
		!gateway.VerifiesRSA(a.merchant,
			[]byte("wx2\n"+c["timestamp"]+"\n"+c["noncestr"]+"\nwx20\n"), c["sign"]) {
		t.Errorf("%v", c)
	}

	a.script(`400 {"code":"ORDERPAID"}`, "200 "+paid)
	if c, n, err = a.gw.Create(t.Context(), payment(t, "")); c != nil || say(n, err) != "paid P00001 4200  12.3 CNY" {
		t.Errorf("%v %s", c, say(n, err))
	}
	a.script(`400 {"code":"PARAM_ERROR"}`, `404 {"code":"ORDER_NOT_EXIST"}`)
	_, _, err = a.gw.Create(t.Context(), payment(t, ""))
	gatewaytest.Failed(t, err, gateway.Refused, "wechat_PARAM_ERROR")
}

func TestQueryAndClose(t *testing.T) {
	a, p := newAPI(t), payment(t, "")
	for state, want := range map[string]string{"SUCCESS": "paid P00001 4200  12.3 CNY",
		"REFUND": "paid P00001 4200  12.3 CNY",
		"NOTPAY": "pending P00001 4200  12.3 CNY", "CLOSED": "closed P00001 4200  12.3 CNY",
		"PAYERROR":  "declined P00001 4200  12.3 CNY",
		"NEW_STATE": "answer_unreadable (unknown): gateway: not in the gateway's format: trade_state is unknown"} {
		a.script("200 " + strings.Replace(paid, "SUCCESS", state, 1))
		if n, err := a.gw.Query(t.Context(), p); say(n, err) != want && !strings.Contains(want, "unknown") ||
			strings.Contains(want, "unknown") && err == nil {
			t.Errorf("%s: %s", state, say(n, err))
		}
		a.want(t, "GET /wechat/v3/pay/transactions/out-trade-no/P00001?mchid=1900000001")
	}
	a.script(`404 {"code":"ORDER_NOT_EXIST"}`)
	if _, err := a.gw.Query(t.Context(), p); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	// Without a valid signature an answer proves nothing.
	for _, answer := range []string{"!200 " + paid, `!404 {"code":"ORDER_NOT_EXIST"}`} {
		a.script(answer)
		_, err := a.gw.Query(t.Context(), p)
		gatewaytest.Failed(t, err, gateway.Unknown, "wechat_unreadable")
	}
	a.script("204")
	if n, err := a.gw.Close(t.Context(), p); say(n, err) != "closed P00001   0 " {
		t.Error(say(n, err))
	}
	a.want(t, `POST /wechat/v3/pay/transactions/out-trade-no/P00001/close {"mchid":"1900000001"}`)
	a.script(`400 {"code":"ORDER_PAID"}`, "200 "+paid)
	if n, err := a.gw.Close(t.Context(), p); say(n, err) != "paid P00001 4200  12.3 CNY" {
		t.Error(say(n, err))
	}
	a.script(`400 {"code":"TRADE_STATE"}`,
		`200 {"mchid":"1900000001","appid":"wx1","out_trade_no":"P00001","trade_state":"NOTPAY"}`)
	_, err := a.gw.Close(t.Context(), p)
	gatewaytest.Failed(t, err, gateway.NotSent, "wechat_TRADE_STATE")
}

func TestRefund(t *testing.T) {
	a := newAPI(t)
	r := &gateway.Refund{RefundNo: "R1", OutTradeNo: "P00001", TransactionID: "4200",
		Amount: gatewaytest.Amount(t, "2.3"),
		Paid:   gatewaytest.Amount(t, "12.3"), Currency: "CNY", Reason: strings.Repeat("退", 30)}
	answer := strings.Replace(refundText, `"refund_status"`, `"status"`, 1)
	a.script("200 " + strings.Replace(answer, "SUCCESS", "PROCESSING", 1))
	if n, err := a.gw.Refund(t.Context(), r); say(n, err) != "refund_pending P00001 4200 R1 2.3 CNY" {
		t.Error(say(n, err))
	}
	a.want(t, `POST /wechat/v3/refund/domestic/refunds {"transaction_id":"4200","out_refund_no":"R1","reason":"`+
		strings.Repeat("退", 26)+
		`","notify_url":"https://pay.shop.example/pay/callbacks/wechat","amount":{"total":1230,"refund":230,"currency":"CNY"}}`)
	a.script("200 " + answer)
	if n, err := a.gw.QueryRefund(t.Context(), r); say(n, err) != "refunded P00001 4200 R1 2.3 CNY" ||
		n.ID != "query_refund/refunded/R1/50/2.3" {
		t.Error(say(n, err), n.ID)
	}
	a.want(t, "GET /wechat/v3/refund/domestic/refunds/R1")
	for answer, want := range map[string]gateway.Outcome{`403 {"code":"NOT_ENOUGH"}`: gateway.NotSent,
		`429 {"code":"FREQUENCY_LIMITED"}`: gateway.NotSent,
		`500 {"code":"SYSTEM_ERROR"}`:      gateway.Unknown, `400 {"code":"INVALID_REQUEST"}`: gateway.Refused,
		`401 {"code":"SIGN_ERROR"}`: gateway.NotSent,
		`403 {"code":"RULE_LIMIT"}`: gateway.Refused, `403 {"code":"NO_AUTH"}`: gateway.NotSent} {
		a.script(answer)
		_, err := a.gw.Refund(t.Context(), r)
		gatewaytest.Failed(t, err, want, "wechat_"+strings.Split(answer, `"`)[3])
	}
	a.script(`404 {"code":"RESOURCE_NOT_EXISTS"}`)
	if _, err := a.gw.QueryRefund(t.Context(), r); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func(p *gateway.Payment){
		"":              func(*gateway.Payment) {},
		"out_trade_no:": func(p *gateway.Payment) { p.OutTradeNo = strings.Repeat("1", 33) },
		"at least 6":    func(p *gateway.Payment) { p.OutTradeNo = "12345" },
		"currency:":     func(p *gateway.Payment) { p.Currency = "USD" },
		"pay_type:":     func(p *gateway.Payment) { p.PayType = "cash" },
		"payer:":        func(p *gateway.Payment) { p.PayType, p.Payer = "jsapi", "" },
		"payer_ip:":     func(p *gateway.Payment) { p.PayType, p.PayerIP = "h5", "" },
		"amount:":       func(p *gateway.Payment) { p.Amount = gatewaytest.Amount(t, "0.001") },
		"description:":  func(p *gateway.Payment) { p.Description = strings.Repeat("茶", 128) },
	} {
		p := payment(t, "")
		change(p)
		if err := Dialect.Check(p); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestSettings(t *testing.T) {
	_, private, public := gatewaytest.Key(t)
	for want, change := range map[string]map[string]any{
		"mchid: is missing":             {"mchid": ""},
		"api_v3_keys[0]: must have 32":  {"api_v3_keys": []string{"pencil"}},
		"private_key: is neither":       {"private_key": "pencil!"},
		"public_keys: is missing":       {"public_keys": []any{}},
		"public_keys[0].id: must begin": {"public_keys": []any{map[string]any{"key": public}}},
		"public_keys[0].key: is a priv": {"public_keys": []any{map[string]any{"id": keyID, "key": private}}},
		"public_keys[0].id: must be em": {"public_keys": []any{map[string]any{"id": keyID, "key": vectorCertificate}}},
		"appids: names must be":         {"appids": map[string]any{"cash": "wx"}},
	} {
		settings := map[string]any{"mchid": "1", "appid": "wx1", "serial_no": "A", "private_key": private,
			"api_v3_keys": []string{newKey},
			"public_keys": []any{map[string]any{"id": keyID, "key": public}}}
		for name, value := range change {
			settings[name] = value
		}
		_, err := gatewaytest.Try(t, "wechat", Dialect, settings)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pencil") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
