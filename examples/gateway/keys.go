package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/alipay"
	"github.com/ledgerd/ledgerd/examples/gateway/book"
	"github.com/ledgerd/ledgerd/examples/gateway/standard"
	"github.com/ledgerd/ledgerd/examples/gateway/stripe"
	"github.com/ledgerd/ledgerd/examples/gateway/wechat"
)

// keys has the keys of all gateways. Names and secrets are in keys.json; each RSA key has a file of its own.
type keys struct {
	Stripe   stripe.Keys   `json:"stripe"`
	Standard standard.Keys `json:"standard"`
	Alipay   struct {
		AppID    string `json:"app_id"`
		SellerID string `json:"seller_id"`
	} `json:"alipay"`
	WeChat struct {
		MchID       string `json:"mchid"`
		AppID       string `json:"appid"`
		APIv3       string `json:"api_v3_key"`
		PublicKeyID string `json:"public_key_id"`
	} `json:"wechat"`

	dir string
}

// openKeys reads the keys of a folder, or generates them.
func openKeys(dir string) (*keys, error) {
	k := &keys{dir: dir}
	text, err := os.ReadFile(k.path("keys.json"))
	if err == nil {
		return k, json.Unmarshal(text, k)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	k.Stripe, k.Standard = stripe.NewKeys(), standard.NewKeys()
	k.Alipay.AppID, k.Alipay.SellerID = "2021"+book.Digits(12), "2088"+book.Digits(12)
	k.WeChat.MchID, k.WeChat.AppID = "19"+book.Digits(8), "wx"+book.Digits(16)
	k.WeChat.APIv3, k.WeChat.PublicKeyID = book.Alnum(32), "PUB_KEY_ID_01"+book.Digits(30)
	if text, err = json.MarshalIndent(k, "", "  "); err != nil {
		return nil, err
	}
	return k, k.write("keys.json", text)
}

func (k *keys) path(name string) string { return filepath.Join(k.dir, name) }

// write replaces a file atomically, so that a kill leaves the old or the new one.
func (k *keys) write(name string, text []byte) error {
	if err := os.WriteFile(k.path(name+".new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(k.path(name+".new"), k.path(name))
}

// private reads or generates an RSA key, and writes its public key beside it.
func (k *keys) private(name string) (*rsa.PrivateKey, error) {
	if block, err := k.pem(name + "_private.pem"); err == nil {
		key, err := x509.ParsePKCS8PrivateKey(block)
		if rsaKey, ok := key.(*rsa.PrivateKey); ok {
			return rsaKey, nil
		}
		return nil, fmt.Errorf("%s is not an RSA key: %w", name, err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	return key, errors.Join(k.writePEM(name+"_public.pem", "PUBLIC KEY", public),
		k.writePEM(name+"_private.pem", "PRIVATE KEY", private))
}

// certificate reads or generates a self-signed certificate of a key.
func (k *keys) certificate(name string, key *rsa.PrivateKey) (*x509.Certificate, error) {
	der, err := k.pem(name + "_cert.pem")
	if err != nil {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 150))
		if err != nil {
			return nil, err
		}
		serial.SetBit(serial, 158, 1) // 40 digits, as the vendor's
		now := time.Now()
		c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(5, 0, 0)}
		if der, err = x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key); err != nil {
			return nil, err
		}
		if err := k.writePEM(name+"_cert.pem", "CERTIFICATE", der); err != nil {
			return nil, err
		}
	}
	return x509.ParseCertificate(der)
}

func (k *keys) writePEM(name, kind string, der []byte) error {
	return k.write(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func (k *keys) pem(name string) ([]byte, error) {
	text, err := os.ReadFile(k.path(name))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", name)
	}
	return block.Bytes, nil
}

func (k *keys) alipay() (a alipay.Keys, err error) {
	a.AppID, a.SellerID = k.Alipay.AppID, k.Alipay.SellerID
	var err2 error
	a.App, err = k.private("alipay_app")
	a.Alipay, err2 = k.private("alipay")
	return a, errors.Join(err, err2)
}

func (k *keys) wechat() (w wechat.Keys, err error) {
	w.MchID, w.AppID, w.APIv3, w.PublicKeyID = k.WeChat.MchID, k.WeChat.AppID, k.WeChat.APIv3, k.WeChat.PublicKeyID
	for name, key := range map[string]**rsa.PrivateKey{"wechat_merchant": &w.Merchant, "wechat": &w.PublicKey,
		"wechat_platform": &w.CertKey} {
		if *key, err = k.private(name); err != nil {
			return w, err
		}
	}
	merchant, err := k.certificate("wechat_merchant", w.Merchant)
	if err != nil {
		return w, err
	}
	w.MerchantSerial = wechat.Serial(merchant)
	w.Certificate, err = k.certificate("wechat_platform", w.CertKey)
	return w, err
}
