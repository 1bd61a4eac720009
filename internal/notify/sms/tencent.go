package sms

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// TencentSettings are the settings of an SMS application at Tencent Cloud.
// https://cloud.tencent.com/document/api/382/55981
type TencentSettings struct {
	// Name is the provider's name in the configuration. The message's template of this name is Tencent's TemplateId.
	Name      string `json:"-"`
	SecretID  string `json:"secret_id"`
	SecretKey string `json:"secret_key"`
	// AppID is the SmsSdkAppId.
	AppID string `json:"app_id"`
	// SignName is the approved signature that precedes the text. Required for numbers in mainland China.
	SignName string `json:"sign_name"`
	// SenderID is used for numbers outside mainland China.
	SenderID string `json:"sender_id"`
	Region   string `json:"region"` // empty: ap-guangzhou
	// URL replaces https://sms.tencentcloudapi.com.
	URL string      `json:"url"`
	TLS *tls.Config `json:"-"`
	// ReportSecret is the last part of the path for delivery reports; empty: reports are refused.
	ReportSecret string `json:"report_secret"`
}

// Tencent sends through Tencent Cloud's SendSms, which returns the message's key in its response, but does not
// deduplicate by it.
type Tencent struct {
	s      TencentSettings
	url    *url.URL
	client *httpsend.Client
}

// NewTencent validates the settings and returns a sender.
func NewTencent(s TencentSettings) (*Tencent, error) {
	if err := require("secret_id", s.SecretID, "secret_key", s.SecretKey, "app_id", s.AppID); err != nil {
		return nil, err
	}
	if s.URL == "" {
		s.URL = "https://sms.tencentcloudapi.com"
	}
	if s.Region == "" {
		s.Region = "ap-guangzhou"
	}
	u, err := base(s.URL, false)
	if err != nil {
		return nil, err
	}
	u.Path = "/"
	return &Tencent{s: s, url: u, client: client(s.TLS)}, nil
}

// tencentVerdicts classifies error codes: https://cloud.tencent.com/document/api/382/59177 and /55981.
var tencentVerdicts = verdicts{
	"FailedOperation": refused, // templates, signatures, balance, contents
	"FailedOperation.InsufficientBalanceInSmsPackage": account,
	"FailedOperation.PhoneNumberInBlacklist":          permanent,
	"FailedOperation.MarketingSendTimeConstraint":     later(time.Hour), // advertising only from 8 to 22 h
	"InvalidParameter":                                refused,
	"InvalidParameterValue":                           refused,
	"InvalidParameterValue.IncorrectPhoneNumber":      permanent,
	"MissingParameter":                                refused,
	"UnknownParameter":                                refused,
	"UnsupportedOperation":                            refused,
	"UnauthorizedOperation":                           account,
	"AuthFailure":                                     account,
	"InvalidAction":                                   refused,
	"NoSuchVersion":                                   refused,
	"ActionOffline":                                   refused,
	"IpInBlacklist":                                   account,
	"IpNotInWhitelist":                                account,
	"UnsupportedRegion":                               refused,
	"RequestLimitExceeded":                            later(time.Second),
	"LimitExceeded":                                   later(time.Minute),
	"LimitExceeded.PhoneNumberThirtySecondLimit":      later(30 * time.Second),
	"LimitExceeded.PhoneNumberOneHourLimit":           later(time.Hour),
	"LimitExceeded.PhoneNumberDailyLimit":             later(time.Hour),
	"LimitExceeded.PhoneNumberSameContentDailyLimit":  later(time.Hour),
	"LimitExceeded.DailyLimit":                        later(time.Hour),
	"LimitExceeded.AppDailyLimit":                     later(time.Hour),
	"LimitExceeded.AppGlobalDailyLimit":               later(time.Hour),
	"LimitExceeded.AppMainlandChinaDailyLimit":        later(time.Hour),
	"LimitExceeded.AppCountryOrRegionDailyLimit":      later(time.Hour),
	// includes InternalError.Timeout: it may have been sent
	"InternalError":                          unknown,
	"InternalError.SigVerificationFail":      account,
	"InternalError.SigFieldMissing":          refused,
	"InternalError.RequestTimeException":     account,
	"InternalError.RestApiInterfaceNotExist": refused,
	"ResourceUnavailable":                    unknown,
	"ServiceUnavailable":                     unknown,
}

// Send calls SendSms.
func (s *Tencent) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	template := m.Content.Template[s.s.Name]
	if template == "" {
		return send.Receipt{}, failure(send.Refused, "no_template", "the message has no template for this provider")
	}
	params := []string{}
	for _, p := range m.Content.ParamsFor(s.s.Name) {
		params = append(params, p.Value)
	}
	body, err := json.Marshal(struct {
		PhoneNumberSet   []string
		SmsSdkAppId      string
		SignName         string `json:",omitempty"`
		TemplateId       string
		TemplateParamSet []string
		SenderId         string `json:",omitempty"`
		SessionContext   string
	}{[]string{m.Recipient}, s.s.AppID, s.s.SignName, template, params, s.s.SenderID, m.Key})
	if err != nil {
		return send.Receipt{}, failure(send.Permanent, "bad_content", "the message cannot be written as JSON")
	}
	a, f := ask(ctx, s.client, tc3(s.url, "sms", "SendSms", "2021-01-11", s.s.Region, body, s.s.SecretID, s.s.SecretKey,
		time.Now()))
	if f != nil {
		return send.Receipt{}, f
	}
	var said struct {
		Response struct {
			SendStatusSet []struct{ SerialNo, Code, Message string }
			Error         struct{ Code, Message string }
		}
	}
	err = json.Unmarshal(a.Body, &said)
	code, text := said.Response.Error.Code, said.Response.Error.Message
	if set := said.Response.SendStatusSet; code == "" && len(set) == 1 {
		code, text = set[0].Code, set[0].Message
		if code == "Ok" {
			return send.Receipt{ProviderMessageID: httpsend.Cut(set[0].SerialNo, 256)}, nil
		}
	}
	if err != nil || code == "" {
		return send.Receipt{}, byStatus(a.Status).failed(m, a, "tencent", "http_"+strconv.Itoa(a.Status),
			"the provider's response has no code")
	}
	v, known := tencentVerdicts.of(code)
	if !known {
		v = byStatus(a.Status)
	}
	return send.Receipt{}, v.failed(m, a, "tencent", code, text)
}

// tc3 returns a request signed with TC3-HMAC-SHA256. https://cloud.tencent.com/document/api/382/52072
func tc3(endpoint *url.URL, service, action, version, region string, body []byte, id, key string,
	now time.Time) *httpsend.Request {
	const contentType = "application/json; charset=utf-8"
	const signed = "content-type;host;x-tc-action"
	payload := sha256.Sum256(body)
	canonical := strings.Join([]string{"POST", "/", "", "content-type:" + contentType, "host:" + endpoint.Host,
		"x-tc-action:" + strings.ToLower(action), "", signed, hex.EncodeToString(payload[:])}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	day := now.UTC().Format(time.DateOnly)
	scope := day + "/" + service + "/tc3_request"
	stamp := strconv.FormatInt(now.Unix(), 10)
	derived := []byte("TC3" + key)
	for _, part := range []string{day, service, "tc3_request", "TC3-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" +
		hex.EncodeToString(hash[:])} {
		mac := hmac.New(sha256.New, derived)
		mac.Write([]byte(part))
		derived = mac.Sum(nil)
	}
	h := http.Header{"Content-Type": {contentType}, "X-Tc-Action": {action}, "X-Tc-Version": {version},
		"X-Tc-Timestamp": {stamp},
		"Authorization": {"TC3-HMAC-SHA256 Credential=" + id + "/" + scope + ", SignedHeaders=" + signed +
			", Signature=" + hex.EncodeToString(derived)}}
	if region != "" {
		h.Set("X-Tc-Region", region)
	}
	return &httpsend.Request{URL: endpoint.String(), Header: h, Body: body}
}
