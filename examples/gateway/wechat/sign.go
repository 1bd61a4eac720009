package wechat

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	scheme = "WECHATPAY2-SHA256-RSA2048"
	window = 5 * time.Minute
)

func signed(key *rsa.PrivateKey, text string) string {
	sum := sha256.Sum256([]byte(text))
	raw, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err) // only if the key is too short
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func verified(key *rsa.PublicKey, text, signature string) bool {
	raw, err := base64.StdEncoding.DecodeString(signature)
	sum := sha256.Sum256([]byte(text))
	return err == nil && rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], raw) == nil
}

var pair = regexp.MustCompile(`^([a-z_]+)="([^"]*)"$`)

// authorize verifies a request's signature by the merchant's certificate.
func (g *Gateway) authorize(r *http.Request, body []byte) error {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), scheme+" ")
	if !ok {
		return fmt.Errorf("认证类型不是 %s", scheme)
	}
	has := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		m := pair.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil || has[m[1]] != "" {
			return fmt.Errorf("认证信息格式错误: %q", part)
		}
		has[m[1]] = m[2]
	}
	at, err := strconv.ParseInt(has["timestamp"], 10, 64)
	age := time.Since(time.Unix(at, 0))
	switch {
	case has["mchid"] != g.Keys.MchID:
		return fmt.Errorf("mchid 错误")
	case has["serial_no"] != g.Keys.MerchantSerial:
		return fmt.Errorf("serial_no 错误")
	case has["nonce_str"] == "":
		return fmt.Errorf("nonce_str 为空")
	case err != nil || age > window || age < -window:
		return fmt.Errorf("timestamp 已过期")
	}
	lines := []string{r.Method, r.URL.RequestURI(), has["timestamp"], has["nonce_str"], string(body), ""}
	text := strings.Join(lines, "\n")
	if !verified(&g.Keys.Merchant.PublicKey, text, has["signature"]) {
		return fmt.Errorf("签名错误")
	}
	return nil
}

// VerifyClient checks the parameters with which an app or a page in WeChat starts a payment, and returns the prepay_id.
func (g *Gateway) VerifyClient(c map[string]string) (string, error) {
	text, signature, prepay := "", "", ""
	if id, app := c["prepayid"]; app { // parameters of an app
		prepay, signature = id, c["sign"]
		text = strings.Join([]string{c["appid"], c["timestamp"], c["noncestr"], id}, "\n") + "\n"
		if c["partnerid"] != g.Keys.MchID || c["package"] != "Sign=WXPay" || c["appid"] != g.Keys.AppID {
			return "", fmt.Errorf("partnerid, package or appid is wrong")
		}
	} else {
		prepay, signature = strings.TrimPrefix(c["package"], "prepay_id="), c["paySign"]
		text = strings.Join([]string{c["appId"], c["timeStamp"], c["nonceStr"], c["package"]}, "\n") + "\n"
		if c["signType"] != "RSA" || c["appId"] != g.Keys.AppID {
			return "", fmt.Errorf("signType or appId is wrong")
		}
	}
	if !verified(&g.Keys.Merchant.PublicKey, text, signature) {
		return "", fmt.Errorf("the signature is wrong")
	}
	return prepay, nil
}
