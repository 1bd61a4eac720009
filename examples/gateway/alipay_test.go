package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/text/encoding/simplifiedchinese"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// alipayText is a second implementation of the text to sign.
func alipayText(form url.Values, without ...string) string {
	var pairs []string
	for k, vs := range form {
		if vs[0] != "" && !slices.Contains(without, k) {
			pairs = append(pairs, k+"="+vs[0])
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

// alipay signs a request with openssl.
func (v *vendor) alipay(method, charset string, biz map[string]any) url.Values {
	v.t.Helper()
	text, err := json.Marshal(biz)
	if err != nil {
		v.t.Fatal(err)
	}
	if charset == "gbk" {
		if text, err = simplifiedchinese.GBK.NewEncoder().Bytes(text); err != nil {
			v.t.Fatal(err)
		}
	}
	form := url.Values{"app_id": {v.keys.Alipay.AppID}, "method": {method}, "format": {"JSON"}, "charset": {charset},
		"sign_type": {"RSA2"}, "version": {"1.0"}, "notify_url": {v.shop.url + "/alipay"},
		"biz_content": {string(text)},
		"timestamp":   {time.Now().In(time.FixedZone("", 8*3600)).Format("2006-01-02 15:04:05")}}
	form.Set("sign", base64.StdEncoding.EncodeToString(v.opensslSign("alipay_app_private.pem", alipayText(form))))
	return form
}

var formType = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}

// askAlipay makes a call, verifies with openssl the signature over the exact text of its node, and returns the node.
func (v *vendor) askAlipay(form url.Values) map[string]any {
	v.t.Helper()
	body := string(v.must("POST", "/gateway.do", form.Encode(), formType).body)
	wrapper := strings.ReplaceAll(form.Get("method"), ".", "_") + "_response"
	rest, ok := strings.CutPrefix(body, `{"`+wrapper+`":`)
	node, sign, signed := strings.Cut(rest, `,"sign":"`)
	signature, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(sign, `"}`))
	if !ok || !signed || err != nil || !v.openssl("alipay_public.pem", []byte(node), signature) {
		v.t.Fatalf("not signed: %s", body)
	}
	m := map[string]any{}
	if err := json.Unmarshal([]byte(node), &m); err != nil {
		v.t.Fatal(err)
	}
	return m
}

func TestAlipayRefusesUnsignedRequests(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	biz := map[string]any{"out_trade_no": "A1", "total_amount": "1.00", "subject": "x"}
	good := v.alipay("alipay.trade.precreate", "utf-8", biz)
	for field, value := range map[string]string{"biz_content": strings.Replace(good.Get("biz_content"), "1.00", "0.01",
		1),
		"sign": "", "app_id": "2021000000000000", "notify_url": "http://127.0.0.1:1/"} {
		bad := url.Values{}
		for k, vs := range good {
			bad[k] = vs
		}
		bad.Set(field, value)
		if a := v.must("POST", "/gateway.do", bad.Encode(), formType); !strings.Contains(string(a.body), "40002") {
			t.Errorf("%s: %s", field, a.body)
		}
	}
	if n := len(tell[[]book.Payment](v, "GET", "payments", nil)); n != 0 {
		t.Errorf("%d payments", n)
	}
	if got := v.askAlipay(good); got["code"] != "10000" {
		t.Error(got)
	}
}

func TestAlipayCodeIsNoTradeBeforeItIsScanned(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	q := map[string]any{"out_trade_no": "A1"}
	made := v.askAlipay(v.alipay("alipay.trade.precreate", "utf-8", map[string]any{"out_trade_no": "A1",
		"total_amount": "12.30", "subject": "tea"}))
	if got := v.askAlipay(v.alipay("alipay.trade.query", "utf-8", q)); got["sub_code"] != "ACQ.TRADE_NOT_EXIST" {
		t.Errorf("before: %v", got)
	}
	tell[*book.Payment](v, "POST", "open/alipay", map[string]any{"qr_code": made["qr_code"]})
	if got := v.askAlipay(v.alipay("alipay.trade.query", "utf-8", q)); got["trade_status"] != "WAIT_BUYER_PAY" {
		t.Errorf("after: %v", got)
	}
	if got := v.askAlipay(v.alipay("alipay.trade.close", "utf-8", q)); got["code"] != "10000" {
		t.Errorf("close: %v", got)
	}
	if a := v.must("POST", "/control/payments/alipay/A1", `{"do":"pay"}`,
		http.Header{"Content-Type": {"application/json"}}); a.StatusCode != 409 {
		t.Errorf("a closed payment was paid: %s", a.body)
	}
}

// A browser opens the form, in GBK; the notice is in GBK too, and openssl verifies it.
func TestAlipayFormIsPaidAndTold(t *testing.T) {
	t.Parallel()
	for _, charset := range []string{"utf-8", "gbk"} {
		v := newVendor(t)
		form := v.alipay("alipay.trade.page.pay", charset, map[string]any{"out_trade_no": "A1", "total_amount": "12.30",
			"subject": "龙井茶", "product_code": "FAST_INSTANT_TRADE_PAY"})
		for range 2 {
			if a := v.must("GET", "/gateway.do?"+form.Encode(), "", nil); a.StatusCode != 200 ||
				!strings.Contains(string(a.body), "12.30 CNY") {
				t.Fatalf("%d %s", a.StatusCode, a.body)
			}
		}
		v.act("alipay", "A1", "pay")
		v.quiet()
		refund := map[string]any{"out_trade_no": "A1", "refund_amount": "2.00", "out_request_no": "R1"}
		first := v.askAlipay(v.alipay("alipay.trade.refund", charset, refund))
		again := v.askAlipay(v.alipay("alipay.trade.refund", charset, refund))
		if first["fund_change"] != "Y" || again["fund_change"] != "N" || again["refund_fee"] != "2.00" {
			t.Errorf("%v, %v", first, again)
		}
		v.quiet()
		got := v.shop.callbacks()
		if len(got) != 2 {
			t.Fatalf("%d callbacks", len(got))
		}
		for _, c := range got {
			f := c.form(t)
			signature, err := base64.StdEncoding.DecodeString(f.Get("sign"))
			if err != nil || !v.openssl("alipay_public.pem", []byte(alipayText(f, "sign", "sign_type")), signature) {
				t.Errorf("%s: not signed: %s", charset, c.body)
			}
			subject := f.Get("subject")
			if charset == "gbk" {
				subject, _ = simplifiedchinese.GBK.NewDecoder().String(subject)
			}
			if subject != "龙井茶" || f.Get("trade_status") != "TRADE_SUCCESS" || f.Get("total_amount") != "12.30" {
				t.Errorf("%v", f)
			}
		}
		if paid, back := got[0].form(t), got[1].form(t); paid.Has("refund_fee") || back.Get("refund_fee") != "2.00" ||
			back.Get("out_biz_no") != "R1" {
			t.Errorf("%v\n%v", paid, back)
		}
		if got := v.money("alipay", "A1", "CNY"); got != "12.30-2.00 in 1" {
			t.Error(got)
		}
	}
}

// Only "success" acknowledges a notice. A repeat has the same id.
func TestAlipayRepeatsUntilSuccess(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	texts := []string{"success\n", "SUCCESS", "fail", "success"}
	v.shop.answers(func(_ callback, n int) (int, string) { return 200, texts[min(n, 3)] })
	v.plan("A1", book.Plan{Payer: "pay"})
	v.askAlipay(v.alipay("alipay.trade.precreate", "utf-8",
		map[string]any{"out_trade_no": "A1", "total_amount": "1", "subject": "x"}))
	v.quiet()
	ids := map[string]bool{}
	for _, c := range v.shop.callbacks() {
		ids[c.form(t).Get("notify_id")] = true
	}
	if n := len(v.shop.callbacks()); n != 4 || len(ids) != 1 {
		t.Errorf("%d callbacks with %d ids", n, len(ids))
	}
}

func TestAlipayRefundQueryHasNoStatusForWhatNeverWas(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.plan("A1", book.Plan{Payer: "pay", Refund: "refuse"})
	v.askAlipay(v.alipay("alipay.trade.precreate", "utf-8",
		map[string]any{"out_trade_no": "A1", "total_amount": "1", "subject": "x"}))
	v.quiet()
	refund := map[string]any{"out_trade_no": "A1", "refund_amount": "1.00", "out_request_no": "R1"}
	if got := v.askAlipay(v.alipay("alipay.trade.refund", "utf-8",
		refund)); got["sub_code"] != "ACQ.SELLER_BALANCE_NOT_ENOUGH" {
		t.Error(got)
	}
	if got := v.askAlipay(v.alipay("alipay.trade.fastpay.refund.query", "utf-8", refund)); got["code"] != "10000" ||
		got["refund_status"] != nil {
		t.Error(got)
	}
	v.plan("A1", book.Plan{})
	v.askAlipay(v.alipay("alipay.trade.refund", "utf-8", refund))
	if got := v.askAlipay(v.alipay("alipay.trade.fastpay.refund.query", "utf-8",
		refund)); got["refund_status"] != "REFUND_SUCCESS" {
		t.Error(got)
	}
	refund["out_request_no"] = "R2"
	if got := v.askAlipay(v.alipay("alipay.trade.refund", "utf-8", refund)); got["code"] != "40004" {
		t.Errorf("more than was paid: %v", got)
	}
}
