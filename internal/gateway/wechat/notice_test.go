package wechat

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
)

// The vectors of WeChat Pay's library for Go: core/notify/notify_test.go and core/auth/signers in
// https://github.com/wechatpay-apiv3/wechatpay-go. The key of its notice has 16 bytes, real ones have 32.
const (
	vectorCertificate = `-----BEGIN CERTIFICATE-----
MIIDVzCCAj+gAwIBAgIJANfOWdH1ItcBMA0GCSqGSIb3DQEBCwUAMEIxCzAJBgNV
BAYTAlhYMRUwEwYDVQQHDAxEZWZhdWx0IENpdHkxHDAaBgNVBAoME0RlZmF1bHQg
Q29tcGFueSBMdGQwHhcNMjEwNDI3MDg1NTIzWhcNMzEwNDI1MDg1NTIzWjBCMQsw
CQYDVQQGEwJYWDEVMBMGA1UEBwwMRGVmYXVsdCBDaXR5MRwwGgYDVQQKDBNEZWZh
dWx0IENvbXBhbnkgTHRkMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA
2VCTd91fnUn73Xy9DLvt/V62TVxRTEEstVdeRaZ3B3leO0pldE806mXO4RwdHXag
HQ4vGeZN0yqm++rDsGK+U3AH7kejyD2pXshNP9Cq5YwbptiLGtjcquw4HNxJQUOm
DeJf2vg6byms9RUipiq4SzbJKqJFlUpbuIPDpSpWz10PYmyCNeDGUUK65E5h2B83
4uxl1zNLYQCrkdBzb8oUxwYeP5a2DNxmjL5lsJML7DGr5znsevnoqGRwTm9fxCGf
y8wus7hwKz6clt3Whmmda7UAdb1c08hEQFVRbF14AR73xbnd8N0obCWJPCbzMCtk
aSef4FdEEgEXJiw0VAJT8wIDAQABo1AwTjAdBgNVHQ4EFgQUT1c7nd/SUO76HSoZ
umNUJv1R5PwwHwYDVR0jBBgwFoAUT1c7nd/SUO76HSoZumNUJv1R5PwwDAYDVR0T
BAUwAwEB/zANBgkqhkiG9w0BAQsFAAOCAQEAfTjxKRQMzNB/U6ZoCUS+BSNfa2Oh
0plMN6ZuzwiVVZwg1jywvv5yv04koS7Pd4i9E4gt9ZBUQXlpq+A3oOCEEHNRR6b2
kyazGRM7s0OP5X21WrbpSmKmU6K7hkfx30yYs08LVs/Q8DIhvaj1FCFeJzUCzYn/
fHMq4tsbKO0dKAeydPM/nrUZBmaYQVKMVOORGLFjFKVO7JV6Kq/R86ouhjEPgJOe
2xulNBUcjicqtZlBdEh/PWCYP2SpGVDclKm8jeo175T3EVAkdKzzmfpxtMmnMlmq
cTJOU9TxuGvNASMtjj7pYIerTx+xgZDXEVBWFW9PjJ0TV06tCRsgSHItgg==
-----END CERTIFICATE-----`
	vectorSignature = "tJHIiIS9eB2hAYstmAmbbD3ZE5LiIm/Ug5tuL4fC0YOFRWIHV39UFIZXC0e9Wl6lBu6sKvkqDkzpqzBs" +
		"VHyXFlbYZTOQrVdG4b6LfTnK4mikv9++ixJMd3vTf2yCqvBkh98zs3Ds5zsYQakzbcwhmw4fMJs4nPLws28H0UW9FjDR//rxELLw" +
		"XvV1VEA1IBLX70xptjL8hrfUjEE8kkry6yNJTHZRU8CAc7qHli2Ng1V1qb9ARbK8A3ThmFmPQvRGrapI/jS2laKKgYUmfdEdkNO6" +
		"B2Cke5e8VTxY406ArAmQ90GAihDwIcb16TQMnzCMBoutnwZKNiKRACrFmtxw2Q=="
	vectorBody = `{"id":"3119dfba-e649-5eec-ab1e-3412bc4d2e17","create_time":"2021-06-24T16:37:26+08:00",` +
		`"resource_type":"encrypt-resource","event_type":"PAYSCORE.USER_OPEN_SERVICE","summary":"签约成功",` +
		`"resource":{"original_type":"payscore","algorithm":"AEAD_AES_256_GCM",` +
		`"ciphertext":"YDS3lKPaC4Y52Gf3uhft5qUBlIa8b428AWTtTauHQfQrRw+X1WpiuHIDy0vo1Vd6VEq67aVyqPdDYMkR` +
		`VSDaZL3iZttevRMOoPKMifozg6XPWjIZumks/GpT48lI4NizyeaqLBokNebthah3o1H76qSlO9NkDjp9bzmKLEYYH9TEklFUpsvP` +
		`qOTOcgSLgh21YJXYR7dEBXFgRLiNIKRgO5JdXh1hccRUAlyVWxE54PXpnQ==",` +
		`"associated_data":"payscore","nonce":"Kj7QIyUiYx1q"}}`
	vectorKey  = "testMchAPIv3Key0"
	vectorText = `{"mchid":"1234567890","appid":"054aa7d7a2a54ab5898df65bd96f001c",` +
		`"create_time":"2020-06-30T12:12:00+08:00","out_contract_code":"21640bdbd08e473e828f3206a2741c6e"}`

	signerKey = `MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQDZUJN33V+dSfvdfL0Mu+39XrZNXFFM` +
		`QSy1V15FpncHeV47SmV0TzTqZc7hHB0ddqAdDi8Z5k3TKqb76sOwYr5TcAfuR6PIPaleyE0/0KrljBum2Isa2Nyq7Dgc3ElBQ6YN` +
		`4l/a+DpvKaz1FSKmKrhLNskqokWVSlu4g8OlKlbPXQ9ibII14MZRQrrkTmHYHzfi7GXXM0thAKuR0HNvyhTHBh4/lrYM3GaMvmWw` +
		`kwvsMavnOex6+eioZHBOb1/EIZ/LzC6zuHArPpyW3daGaZ1rtQB1vVzTyERAVVFsXXgBHvfFud3w3ShsJYk8JvMwK2RpJ5/gV0QS` +
		`ARcmLDRUAlPzAgMBAAECggEBAMc7rDeUaXiWv6bMGbZ3BTXpg1FhdddnWUnYE8HfX/kmOFI7XtBHXcgYFpcjYz4D5787pcsk7ezP` +
		`idAj58zqenuclmjKnUmT3pfbI5eCA2v4C9HnbYDrmUPK1ZcADtka4D6ScDccpNYNa1g2TFHzkIrEa6H+q7S3O2fqxY/DRVtN0JIX` +
		`alBb8daaqL5QVzSmM2BMVnHy+YITJWIkP2a3pKs9C0W65JGDsnG0wVrHinHF+cnhFZIbaPEI//DAFMc9NkrWOKVRTEgcCUxCFaHO` +
		`ZVNxDWZD7A2ZfJB2rK6eg//ygEiFDR2h6mTaDowMB4YF2n2dsIO4/dCG8vPHI20jn4ECgYEA/ZGu6lEMlO0XZnamAZGtiNgLcCfM` +
		`/C2ZERZE7QTRPZH1WdK92Al9ndldsswFw4baJrJLCmghjF/iG4zihhBvLnOLksnZUfjdumxoHDWXo2QBWbI5QsWIE7AuTiWgWj1I` +
		`7X4fCXSQf6i+M/y26TogQ7d0ANpZFyOkTNMn/tiJvLECgYEA22XqlamG/yfAGWery5KNH2DGlTIyd6xJWtJ9j3jU99lZ0bCQ5xhi` +
		`BbU9ImxCi3zgTsoqLWgA/p00HhNFNoUcTl9ofc0G3zwTD1y0ZzcnVKxGJdZ6ohW52V0hJStAigtjYAsUgjm7//FH7PiQDBDP1Wa6` +
		`xSRkDQU/aSbQxvEE8+MCgYEA3bb8krW7opyM0XL9RHH0oqsFlVO30Oit5lrqebS0oHl3Zsr2ZGgoBlWBsEzk3UqUhTFwm/DhJLTS` +
		`J/TQPRkxnhQ5/mewNhS9C7yua7wQkzVmWN+VYeUGTvDGDF6qDz12/vJAgSwDDRym8x4NcXD5tTw7mmNRcwIfL22SkysThIECgYAV` +
		`BgccoEoXWS/HP2/u6fQr9ZIR6eV8Ij5FPbZacTG3LlS1Cz5XZra95UgebFFUHHtCEY1JHJY7z8SWvTH8r3Su7eWNaIAoFBGffzqq` +
		`SVazfm6aYZsOvRY6BfqPHT3p/H1hTq6AbBffxrcltgvXnCTORjHPglU0CjSxVs7awW3AEQKBgB5WtaC8VLROM7rkfVIq+RXqE5vt` +
		`Jfa3e3N7W3RqxKp4zHFAPfr82FK5CX2bppEaxY7SEZVvVInKDc5gKdG/jWNRBmvvftZhY59PILHO2X5vO4FXh7suEjy6VIh0gsnK` +
		`36mmRboYIBGsNuDHjXLeBDa+8mDLkWu5nHEhOxy2JJZl`
	// of the text "source"
	signerSignature = "BKyAfU4iMCuvXMXS0Wzam3V/cnxZ+JaqigPM5OhljS2iOT95OO6Fsuml2JkFANJU9K6q9bLlDhPXuoVz" +
		"+pp4hAm6pHU4ld815U4jsKu1RkyaII+1CYBUYC8TK0XtJ8FwUXXz8vZHh58rrAVN1XwNyvD1vfpxrMT4SL536GLwvpUHlCqIMzoZ" +
		"UguLli/K8V29QiOhuH6IEqLNJn8e9b3nwNcQ7be3CzYGpDAKBfDGPCqCv8Rw5zndhlffk2FEA70G4hvMwe51qMN/RAJbknXG23bS" +
		"lObuTCN7Ndj1aJGH6/L+hdwfLpUtJm4QYVazzW7DFD27EpSQEqA8bX9+8m1rLg=="
)

var vectorTime = time.Unix(1624523846, 0)

func vectorHeader() http.Header {
	return http.Header{"Wechatpay-Nonce": {"EcZ9Cmy4Xyx1i6RlJQzLcCyEqDa26NBz"}, "Wechatpay-Timestamp": {"1624523846"},
		"Wechatpay-Serial": {"D7CE59D1F522D701"}, "Wechatpay-Signature": {vectorSignature}}
}

const (
	newKey = "0123456789abcdef0123456789abcdef"
	oldKey = "fedcba9876543210fedcba9876543210"
	keyID  = "PUB_KEY_ID_0116"
)

// party is WeChat Pay's side of a test.
type party struct {
	key      *rsa.PrivateKey
	merchant *rsa.PublicKey
	gw       *gateway.Configured
}

func newParty(t testing.TB, url string) *party {
	t.Helper()
	key, _, public := gatewaytest.Key(t)
	own, private, _ := gatewaytest.Key(t)
	settings := map[string]any{"mchid": "1900000001", "appid": "wx1", "appids": map[string]any{"app": "wx2"},
		"serial_no": "ABC", "private_key": private, "api_v3_keys": []string{newKey, oldKey},
		"public_keys": []any{map[string]any{"id": keyID, "key": public}, map[string]any{"key": vectorCertificate}}}
	if url != "" {
		settings["url"] = url
	}
	return &party{key, &own.PublicKey, gatewaytest.New(t, "wechat", Dialect, settings)}
}

func seal(key []byte, nonce, associated string, text []byte) ([]byte, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return box.Seal(nil, []byte(nonce), text, []byte(associated)), nil
}

func (p *party) sign(at time.Time, body string) http.Header {
	stamp := fmt.Sprint(at.Unix())
	signature, err := gateway.SignRSA(p.key, []byte(stamp+"\nnonce\n"+body+"\n"))
	if err != nil {
		panic(err)
	}
	return http.Header{"Wechatpay-Nonce": {"nonce"}, "Wechatpay-Timestamp": {stamp}, "Wechatpay-Serial": {keyID},
		"Wechatpay-Signature": {signature}}
}

func notice(t testing.TB, key, event, resource string) string {
	t.Helper()
	box, err := seal([]byte(key), "abcdefghijkl", "transaction", []byte(resource))
	if err != nil {
		t.Fatal(err)
	}
	return `{"id":"n1","create_time":"2026-11-25T12:00:00+08:00","event_type":"` + event +
		`","resource":{"algorithm":"AEAD_AES_256_GCM",` +
		`"nonce":"abcdefghijkl","associated_data":"transaction","ciphertext":"` +
		base64.StdEncoding.EncodeToString(box) + `"}}`
}

func TestPublishedNotice(t *testing.T) {
	g := newParty(t, "").gw
	n, err := g.Notice(vectorHeader(), []byte(vectorBody), vectorTime)
	if err != nil || n.Kind != gateway.Other || n.ID != "3119dfba-e649-5eec-ab1e-3412bc4d2e17" {
		t.Errorf("%+v, %v", n, err)
	}
	var e envelope
	if err := json.Unmarshal([]byte(vectorBody), &e); err != nil {
		t.Fatal(err)
	}
	a := &account{decryption: [][]byte{[]byte(newKey), []byte(vectorKey)}}
	if text, err := a.decrypt(&e); err != nil || string(text) != vectorText {
		t.Errorf("%s, %v", text, err)
	}
	for by, want := range map[time.Duration]bool{-301 * time.Second: false, -300 * time.Second: true,
		300 * time.Second: true, 301 * time.Second: false} {
		if _, err := g.Notice(vectorHeader(), []byte(vectorBody), vectorTime.Add(by)); (err == nil) != want {
			t.Errorf("%v: %v", by, err)
		}
	}
	for name, value := range map[string]string{"Wechatpay-Nonce": "other", "Wechatpay-Timestamp": "1624523847",
		"Wechatpay-Serial": keyID, "Wechatpay-Signature": "WECHATPAY/SIGNTEST/" + vectorSignature[19:]} {
		changed := vectorHeader()
		changed.Set(name, value)
		if _, err := g.Notice(changed, []byte(vectorBody), vectorTime); !errors.Is(err, gateway.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
		changed.Del(name)
		if _, err := g.Notice(changed, []byte(vectorBody), vectorTime); !errors.Is(err, gateway.ErrForged) {
			t.Errorf("no %s: %v", name, err)
		}
	}
	if _, err := g.Notice(vectorHeader(), []byte(vectorBody+" "), vectorTime); !errors.Is(err, gateway.ErrForged) {
		t.Errorf("changed body: %v", err)
	}
}

func TestPublishedSignature(t *testing.T) {
	key, err := gateway.PrivateKey(signerKey)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := gateway.SignRSA(key, []byte("source")); err != nil || got != signerSignature {
		t.Errorf("%s, %v", got, err)
	}
}

func say(n gateway.Notice, err error) string {
	switch {
	case errors.Is(err, gateway.ErrFormat):
		return "format"
	case err != nil:
		return err.Error()
	}
	text := fmt.Sprint(n.Kind, " ", n.OutTradeNo, " ", n.TransactionID, " ", n.RefundNo, " ", n.Amount, " ", n.Currency)
	if n.Foreign != "" {
		text += " foreign " + n.Foreign
	}
	return text
}

const (
	paid = `{"mchid":"1900000001","appid":"wx1","out_trade_no":"P00001","transaction_id":"4200",` +
		`"trade_state":"SUCCESS",` +
		`"success_time":"2026-11-25T11:59:59+08:00","amount":{"total":1230,"payer_total":1000,"currency":"CNY"}}`
	refundText = `{"mchid":"1900000001","out_trade_no":"P00001","transaction_id":"4200","out_refund_no":"R1",` +
		`"refund_id":"50",` +
		`"refund_status":"SUCCESS","amount":{"total":1230,"refund":230,"payer_refund":200}}`
)

func TestNotices(t *testing.T) {
	p, now := newParty(t, ""), time.Now()
	for _, c := range []struct{ body, want string }{
		{notice(t, newKey, "TRANSACTION.SUCCESS", paid), "paid P00001 4200  12.3 CNY"},
		{notice(t, oldKey, "TRANSACTION.SUCCESS", paid), "paid P00001 4200  12.3 CNY"},
		{notice(t, strings.Repeat("x", 32), "TRANSACTION.SUCCESS", paid), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, `wx1`, `wx2`, 1)),
			"paid P00001 4200  12.3 CNY"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, `wx1`, `wx3`, 1)),
			"paid P00001 4200  12.3 CNY foreign appid wx3"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, `0001"`, `0002"`, 1)),
			"paid P00001 4200  12.3 CNY foreign mchid 1900000002"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, "SUCCESS", "NOTPAY", 1)), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, "1230", "12.30", 1)), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, "1230", "92233720368547758080", 1)), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, "1230", "-1", 1)), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", strings.Replace(paid, "CNY", "HKD", 1)),
			"paid P00001 4200  12.3 HKD"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", `{}`), "format"},
		{notice(t, newKey, "TRANSACTION.SUCCESS", `x`), "format"},
		{notice(t, newKey, "REFUND.SUCCESS", refundText), "refunded P00001 4200 R1 2.3 CNY"},
		{notice(t, newKey, "REFUND.ABNORMAL", strings.Replace(refundText, "SUCCESS", "ABNORMAL", 1)),
			"refund_abnormal P00001 4200 R1 2.3 CNY"},
		{notice(t, newKey, "REFUND.CLOSED", strings.Replace(refundText, "SUCCESS", "CLOSED", 1)),
			"refund_failed P00001 4200 R1 2.3 CNY"},
		{notice(t, newKey, "REFUND.SUCCESS", strings.Replace(refundText, "SUCCESS", "CLOSED", 1)), "format"},
		// A refund under the event of a payment is not a payment.
		{notice(t, newKey, "TRANSACTION.SUCCESS", refundText), "format"},
		{notice(t, newKey, "REFUND.SUCCESS", paid), "format"},
		{notice(t, newKey, "COUPON.USE", `{}`), "other    0 "},
		{strings.Replace(notice(t, newKey, "TRANSACTION.SUCCESS", paid), `"abcdefghijkl"`, `"short"`, 1), "format"},
		{strings.Replace(notice(t, newKey, "TRANSACTION.SUCCESS", paid), `"transaction"`, `"refund"`, 1), "format"},
		{strings.Replace(notice(t, newKey, "TRANSACTION.SUCCESS", paid), "AES_256", "AES_128", 1), "format"},
		{`{}`, "format"},
		{`<xml></xml>`, "format"},
	} {
		n, err := p.gw.Notice(p.sign(now, c.body), []byte(c.body), now)
		if got := say(n, err); got != c.want || err == nil && n.ID != "n1" {
			t.Errorf("%s\n%s, want %s (%v)", c.body, got, c.want, err)
		}
	}
	body := notice(t, newKey, "TRANSACTION.SUCCESS", paid)
	if n, _ := p.gw.Notice(p.sign(now, body), []byte(body), now); n.At.Unix() != 1795579199 {
		t.Errorf("%d", n.At.Unix())
	}
}

func TestAcknowledge(t *testing.T) {
	g := newParty(t, "").gw
	for ack, want := range map[*gateway.Ack]string{new(g.Acknowledge(true)): `200 {"code":"SUCCESS"}`,
		new(g.Acknowledge(false)): `503 {"code":"FAIL","message":"SEND_AGAIN"}`,
		new(Dialect.Forged):       `401 {"code":"FAIL","message":"SIGN_ERROR"}`} {
		if got := fmt.Sprint(ack.Status, " ", string(ack.Body)); got != want {
			t.Error(got)
		}
	}
}

func FuzzNotice(f *testing.F) {
	p, now := newParty(f, ""), time.Unix(1_700_000_000, 0)
	f.Add("TRANSACTION.SUCCESS", paid)
	f.Add("REFUND.SUCCESS", refundText)
	f.Add("TRANSACTION.SUCCESS", `{"amount":{"total":1e99}}`)
	f.Fuzz(func(t *testing.T, event, resource string) {
		name, _ := json.Marshal(event)
		body := notice(t, newKey, strings.Trim(string(name), `"`), resource)
		n, err := p.gw.Notice(p.sign(now, body), []byte(body), now)
		if err != nil && !errors.Is(err, gateway.ErrFormat) || err == nil && n.Kind == gateway.Paid &&
			n.Foreign == "" && n.Amount.Coef.Sign() <= 0 {
			t.Errorf("%+v, %v", n, err)
		}
	})
}
