package alipay

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
)

// content returns the text that is signed: name=value of all parameters, by name. Values are the raw bytes of the form,
// in its charset: GBK is not decoded. Empty values are omitted if filled is set.
func content(form map[string]string, filled bool) []byte {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(form)) {
		if form[name] != "" || !filled {
			parts = append(parts, name+"="+form[name])
		}
	}
	return []byte(strings.Join(parts, "&"))
}

// signedBy reports whether the signature of a notice is valid. It covers neither itself nor sign_type.
func (g *account) signedBy(form map[string]string) bool {
	form = maps.Clone(form)
	signature := form["sign"]
	delete(form, "sign")
	delete(form, "sign_type")
	// Alipay's libraries differ on empty values. Either way they mean nothing here.
	return g.verifies(content(form, false), signature) || g.verifies(content(form, true), signature)
}

// parse reads a form. A name that occurs twice is refused: the signature does not say which one counts.
func parse(body []byte) (map[string]string, bool) {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, false
	}
	form := map[string]string{}
	for name, all := range values {
		if len(all) != 1 {
			return nil, false
		}
		form[name] = all[0]
	}
	return form, true
}

// Notice reads an asynchronous notice.
func (g *account) Notice(_ http.Header, body []byte, _ time.Time) (gateway.Notice, error) {
	form, ok := parse(body)
	switch {
	case !ok:
		return gateway.Notice{}, fmt.Errorf("%w: it is not a form with each name once", gateway.ErrForged)
	case form["sign_type"] != "RSA2":
		return gateway.Notice{}, fmt.Errorf("%w: sign_type must be RSA2", gateway.ErrForged)
	case !g.signedBy(form):
		return gateway.Notice{}, fmt.Errorf("%w: the signature is wrong", gateway.ErrForged)
	}
	if form["notify_id"] == "" {
		return gateway.Notice{}, fmt.Errorf("%w: it has no notify_id", gateway.ErrFormat)
	}
	n, err := g.read(form)
	n.ID = form["notify_id"]
	return n, err
}

func (g *account) read(form map[string]string) (gateway.Notice, error) {
	if form["notify_type"] != "trade_status_sync" {
		return gateway.Notice{Kind: gateway.Other}, nil
	}
	n := gateway.Notice{Kind: states[form["trade_status"]], OutTradeNo: form["out_trade_no"],
		TransactionID: form["trade_no"], Currency: currency(form["trans_currency"])}
	switch {
	case n.Kind == "":
		return n, fmt.Errorf("%w: trade_status is unknown", gateway.ErrFormat)
	case form["app_id"] != g.app:
		n.Foreign = "app_id " + form["app_id"]
	case form["seller_id"] != g.seller:
		n.Foreign = "seller_id " + form["seller_id"]
	}
	for _, name := range []string{"gmt_payment", "gmt_create"} {
		if n.At.IsZero() {
			n.At = timeOf(form[name])
		}
	}
	back, err := money(cmp.Or(form["refund_fee"], "0"))
	if err != nil || !back.Coef.IsZero() || form["out_biz_no"] != "" || form["gmt_refund"] != "" {
		return refunded(n, form), nil
	}
	if n.Kind == gateway.Closed {
		n.At = timeOf(form["gmt_close"])
	}
	if n.Amount, err = money(form["total_amount"]); err != nil {
		return n, fmt.Errorf("%w: total_amount is not an amount", gateway.ErrFormat)
	}
	return n, nil
}

// refunded turns the notice of a refund, whose trade_status is that of a payment, into RefundPending without an amount,
// so that the refund is queried: refund_fee is the sum of all refunds of the payment, not the amount of this one. A
// refund that was made without a number, as in the console, has the number of the payment.
func refunded(n gateway.Notice, form map[string]string) gateway.Notice {
	n.Kind, n.Amount, n.Currency = gateway.RefundPending, amount.Decimal{}, ""
	n.RefundNo = cmp.Or(form["out_biz_no"], n.OutTradeNo)
	n.At, _ = time.ParseInLocation(timeLayout, strings.SplitN(form["gmt_refund"], ".", 2)[0], china)
	return n
}

// states are the states of payments. TRADE_FINISHED follows TRADE_SUCCESS when refunds are no longer possible; without
// refunds it comes instead.
var states = map[string]gateway.Kind{"WAIT_BUYER_PAY": gateway.Pending, "TRADE_SUCCESS": gateway.Paid,
	"TRADE_FINISHED": gateway.Paid, "TRADE_CLOSED": gateway.Closed}

func currency(code string) string {
	if code == "" { // payments in yuan do not state it
		return "CNY"
	}
	return strings.ToUpper(code)
}

func money(text string) (amount.Decimal, error) {
	d, err := amount.ParseDecimal(text)
	if err == nil && d.Coef.Sign() < 0 {
		err = amount.ErrSyntax
	}
	return d, err
}
