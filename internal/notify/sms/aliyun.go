package sms

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// AliyunSettings are the settings of an account at Aliyun's Short Message Service.
// https://help.aliyun.com/zh/sms/developer-reference/api-dysmsapi-2017-05-25-sendsms
type AliyunSettings struct {
	// Name is the provider's name in the configuration. The message's template of this name is Aliyun's TemplateCode.
	Name            string `json:"-"`
	AccessKeyID     string `json:"access_key_id"`
	AccessKeySecret string `json:"access_key_secret"`
	// SignName is the approved signature that precedes the text.
	SignName string `json:"sign_name"`
	// URL replaces https://dysmsapi.aliyuncs.com.
	URL string      `json:"url"`
	TLS *tls.Config `json:"-"`
	// ReportSecret is the last part of the path for delivery reports; empty: reports are refused.
	ReportSecret string `json:"report_secret"`
}

// Aliyun sends through Aliyun's SendSms, which returns the message's key in reports, but does not deduplicate by it.
type Aliyun struct {
	s      AliyunSettings
	url    *url.URL
	client *httpsend.Client
}

// NewAliyun validates the settings and returns a sender.
func NewAliyun(s AliyunSettings) (*Aliyun, error) {
	if err := require("access_key_id", s.AccessKeyID, "access_key_secret", s.AccessKeySecret, "sign_name",
		s.SignName); err != nil {
		return nil, err
	}
	if s.URL == "" {
		s.URL = "https://dysmsapi.aliyuncs.com"
	}
	u, err := base(s.URL, false)
	if err != nil {
		return nil, err
	}
	u.Path = "/"
	return &Aliyun{s: s, url: u, client: client(s.TLS)}, nil
}

// aliyunVerdicts classifies error codes. isv. and isp.: https://help.aliyun.com/document_detail/101346.html; of the
// gateway: https://help.aliyun.com/zh/sdk/developer-reference/v3-request-structure-and-signature. isv. is an error of
// the caller: nothing was sent. isp. is an error of Aliyun.
var aliyunVerdicts = verdicts{
	"isv":                        refused, // templates, signatures, accounts, balance, contents
	"isv.AMOUNT_NOT_ENOUGH":      account,
	"isv.OUT_OF_SERVICE":         account,
	"isv.ACCOUNT_NOT_EXISTS":     account,
	"isv.ACCOUNT_ABNORMAL":       account,
	"isv.PRODUCT_UN_SUBSCRIPT":   account,
	"isv.PRODUCT_UNSUBSCRIBE":    account,
	"isv.DENY_IP_RANGE":          account,
	"isv.MOBILE_NUMBER_ILLEGAL":  permanent,
	"isv.BUSINESS_LIMIT_CONTROL": later(time.Minute), // per number: one a minute, five an hour, ten a day
	"isv.DAY_LIMIT_CONTROL":      later(time.Hour),
	"isp":                        unknown,
	"isp.RAM_PERMISSION_DENY":    account,
	"Throttling":                 later(time.Second),
	"SignatureDoesNotMatch":      account,
	"IncompleteSignature":        account,
	"InvalidAccessKeyId":         account,
	"InvalidTimeStamp":           account, // the local clock is wrong
	"Forbidden":                  account,
	"MissingParameter":           refused,
	"InvalidParameter":           refused,
	"InvalidVersion":             refused,
	"InvalidAction":              refused,
	"SignatureNonceUsed":         unknown, // the same request arrived before, in whatever way
	"ServiceUnavailable":         unknown,
	"InternalError":              unknown,
}

// Send calls SendSms.
func (s *Aliyun) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	template := m.Content.Template[s.s.Name]
	if template == "" {
		return send.Receipt{}, failure(send.Refused, "no_template", "the message has no template for this provider")
	}
	query := map[string]string{"PhoneNumbers": strings.TrimPrefix(m.Recipient, "+"), "SignName": s.s.SignName,
		"TemplateCode": template, "OutId": m.Key}
	if params := m.Content.ParamsFor(s.s.Name); len(params) > 0 {
		query["TemplateParam"] = object(params)
	}
	r := acs3(s.url, "SendSms", "2017-05-25", query, s.s.AccessKeyID, s.s.AccessKeySecret, time.Now(), rand.Text())
	a, f := ask(ctx, s.client, r)
	if f != nil {
		return send.Receipt{}, f
	}
	var said struct{ Code, Message, BizId string }
	if err := json.Unmarshal(a.Body, &said); err != nil || said.Code == "" {
		return send.Receipt{}, byStatus(a.Status).failed(m, a, "aliyun", "http_"+strconv.Itoa(a.Status),
			"the provider's response has no code")
	}
	if said.Code == "OK" && a.Status == http.StatusOK {
		return send.Receipt{ProviderMessageID: httpsend.Cut(said.BizId, 256)}, nil
	}
	v, known := aliyunVerdicts.of(said.Code)
	if !known {
		v = byStatus(a.Status)
	}
	return send.Receipt{}, v.failed(m, a, "aliyun", said.Code, said.Message)
}

// object encodes parameters as a JSON object in their order.
func object(params []send.Param) string {
	pairs := make([]string, len(params))
	for i, p := range params {
		pairs[i] = quote(p.Name) + ":" + quote(p.Value)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// quote encodes a JSON string without escaping <, > and &.
func quote(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // strings never fail
	return strings.TrimSuffix(b.String(), "\n")
}

// acs3 returns a request signed with ACS3-HMAC-SHA256: all parameters in the query, no body.
// https://help.aliyun.com/zh/sdk/product-overview/v3-request-structure-and-signature
func acs3(endpoint *url.URL, action, version string, query map[string]string, id, secret string, now time.Time,
	nonce string) *httpsend.Request {
	u := *endpoint
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	pairs := make([]string, len(names))
	for i, name := range names {
		pairs[i] = percent(name) + "=" + percent(query[name])
	}
	u.RawQuery = strings.Join(pairs, "&")
	empty := sha256.Sum256(nil)
	signed := [][2]string{{"host", u.Host}, {"x-acs-action", action},
		{"x-acs-content-sha256", hex.EncodeToString(empty[:])},
		{"x-acs-date", now.UTC().Format("2006-01-02T15:04:05Z")}, {"x-acs-signature-nonce", nonce},
		{"x-acs-version", version}}
	var headers, list strings.Builder
	h := http.Header{"Accept": {"application/json"}}
	for i, s := range signed {
		headers.WriteString(s[0] + ":" + s[1] + "\n")
		if i > 0 {
			list.WriteByte(';')
			h[s[0]] = []string{s[1]}
		}
		list.WriteString(s[0])
	}
	canonical := strings.Join([]string{"POST", "/", u.RawQuery, headers.String(), list.String(),
		hex.EncodeToString(empty[:])}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("ACS3-HMAC-SHA256\n" + hex.EncodeToString(hash[:])))
	h.Set("Authorization", "ACS3-HMAC-SHA256 Credential="+id+",SignedHeaders="+list.String()+
		",Signature="+hex.EncodeToString(mac.Sum(nil)))
	return &httpsend.Request{URL: u.String(), Header: h}
}

// percent encodes as RFC 3986: only letters, digits and -_.~ are unreserved.
func percent(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}
