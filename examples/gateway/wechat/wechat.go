// Package wechat simulates WeChat Pay's API v3: payments by native, JSAPI, app and H5, refunds, signed answers, and
// notices with an encrypted resource; with the platform's public key, or with its certificates.
//
// As with the vendor, declines cause no notice, a refund ends after its call was answered, and a refund's notice names
// neither currency nor application.
package wechat

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

const name = "wechat"

var beijing = time.FixedZone("CST", 8*60*60)

// Keys of the account.
type Keys struct {
	MchID, AppID, APIv3 string

	Merchant       *rsa.PrivateKey // signs requests
	MerchantSerial string

	PublicKeyID string
	PublicKey   *rsa.PrivateKey // of the platform, in the mode with a public key
	Certificate *x509.Certificate
	CertKey     *rsa.PrivateKey // of the platform, in the mode with certificates
}

// Serial is a certificate's number as the vendor writes it.
func Serial(c *x509.Certificate) string { return fmt.Sprintf("%X", c.SerialNumber) }

// Gateway is the simulated vendor.
type Gateway struct {
	Keys         Keys
	Forger       *rsa.PrivateKey // signs forgeries
	Certificates bool            // sign by certificate, unless a request names the public key
	Book         *book.Book
	URL          string // of the simulator
}

var _ book.Dialect = (*Gateway)(nil)

func (*Gateway) Name() string { return name }

// TransactionID returns a new id: WeChat Pay assigns it when the payer pays.
func (*Gateway) TransactionID(*book.Payment) string {
	return "4200" + book.Digits(6) + time.Now().In(beijing).Format("20060102") + book.Digits(10)
}

func clock(t time.Time) string { return t.In(beijing).Format(time.RFC3339) }

type object map[string]any

// stored is the content of a notice.
type stored struct {
	Type, Summary, Original, Created string
	Plain                            object
}

// Compose writes notices of payments and of ended refunds.
func (g *Gateway) Compose(e *book.Event) []book.Content {
	s := stored{Created: clock(e.At)}
	url := e.Payment.NotifyURL
	switch e.Kind {
	case book.EventPaid:
		s.Type, s.Summary, s.Original = "TRANSACTION.SUCCESS", "支付成功", "transaction"
		s.Plain = g.transaction(e.Payment, e.Transaction)
	case book.EventRefund:
		status := refundStatus(e.Refund)
		if status == "PROCESSING" {
			return nil
		}
		s.Type, s.Summary, s.Original = "REFUND."+status, "退款"+status, "refund"
		s.Plain, url = g.refundNotice(e, status), e.Refund.NotifyURL
	default:
		return nil
	}
	if url == "" {
		return nil
	}
	id := []string{book.Alnum(8), book.Alnum(4), book.Alnum(4), book.Alnum(4), book.Alnum(12)}
	return []book.Content{{ID: strings.ToLower(strings.Join(id, "-")), Type: s.Type, URL: url, Body: s}}
}

func (g *Gateway) refundNotice(e *book.Event, status string) object {
	r, t := e.Refund, e.Transaction
	o := object{"mchid": g.mchID(t), "out_trade_no": e.Payment.Number, "transaction_id": t.ID,
		"out_refund_no": r.Number, "refund_id": r.ID, "refund_status": status, "user_received_account": "招商银行信用卡0403",
		"amount": object{"total": t.Amount, "refund": r.Amount, "payer_total": t.Amount, "payer_refund": r.Amount}}
	if status == "SUCCESS" {
		o["success_time"] = clock(r.EndedAt)
	}
	return o
}

func (g *Gateway) mchID(t *book.Transaction) string {
	if t != nil && (t.Seller != "" || t.OtherMode) {
		return "1999999999"
	}
	return g.Keys.MchID
}

// transaction returns a payment as in queries and notices; t is the transaction in it, nil: none.
func (g *Gateway) transaction(p *book.Payment, t *book.Transaction) object {
	o := object{"appid": g.Keys.AppID, "mchid": g.mchID(t), "out_trade_no": p.Number, "attach": "",
		"trade_state": "NOTPAY", "trade_state_desc": "订单未支付",
		"amount": object{"total": p.Amount, "currency": p.Currency}}
	switch p.Status {
	case book.Closed:
		o["trade_state"], o["trade_state_desc"] = "CLOSED", "订单已关闭"
	case book.Processing:
		o["trade_state"], o["trade_state_desc"] = "USERPAYING", "用户支付中"
	case book.Paid:
		if t.App != "" {
			o["appid"] = t.App
		}
		payer := p.Payer
		if payer == "" {
			payer = "oUpF8uMuAJO_M2pxb1Q9zNjWeS6o"
		}
		o["transaction_id"], o["trade_type"], o["bank_type"] = t.ID, tradeTypes[p.PayType], "OTHERS"
		o["trade_state"], o["trade_state_desc"], o["success_time"] = "SUCCESS", "支付成功", clock(t.At)
		o["payer"] = object{"openid": payer}
		// A part may be paid by a coupon of the vendor. The merchant gets the total.
		paid := t.Amount - t.Amount/10
		o["amount"] = object{"total": t.Amount, "payer_total": paid, "currency": t.Currency,
			"payer_currency": t.Currency}
	case book.Unopened, book.Payable, book.Declined:
	}
	return o
}

var tradeTypes = map[string]string{"native": "NATIVE", "jsapi": "JSAPI", "app": "APP", "h5": "MWEB"}

func refundStatus(r *book.Refund) string {
	return map[book.RefundStatus]string{book.RefundSucceeded: "SUCCESS", book.RefundFailed: "CLOSED",
		book.RefundAbnormal: "ABNORMAL", book.RefundProcessing: "PROCESSING"}[r.Status]
}

// seal encrypts a resource of a notice, or a certificate, with AES-256-GCM.
func (g *Gateway) seal(plain []byte, nonce, associated string) []byte {
	block, err := aes.NewCipher([]byte(g.Keys.APIv3))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm.Seal(nil, []byte(nonce), plain, []byte(associated))
}

// Request encrypts a notice, and signs it with the present time.
func (g *Gateway) Request(n *book.Notice, url string, now time.Time, f book.Forgery) *http.Request {
	var s stored
	if json.Unmarshal(n.Content, &s) != nil {
		return nil
	}
	plain, err := marshal(s.Plain)
	if err != nil {
		return nil
	}
	nonce := book.Alnum(12)
	body, err := marshal(object{"id": n.ID, "create_time": s.Created, "resource_type": "encrypt-resource",
		"event_type": s.Type, "summary": s.Summary, "resource": object{"original_type": s.Original,
			"algorithm": "AEAD_AES_256_GCM", "ciphertext": g.seal(plain, nonce, s.Original),
			"associated_data": s.Original, "nonce": nonce}})
	if err != nil {
		return nil
	}
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Mozilla/4.0"}}
	g.sign(h, body, now, f, g.Certificates)
	if f == book.Tampered {
		body = bytes.Replace(body, []byte("支付成功"), []byte("支付完成"), 1)
		body = append(body, ' ')
	}
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil
	}
	r.Header = h
	return r
}

func marshal(o object) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(o)
	return bytes.TrimSpace(text.Bytes()), err
}

// sign sets the platform's signature headers over a body.
func (g *Gateway) sign(h http.Header, body []byte, at time.Time, f book.Forgery, byCertificate bool) {
	key, serial := g.Keys.PublicKey, g.Keys.PublicKeyID
	if byCertificate {
		key, serial = g.Keys.CertKey, Serial(g.Keys.Certificate)
	}
	prefix := ""
	switch f {
	case book.None:
		return
	case book.Key:
		key = g.Forger
	case book.Old:
		at = at.Add(-10 * time.Minute)
	case book.Future:
		at = at.Add(10 * time.Minute)
	case book.Probe:
		key, prefix = g.Forger, "WECHATPAY/SIGNTEST/"
	case book.Serial:
		key, serial = g.Forger, strings.ToUpper("5157F09EFDC096DE15EBE81A47057A72"+book.Digits(8))
	}
	stamp, nonce := strconv.FormatInt(at.Unix(), 10), book.Alnum(32)
	h.Set("Wechatpay-Timestamp", stamp)
	h.Set("Wechatpay-Nonce", nonce)
	h.Set("Wechatpay-Serial", serial)
	h.Set("Wechatpay-Signature-Type", scheme)
	h.Set("Wechatpay-Signature", prefix+signed(key, stamp+"\n"+nonce+"\n"+string(body)+"\n"))
}

// Acknowledged reports whether the status acknowledges the notice; the body has no effect.
func (*Gateway) Acknowledged(status int, _ []byte) bool {
	return status == http.StatusOK || status == http.StatusNoContent
}

// Schedule has the waits over 24 hours and 4 minutes.
func (*Gateway) Schedule() []time.Duration {
	const s, m, h = time.Second, time.Minute, time.Hour
	return []time.Duration{15 * s, 15 * s, 30 * s, 3 * m, 10 * m, 20 * m, 30 * m, 30 * m, 30 * m, h,
		3 * h, 3 * h, 3 * h, 6 * h, 6 * h}
}

func (*Gateway) Patience() time.Duration { return 5 * time.Second }
