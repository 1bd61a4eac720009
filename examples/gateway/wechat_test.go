package main

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// serialOf reads a certificate's serial number with openssl.
func (v *vendor) serialOf(name string) string {
	v.t.Helper()
	out, err := exec.Command("openssl", "x509", "-in", filepath.Join(v.dir, name), "-serial", "-noout").Output()
	if err != nil {
		v.t.Skip("SKIPPED, NOT TESTED: openssl is not installed")
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "serial="))
}

// wechatHeader signs a request with openssl.
func (v *vendor) wechatHeader(method, path, body string, at time.Time) http.Header {
	v.t.Helper()
	stamp, nonce := strconv.FormatInt(at.Unix(), 10), book.Alnum(32)
	sign := base64.StdEncoding.EncodeToString(v.opensslSign("wechat_merchant_private.pem",
		method+"\n"+path+"\n"+stamp+"\n"+nonce+"\n"+body+"\n"))
	return http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"},
		"Authorization": {fmt.Sprintf(
			`WECHATPAY2-SHA256-RSA2048 mchid="%s",nonce_str="%s",signature="%s",timestamp="%s",serial_no="%s"`,
			v.keys.WeChat.MchID, nonce, sign, stamp, v.serialOf("wechat_merchant_cert.pem"))}}
}

// verifyWechat verifies the signature headers with openssl, by the key that they name.
func (v *vendor) verifyWechat(h http.Header, body []byte) bool {
	v.t.Helper()
	key := "wechat_public.pem"
	if serial := h.Get("Wechatpay-Serial"); serial != v.keys.WeChat.PublicKeyID {
		if serial != v.serialOf("wechat_platform_cert.pem") {
			return false
		}
		key = "wechat_platform_cert.pem"
	}
	signature, err := base64.StdEncoding.DecodeString(h.Get("Wechatpay-Signature"))
	text := h.Get("Wechatpay-Timestamp") + "\n" + h.Get("Wechatpay-Nonce") + "\n" + string(body) + "\n"
	return err == nil && v.openssl(key, []byte(text), signature)
}

// wechat makes a call whose answer is signed.
func (v *vendor) wechat(method, path, body string) *response {
	v.t.Helper()
	a := v.must(method, path, body, v.wechatHeader(method, path, body, time.Now()))
	if !v.verifyWechat(a.Header, a.body) {
		v.t.Errorf("%s: not signed: %v %s", path, a.Header, a.body)
	}
	return a
}

func (v *vendor) wechatOrder(number, more string) string {
	return fmt.Sprintf(`{"appid":"%s","mchid":"%s","description":"茶","out_trade_no":"%s","notify_url":"%s/wechat",`+
		`"amount":{"total":1230,"currency":"CNY"}%s}`,
		v.keys.WeChat.AppID, v.keys.WeChat.MchID, number, v.shop.url, more)
}

func TestWeChatRefusesWrongSignatures(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	const path = "/v3/pay/transactions/native"
	body := v.wechatOrder("W00001", "")
	good := v.wechatHeader("POST", path, body, time.Now())
	change := func(from, to string) http.Header {
		h := good.Clone()
		h.Set("Authorization", strings.Replace(h.Get("Authorization"), from, to, 1))
		return h
	}
	for name, c := range map[string]struct {
		body string
		h    http.Header
	}{"body": {strings.Replace(body, "1230", "1", 1), good},
		"none":   {body, http.Header{"Accept": {"application/json"}}},
		"old":    {body, v.wechatHeader("POST", path, body, time.Now().Add(-6*time.Minute))},
		"future": {body, v.wechatHeader("POST", path, body, time.Now().Add(6*time.Minute))},
		"serial": {body, change(`serial_no="`, `serial_no="0`)}, "mchid": {body, change(`mchid="`, `mchid="0`)},
		"path":  {body, v.wechatHeader("POST", path+"/", body, time.Now())},
		"nonce": {body, change(`nonce_str="`, `nonce_str="0`)}} {
		if a := v.must("POST", path, c.body, c.h); a.StatusCode != 401 ||
			!strings.Contains(string(a.body), "SIGN_ERROR") {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	if a := v.must("POST", path, body, good); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// resource decrypts a notice.
func (v *vendor) resource(c callback) (kind string, plain map[string]any) {
	v.t.Helper()
	var n struct {
		EventType string `json:"event_type"`
		Resource  struct {
			Ciphertext     []byte `json:"ciphertext"`
			Nonce          string `json:"nonce"`
			AssociatedData string `json:"associated_data"`
		} `json:"resource"`
	}
	if err := json.Unmarshal(c.body, &n); err != nil {
		v.t.Fatal(err)
	}
	block, err := aes.NewCipher([]byte(v.keys.WeChat.APIv3))
	if err != nil {
		v.t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		v.t.Fatal(err)
	}
	text, err := gcm.Open(nil, []byte(n.Resource.Nonce), n.Resource.Ciphertext, []byte(n.Resource.AssociatedData))
	if err != nil {
		v.t.Fatal(err)
	}
	if err := json.Unmarshal(text, &plain); err != nil {
		v.t.Fatal(err)
	}
	return n.EventType, plain
}

func TestWeChatIsPaidToldAndRefunded(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"public key", "certificates"} {
		v := newVendor(t, mode)
		first := v.wechat("POST", "/v3/pay/transactions/native", v.wechatOrder("W00001", "")).json(t)
		again := v.wechat("POST", "/v3/pay/transactions/native", v.wechatOrder("W00001", "")).json(t)
		if first["code_url"] != again["code_url"] || !strings.HasPrefix(fmt.Sprint(first["code_url"]), "weixin://") {
			t.Errorf("%v, %v", first, again)
		}
		v.act("wechat", "W00001", "pay")
		query := "/v3/pay/transactions/out-trade-no/W00001?mchid=" + v.keys.WeChat.MchID
		paid := v.wechat("GET", query, "").json(t)
		refund := fmt.Sprintf(`{"out_trade_no":"W00001","out_refund_no":"R1","notify_url":"%s/wechat",`+
			`"amount":{"refund":230,"total":1230,"currency":"CNY"}}`, v.shop.url)
		if got := v.wechat("POST", "/v3/refund/domestic/refunds", refund).json(t); got["status"] != "PROCESSING" {
			t.Errorf("%v", got)
		}
		v.quiet()
		v.wechat("POST", "/v3/refund/domestic/refunds", refund) // the same refund
		if got := v.wechat("GET", "/v3/refund/domestic/refunds/R1", "").json(t); got["status"] != "SUCCESS" {
			t.Errorf("%v", got)
		}
		if a := v.wechat("POST", "/v3/pay/transactions/out-trade-no/W00001/close",
			`{"mchid":"`+v.keys.WeChat.MchID+`"}`); a.StatusCode != 400 {
			t.Errorf("a paid payment was closed: %s", a.body)
		}
		if a := v.wechat("POST", "/v3/pay/transactions/native",
			v.wechatOrder("W00001", "")); a.json(t)["code"] != "ORDERPAID" {
			t.Errorf("a paid number again: %s", a.body)
		}
		kinds := map[string]map[string]any{}
		for _, c := range v.shop.callbacks() {
			if !v.verifyWechat(c.header, c.body) {
				t.Errorf("%s: not signed: %v", mode, c.header)
			}
			if byKey := strings.HasPrefix(c.header.Get("Wechatpay-Serial"),
				"PUB_KEY_ID_"); byKey != (mode == "public key") {
				t.Errorf("%s: %v", mode, c.header)
			}
			kind, plain := v.resource(c)
			kinds[kind] = plain
		}
		if p := kinds["TRANSACTION.SUCCESS"]; p["transaction_id"] != paid["transaction_id"] ||
			p["trade_state"] != "SUCCESS" {
			t.Errorf("%v, %v", p, paid)
		}
		if r := kinds["REFUND.SUCCESS"]; r["out_refund_no"] != "R1" || r["refund_status"] != "SUCCESS" {
			t.Errorf("%v", r)
		}
		if got := v.money("wechat", "W00001", "CNY"); got != "12.30-2.30 in 1" {
			t.Error(got)
		}
	}
}

func TestWeChatCertificatesAreEncrypted(t *testing.T) {
	t.Parallel()
	v := newVendor(t, "certificates")
	data := v.wechat("GET", "/v3/certificates", "").json(t)["data"].([]any)[0].(map[string]any)
	if data["serial_no"] != v.serialOf("wechat_platform_cert.pem") {
		t.Error(data)
	}
}

// The app does not verify the parameters: WeChat refuses the payment if the merchant signed them wrongly.
func TestWeChatVerifiesWhatTheAppBrings(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	made := v.wechat("POST", "/v3/pay/transactions/jsapi", v.wechatOrder("W00001", `,"payer":{"openid":"o1"}`)).json(t)
	c := map[string]string{"appId": v.keys.WeChat.AppID, "timeStamp": "1414561699", "nonceStr": "n", "signType": "RSA",
		"package": fmt.Sprint("prepay_id=", made["prepay_id"])}
	c["paySign"] = base64.StdEncoding.EncodeToString(v.opensslSign("wechat_merchant_private.pem",
		c["appId"]+"\n"+c["timeStamp"]+"\n"+c["nonceStr"]+"\n"+c["package"]+"\n"))
	if p := tell[*book.Payment](v, "POST", "open/wechat", c); p.Number != "W00001" {
		t.Errorf("%v", p)
	}
	c["timeStamp"] = "1414561700"
	text, _ := json.Marshal(c)
	if a := v.must("POST", "/control/open/wechat", string(text),
		http.Header{"Content-Type": {"application/json"}}); a.StatusCode != 400 {
		t.Errorf("%s", a.body)
	}
}
