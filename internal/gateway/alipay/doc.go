// Package alipay speaks the open API of Alipay in mainland China: page, WAP, app and QR code payments, refunds, and
// asynchronous notices, with RSA2 and public keys.
//
// Promises: a notice counts only if one of Alipay's configured keys signed it. Notices have no signed time of delivery,
// so an old one can be sent again; its id makes it a repeat. Successful answers count only if they are signed.
package alipay

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// Dialect is the kind alipay.
var Dialect = gateway.Dialect{PayTypes: payTypes, Check: check, New: build}

var payTypes = []gateway.PayType{{Name: "page", Instant: true}, {Name: "wap", Instant: true},
	{Name: "app", Instant: true}, {Name: "precreate"}}

// methods are the calls of pay types, with their products.
var methods = map[string][2]string{"page": {"alipay.trade.page.pay", "FAST_INSTANT_TRADE_PAY"},
	"wap": {"alipay.trade.wap.pay", "QUICK_WAP_WAY"}, "app": {"alipay.trade.app.pay", "QUICK_MSECURITY_PAY"},
	"precreate": {"alipay.trade.precreate", "FACE_TO_FACE_PAYMENT"}}

// options are the settings of the kind.
type options struct {
	AppID string `json:"app_id"`
	// SellerID is the account that receives the money, 2088….
	SellerID string `json:"seller_id"`
	// PrivateKey is the app's.
	PrivateKey string `json:"private_key"`
	// PublicKeys are Alipay's, not the app's; any verifies. A certificate is accepted for its key.
	PublicKeys []string `json:"public_keys"`
}

type account struct {
	*gateway.Account
	app, seller string
	key         *rsa.PrivateKey
	keys        []*rsa.PublicKey
}

func build(a *gateway.Account) (gateway.Gateway, error) {
	var o options
	if err := a.Options.Decode(&o); err != nil {
		return nil, err
	}
	for _, field := range []struct{ name, value string }{{"app_id", o.AppID}, {"seller_id", o.SellerID},
		{"private_key", o.PrivateKey}} {
		if strings.TrimSpace(field.value) == "" {
			return nil, fmt.Errorf("%s: is missing", field.name)
		}
	}
	g := &account{Account: a, app: o.AppID, seller: o.SellerID}
	if g.URL == "" {
		g.URL = "https://openapi.alipay.com/gateway.do"
	}
	var err error
	if g.key, err = gateway.PrivateKey(o.PrivateKey); err != nil {
		return nil, fmt.Errorf("private_key: %w", err)
	}
	for i, text := range o.PublicKeys {
		key, _, err := gateway.PublicKey(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("public_keys[%d]: %w", i, err)
		case key.Equal(&g.key.PublicKey):
			return nil, fmt.Errorf("public_keys[%d]: is the key of the app; use Alipay's key, from the same page", i)
		}
		g.keys = append(g.keys, key)
	}
	if len(g.keys) == 0 {
		return nil, errors.New("public_keys: is missing")
	}
	return g, nil
}

func check(p *gateway.Payment) error {
	if _, err := gateway.CheckPayType(p.PayType, payTypes); err != nil {
		return err
	}
	if err := gateway.CheckNumber("out_trade_no", p.OutTradeNo, "_", 64); err != nil {
		return err
	}
	if _, err := gateway.Minor("amount", p.Amount, decimals); err != nil {
		return err
	}
	if p.Currency != "CNY" {
		return errors.New("currency: must be CNY")
	}
	if strings.ContainsAny(p.Description, "/=&") {
		return errors.New("description: must not contain / = &, which Alipay refuses")
	}
	return gateway.CheckText("description", p.Description, 256)
}

// decimals of amounts, which are decimal text in yuan.
const decimals = 2

// china is the time zone in which Alipay writes times.
var china = time.FixedZone("UTC+8", 8*60*60)

const timeLayout = "2006-01-02 15:04:05"

func timeOf(text string) time.Time {
	at, _ := time.ParseInLocation(timeLayout, text, china) // zero: not stated
	return at
}

func (g *account) verifies(text []byte, signature string) bool {
	for _, key := range g.keys {
		if gateway.VerifiesRSA(key, text, signature) {
			return true
		}
	}
	return false
}

// Acknowledge answers by the body: exactly success ends the repeats.
func (g *account) Acknowledge(ok bool) gateway.Ack {
	if ok {
		return gateway.Ack{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: []byte("success")}
	}
	return gateway.Ack{Status: http.StatusServiceUnavailable, ContentType: "text/plain; charset=utf-8",
		Body: []byte("fail")}
}
