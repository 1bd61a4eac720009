// Package alipay simulates Alipay's gateway.do with public keys and RSA2: forms that start a payment, calls about it,
// and notices.
//
// As with the vendor, a trade exists only after the payer has opened the form or the QR code: before, a query answers
// that the trade does not exist. Declines cause no notice. The answer to a refund has the sum of all refunds. A query
// of a refund that failed or does not exist succeeds without a status.
package alipay

import (
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/encoding/simplifiedchinese"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

const (
	name   = "alipay"
	layout = "2006-01-02 15:04:05"
)

// beijing is the time zone of all times.
var beijing = time.FixedZone("CST", 8*60*60)

// Keys of the account.
type Keys struct {
	AppID    string
	SellerID string
	App      *rsa.PrivateKey // the merchant's: signs requests
	Alipay   *rsa.PrivateKey // signs answers and notices
}

// Gateway is the simulated vendor.
type Gateway struct {
	Keys   Keys
	Forger *rsa.PrivateKey // signs forgeries
	Book   *book.Book
	URL    string // of the simulator
}

var _ book.Dialect = (*Gateway)(nil)

func (*Gateway) Name() string { return name }

// RefundKey is the key of a refund: its number is unique within the payment.
func (*Gateway) RefundKey(payment, refund string) string { return payment + "/" + refund }

// TransactionID returns the trade number: a payment has it from the beginning, and a second transaction gets a number
// of its own.
func (*Gateway) TransactionID(p *book.Payment) string {
	if p.First() == nil {
		return p.ID
	}
	return tradeNo()
}

func tradeNo() string { return time.Now().In(beijing).Format("20060102") + "2200" + book.Digits(16) }

func clock(t time.Time) string { return t.In(beijing).Format(layout) }

// Compose writes notices of payments, of succeeded refunds, and of the end of the period for refunds.
func (g *Gateway) Compose(e *book.Event) []book.Content {
	if e.Payment.NotifyURL == "" || e.Transaction == nil {
		return nil
	}
	p, t := e.Payment, e.Transaction
	total := book.Format(t.Amount, t.Scale)
	form := map[string]string{"notify_type": "trade_status_sync", "notify_id": notifyID(e.At), "app_id": g.Keys.AppID,
		"auth_app_id": g.Keys.AppID, "charset": p.Details["charset"], "version": "1.0", "sign_type": "RSA2",
		"trade_no": t.ID, "out_trade_no": p.Number, "buyer_id": buyer, "seller_id": g.Keys.SellerID,
		"trade_status": "TRADE_SUCCESS", "total_amount": total, "receipt_amount": total, "invoice_amount": total,
		"buyer_pay_amount": total, "point_amount": "0.00", "subject": p.Description, "gmt_create": clock(p.CreatedAt),
		"gmt_payment": clock(t.At), "fund_bill_list": `[{"amount":"` + total + `","fundChannel":"PCREDIT"}]`}
	if t.Seller != "" {
		form["seller_id"] = t.Seller
	}
	if t.App != "" || t.OtherMode {
		form["app_id"], form["auth_app_id"] = "2019999999999999", "2019999999999999"
	}
	switch e.Kind {
	case book.EventPaid:
	case book.EventFinished:
		form["trade_status"] = "TRADE_FINISHED"
		form["gmt_close"] = clock(e.At)
	case book.EventRefund:
		if e.Refund.Status != book.RefundSucceeded {
			return nil
		}
		form["gmt_refund"] = clock(e.At) + ".000"
		unnamed := strings.HasPrefix(e.Refund.Number, "unnamed")
		if e.Refund.Number != p.Number && !unnamed { // a refund without a number has the number of the payment
			form["out_biz_no"] = e.Refund.Number
		}
		form["refund_fee"] = book.Format(e.GivenBack, t.Scale) // sum of all refunds so far
		if e.GivenBack >= t.Amount {
			form["trade_status"], form["gmt_close"] = "TRADE_CLOSED", clock(e.At)
		}
	default:
		return nil
	}
	return []book.Content{{ID: form["notify_id"], Type: form["trade_status"], URL: p.NotifyURL, Body: form}}
}

const buyer = "2088102122524333"

func notifyID(at time.Time) string { return at.In(beijing).Format("2006010215") + book.Digits(24) }

// Request signs a notice with the present time, in the charset of the payment.
func (g *Gateway) Request(n *book.Notice, address string, now time.Time, f book.Forgery) *http.Request {
	form := map[string]string{}
	if json.Unmarshal(n.Content, &form) != nil {
		return nil
	}
	form["notify_time"] = clock(now)
	key := g.Keys.Alipay
	switch f {
	case book.Key, book.Probe, book.Serial:
		key = g.Forger
	case book.Old, book.Future:
		return nil // the signature has no time limit: a replay is valid
	}
	for k, v := range form {
		form[k] = encode(v, form["charset"])
	}
	signature := sign(key, Content(form, "sign", "sign_type"))
	if f == book.Tampered {
		form["total_amount"] = "1" + form["total_amount"]
	}
	if form["sign"] = signature; f == book.None {
		delete(form, "sign")
	}
	values := url.Values{}
	for k, v := range form {
		values.Set(k, v)
	}
	r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(values.Encode()))
	if err != nil {
		return nil
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset="+form["charset"])
	return r
}

// Content returns the text to sign: all parameters with a value, sorted, except those in without.
func Content(form map[string]string, without ...string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(form)) {
		if form[k] != "" && !slices.Contains(without, k) {
			pairs = append(pairs, k+"="+form[k])
		}
	}
	return strings.Join(pairs, "&")
}

func gbk(charset string) bool {
	return slices.Contains([]string{"gbk", "gb2312", "gb18030"}, strings.ToLower(charset))
}

// encode encodes text in a charset.
func encode(text, charset string) string {
	if gbk(charset) {
		if out, err := simplifiedchinese.GB18030.NewEncoder().String(text); err == nil {
			return out
		}
	}
	return text
}

func decode(text, charset string) string {
	if gbk(charset) {
		if out, err := simplifiedchinese.GB18030.NewDecoder().String(text); err == nil {
			return out
		}
	}
	return text
}

// Acknowledged reports whether the body is exactly "success".
func (*Gateway) Acknowledged(status int, body []byte) bool {
	return status == http.StatusOK && string(body) == "success"
}

// Schedule has the waits between eight attempts in 25 hours.
func (*Gateway) Schedule() []time.Duration {
	return []time.Duration{4 * time.Minute, 10 * time.Minute, 10 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
		15 * time.Hour}
}

func (*Gateway) Patience() time.Duration { return 15 * time.Second }
