// Package wechat speaks version 3 of the API of WeChat Pay: native, JSAPI, app and H5 payments of a merchant in
// mainland China, refunds, and notices.
//
// Promises: a notice counts only if it is signed with a key of WeChat Pay that is configured, within 5 minutes, and
// decrypts. Answers count only if they are signed too.
package wechat

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// Dialect is the kind wechat.
var Dialect = gateway.Dialect{PayTypes: payTypes, Check: check, New: build, Forged: fail(http.StatusUnauthorized,
	"SIGN_ERROR")}

var payTypes = []gateway.PayType{{Name: "native"}, {Name: "jsapi"}, {Name: "app"}, {Name: "h5"}}

// options are the settings of the kind.
type options struct {
	MchID string `json:"mchid"`
	AppID string `json:"appid"`
	// AppIDs are the apps of pay types that use another one.
	AppIDs map[string]string `json:"appids"`
	// SerialNo is the serial number of the merchant's certificate, PrivateKey its key.
	SerialNo   string `json:"serial_no"`
	PrivateKey string `json:"private_key"`
	// APIv3Keys have 32 bytes each; any decrypts.
	APIv3Keys []string `json:"api_v3_keys"`
	// PublicKeys are WeChat Pay's; any verifies.
	PublicKeys []struct {
		ID  string `json:"id"`  // PUB_KEY_ID_…; empty for a certificate, which has a serial number
		Key string `json:"key"` // public key or platform certificate, PEM
	} `json:"public_keys"`
}

type account struct {
	*gateway.Account
	mchid, serial string
	appids        map[string]string // by pay type
	key           *rsa.PrivateKey
	decryption    [][]byte
	verification  map[string]*rsa.PublicKey // by id
	keyID         string                    // that answers should be signed with; empty: WeChat Pay's choice
}

func build(a *gateway.Account) (gateway.Gateway, error) {
	var o options
	if err := a.Options.Decode(&o); err != nil {
		return nil, err
	}
	for _, field := range []struct{ name, value string }{{"mchid", o.MchID}, {"appid", o.AppID},
		{"serial_no", o.SerialNo}, {"private_key", o.PrivateKey}} {
		if strings.TrimSpace(field.value) == "" || strings.ContainsAny(field.value, "\"") {
			return nil, fmt.Errorf("%s: is missing, or has quotes", field.name)
		}
	}
	g := &account{Account: a, mchid: o.MchID, serial: o.SerialNo, appids: map[string]string{},
		verification: map[string]*rsa.PublicKey{}}
	if g.URL == "" {
		g.URL = "https://api.mch.weixin.qq.com"
	}
	for _, t := range payTypes {
		g.appids[t.Name] = o.AppID
	}
	for name, id := range o.AppIDs {
		if g.appids[name] == "" || id == "" {
			return nil, errors.New("appids: names must be pay types: native, jsapi, app, h5")
		}
		g.appids[name] = id
	}
	var err error
	if g.key, err = gateway.PrivateKey(o.PrivateKey); err != nil {
		return nil, fmt.Errorf("private_key: %w", err)
	}
	for i, key := range o.APIv3Keys {
		if len(key) != 32 {
			return nil, fmt.Errorf("api_v3_keys[%d]: must have 32 bytes", i)
		}
		g.decryption = append(g.decryption, []byte(key))
	}
	if len(g.decryption) == 0 {
		return nil, errors.New("api_v3_keys: is missing")
	}
	return g, g.addKeys(&o)
}

const keyIDPrefix = "PUB_KEY_ID_"

func (g *account) addKeys(o *options) error {
	for i, k := range o.PublicKeys {
		key, cert, err := gateway.PublicKey(k.Key)
		if err != nil {
			return fmt.Errorf("public_keys[%d].key: %w", i, err)
		}
		id := k.ID
		switch {
		case cert != nil && id == "":
			id = fmt.Sprintf("%X", cert.SerialNumber)
		case cert != nil:
			return fmt.Errorf("public_keys[%d].id: must be empty for a certificate", i)
		case !strings.HasPrefix(id, keyIDPrefix):
			return fmt.Errorf("public_keys[%d].id: must begin with %s", i, keyIDPrefix)
		}
		if i == 0 && cert == nil {
			g.keyID = id
		}
		g.verification[id] = key
	}
	if len(g.verification) == 0 {
		return errors.New("public_keys: is missing")
	}
	return nil
}

func (g *account) knows(appid string) bool {
	for _, id := range g.appids {
		if id == appid {
			return true
		}
	}
	return false
}

func check(p *gateway.Payment) error {
	t, err := gateway.CheckPayType(p.PayType, payTypes)
	if err != nil {
		return err
	}
	if err := gateway.CheckNumber("out_trade_no", p.OutTradeNo, "_-|*", 32); err != nil {
		return err
	}
	if _, err := gateway.Minor("amount", p.Amount, decimals); err != nil {
		return err
	}
	switch {
	case len(p.OutTradeNo) < 6:
		return errors.New("out_trade_no: must have at least 6 characters")
	case p.Currency != "CNY":
		return errors.New("currency: must be CNY")
	case t.Name == "jsapi" && p.Payer == "":
		return errors.New("payer: is missing; JSAPI payments need the payer's openid")
	case t.Name == "h5" && p.PayerIP == "":
		return errors.New("payer_ip: is missing; H5 payments need the address of the payer's device")
	}
	return gateway.CheckText("description", p.Description, 127)
}

// decimals of amounts, which are in fen.
const decimals = 2
