package sms_test

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
)

// provider is a server that gives the same response to all requests, or breaks the connection, and records requests.
type provider struct {
	*httptest.Server
	status int
	header http.Header
	body   string
	drop   bool // reset the connection after the request

	mu    sync.Mutex
	asked []*http.Request // with the body in Form or Header["Body"]
}

func serve(t *testing.T) *provider {
	t.Helper()
	p := &provider{status: 200}
	p.Server = httptest.NewTLSServer(p)
	p.Config.ErrorLog = nil
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	r.Header.Set("Body", string(b))
	r.Header["Length"] = r.TransferEncoding
	p.mu.Lock()
	p.asked = append(p.asked, r)
	status, header, body, drop := p.status, p.header, p.body, p.drop
	p.mu.Unlock()
	if drop {
		c, _, _ := w.(http.Hijacker).Hijack()
		_ = c.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0) // a reset
		_ = c.(*tls.Conn).NetConn().Close()
		return
	}
	for name, values := range header {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// says sets the response, and returns the number of requests so far.
func (p *provider) says(status int, body string, drop bool) (asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.body, p.drop = status, body, drop
	return len(p.asked)
}

func (p *provider) last(t *testing.T) *http.Request {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		t.Fatal("no request")
	}
	return p.asked[len(p.asked)-1]
}

func (p *provider) roots() *tls.Config {
	return &tls.Config{RootCAs: p.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
}

// sample has characters that each encoding has to escape.
func sample() *send.Message {
	return &send.Message{Tenant: 1, ID: 16385, Key: send.Keys("").Of(1, 16385), Channel: send.SMS,
		Recipient: "+8613812345678",
		Content: send.Content{Text: `Hi "Ada" & <Bob>+100%, 你好 {text}`, Template: map[string]string{"main": "SMS_1"},
			Params: []send.Param{{Name: "code", Value: "of another provider"}},
			ProviderParams: map[string][]send.Param{"main": {{Name: "name", Value: `A"d&a<+你`},
				{Name: "code", Value: "073911"}}}}}
}

func outcome(t *testing.T, err error) *send.Failure {
	t.Helper()
	var f *send.Failure
	if !errors.As(err, &f) {
		t.Fatalf("%v is not a *Failure", err)
	}
	for _, hidden := range []string{"13812345678", "073911", "Ada"} {
		if strings.Contains(f.Text, hidden) {
			t.Errorf("the failure contains %s: %s", hidden, f.Text)
		}
	}
	if f.Code == "" || len(f.Code) > 64 {
		t.Errorf("code %q", f.Code)
	}
	return f
}

// answers are responses of a provider and the expected outcomes. A response that contains the word account means Down.
type answers []struct {
	status  int
	body    string
	outcome send.Outcome
	code    string
	wait    time.Duration
}

func (as answers) check(t *testing.T, p *provider, s send.Sender) {
	t.Helper()
	for _, a := range as {
		p.says(a.status, a.body, false)
		r, err := s.Send(t.Context(), sample())
		if err == nil {
			t.Errorf("%d %s: accepted as sent: %+v", a.status, a.body, r)
			continue
		}
		f := outcome(t, err)
		if down := strings.Contains(a.body, "account"); f.Down != down && !strings.Contains(a.code, "http_40") {
			t.Errorf("%d %s: Down is %v", a.status, a.body, f.Down)
		}
		if f.Outcome != a.outcome || f.Code != a.code || f.RetryAfter != a.wait {
			t.Errorf("%d %s: %v, %q, %v, want %v, %q, %v", a.status, a.body, f.Outcome, f.Code, f.RetryAfter,
				a.outcome, a.code, a.wait)
		}
	}
	// A connection reset after the request is unknown, and the request is not repeated.
	before := p.says(0, "", true)
	_, err := s.Send(t.Context(), sample())
	if f := outcome(t, err); f.Outcome != send.Unknown {
		t.Errorf("reset after the request: %v", f)
	}
	if n := p.says(0, "", false) - before; n != 1 {
		t.Errorf("%d requests for one attempt", n)
	}
	p.Close()
	_, err = s.Send(t.Context(), sample())
	if f := outcome(t, err); f.Outcome != send.Temporary || !f.Down {
		t.Errorf("unreachable provider: %v", f)
	}
}

// sha and mac recompute signatures over the request as received.
func sha(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func TestTwilio(t *testing.T) {
	p := serve(t)
	s, err := sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", AuthToken: "secret", From: "+15005550006",
		ReportURL: "https://pay.example.com/notify/reports/twilio?x=1", URL: p.URL, TLS: p.roots()})
	if err != nil {
		t.Fatal(err)
	}
	p.status, p.body = 201, `{"sid":"SM1","status":"queued","error_code":null}`
	m := sample()
	r, err := s.Send(t.Context(), m)
	if err != nil || r.ProviderMessageID != "SM1" {
		t.Fatalf("%+v %v", r, err)
	}
	q := p.last(t)
	form, err := url.ParseQuery(q.Header.Get("Body"))
	user, password, _ := q.BasicAuth()
	if err != nil || q.Method != "POST" || q.URL.Path != "/2010-04-01/Accounts/AC1/Messages.json" || user != "AC1" ||
		password != "secret" ||
		form.Get("To") != m.Recipient || form.Get("From") != "+15005550006" || form.Get("Body") != m.Content.Text ||
		form.Get("StatusCallback") != "https://pay.example.com/notify/reports/twilio?message="+m.Key+"&x=1" ||
		len(form) != 4 {
		t.Errorf("%s %s %v", q.Method, q.URL, form)
	}
	answers{
		{401, `{"code":20003,"message":"Authenticate the account","status":401}`, send.Refused, "twilio_20003", 0},
		{429, `{"code":20429,"message":"Too Many Requests"}`, send.Temporary, "twilio_20429", time.Second},
		{429, `slow down`, send.Temporary, "twilio_http_429", time.Second},
		{400, `{"code":21211,"message":"The 'To' number +8613812345678 is not a valid phone number."}`,
			send.Permanent, "twilio_21211", 0},
		{400, `{"code":21610,"message":"unsubscribed"}`, send.Permanent, "twilio_21610", 0},
		{400, `{"code":21606,"message":"From"}`, send.Refused, "twilio_21606", 0},
		{400, `{"code":99999,"message":"new"}`, send.Refused, "twilio_99999", 0},
		{500, `{"code":20500,"message":"Internal"}`, send.Unknown, "twilio_20500", 0},
		{503, `{"code":20429,"message":"in front"}`, send.Unknown, "twilio_20429", 0},
		{502, `<html>`, send.Unknown, "twilio_http_502", 0},
		{302, ``, send.Unknown, "twilio_http_302", 0},
		{201, `{"sid":`, send.Unknown, "twilio_bad_answer", 0},
	}.check(t, p, s)
}

func TestAliyun(t *testing.T) {
	p := serve(t)
	s, err := sms.NewAliyun(sms.AliyunSettings{Name: "main", AccessKeyID: "id", AccessKeySecret: "secret",
		SignName: "阿里云", URL: p.URL, TLS: p.roots()})
	if err != nil {
		t.Fatal(err)
	}
	p.body = `{"Message":"OK","RequestId":"1","Code":"OK","BizId":"900619746936498440^0"}`
	m := sample()
	r, err := s.Send(t.Context(), m)
	if err != nil || r.ProviderMessageID != "900619746936498440^0" {
		t.Fatalf("%+v %v", r, err)
	}
	q := p.last(t)
	get := q.URL.Query()
	var params map[string]string
	if err := json.Unmarshal([]byte(get.Get("TemplateParam")), &params); err != nil ||
		params["name"] != m.Content.ProviderParams["main"][0].Value || params["code"] != "073911" {
		t.Errorf("%s %v", get.Get("TemplateParam"), err)
	}
	if q.Method != "POST" || q.URL.Path != "/" || q.Header.Get("Body") != "" ||
		q.Header.Get("x-acs-action") != "SendSms" || q.Header.Get("x-acs-version") != "2017-05-25" ||
		get.Get("PhoneNumbers") != "8613812345678" || get.Get("SignName") != "阿里云" ||
		get.Get("TemplateCode") != "SMS_1" || get.Get("OutId") != m.Key || len(get) != 5 {
		t.Errorf("%s %s %v", q.Method, q.URL, q.Header)
	}
	signed := "POST\n/\n" + q.URL.RawQuery + "\n"
	names := strings.Split("host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version", ";")
	for _, name := range names {
		signed += name + ":" + cmp.Or(q.Header.Get(name), q.Host) + "\n"
	}
	signed += "\n" + strings.Join(names, ";") + "\n" + sha(q.Header.Get("Body"))
	if want := mac([]byte("secret"),
		"ACS3-HMAC-SHA256\n"+sha(signed)); !strings.HasSuffix(q.Header.Get("Authorization"),
		"Signature="+hex.EncodeToString(want)) {
		t.Errorf("the signature does not match the request: %s", q.Header.Get("Authorization"))
	}
	if _, err := s.Send(t.Context(), &send.Message{Recipient: "+861", Content: send.Content{Text: "x"}}); outcome(t,
		err).Outcome != send.Refused {
		t.Error("sent without a template")
	}
	answers{
		{200, `{"Code":"isv.BUSINESS_LIMIT_CONTROL","Message":"触发分钟级流控Permits:1"}`,
			send.Temporary, "aliyun_isv.BUSINESS_LIMIT_CONTROL", time.Minute},
		{200, `{"Code":"isv.MOBILE_NUMBER_ILLEGAL","Message":"+8613812345678 invalid"}`,
			send.Permanent, "aliyun_isv.MOBILE_NUMBER_ILLEGAL", 0},
		{200, `{"Code":"isv.AMOUNT_NOT_ENOUGH","Message":"account 账户余额不足"}`,
			send.Refused, "aliyun_isv.AMOUNT_NOT_ENOUGH", 0},
		{200, `{"Code":"isv.SMS_TEMPLATE_ILLEGAL"}`, send.Refused, "aliyun_isv.SMS_TEMPLATE_ILLEGAL", 0},
		{200, `{"Code":"isp.SYSTEM_ERROR"}`, send.Unknown, "aliyun_isp.SYSTEM_ERROR", 0},
		{200, `{"Code":"isp.RAM_PERMISSION_DENY","Message":"account"}`, send.Refused, "aliyun_isp.RAM_PERMISSION_DENY",
			0},
		{400, `{"Code":"Throttling.User"}`, send.Temporary, "aliyun_Throttling.User", time.Second},
		{400, `{"Code":"SignatureNonceUsed"}`, send.Unknown, "aliyun_SignatureNonceUsed", 0},
		{404, `{"Code":"InvalidAccessKeyId.NotFound","Message":"account"}`,
			send.Refused, "aliyun_InvalidAccessKeyId.NotFound", 0},
		{503, `{"Code":"ServiceUnavailable"}`, send.Unknown, "aliyun_ServiceUnavailable", 0},
		{400, `{"Code":"SomethingNew"}`, send.Refused, "aliyun_SomethingNew", 0},
		{200, `{"Code":"SomethingNew"}`, send.Unknown, "aliyun_SomethingNew", 0},
		{500, `{"Code":"OK"}`, send.Unknown, "aliyun_OK", 0},
		{200, ``, send.Unknown, "aliyun_http_200", 0},
		{504, `<html>`, send.Unknown, "aliyun_http_504", 0},
	}.check(t, p, s)
}

func TestTencent(t *testing.T) {
	p := serve(t)
	s, err := sms.NewTencent(sms.TencentSettings{Name: "main", SecretID: "id", SecretKey: "secret", AppID: "1400006666",
		SignName: "腾讯云", URL: p.URL, TLS: p.roots()})
	if err != nil {
		t.Fatal(err)
	}
	status := func(code string) string {
		return `{"Response":{"SendStatusSet":[{"SerialNo":"5000:1","PhoneNumber":"+8613812345678","Fee":1,` +
			`"SessionContext":"x","Code":"` + code +
			`","Message":"to +8613812345678","IsoCode":"CN"}],"RequestId":"1"}}`
	}
	failed := func(code string) string {
		return `{"Response":{"Error":{"Code":"` + code + `","Message":"no"},"RequestId":"1"}}`
	}
	p.body = status("Ok")
	m := sample()
	r, err := s.Send(t.Context(), m)
	if err != nil || r.ProviderMessageID != "5000:1" {
		t.Fatalf("%+v %v", r, err)
	}
	q := p.last(t)
	var body struct {
		PhoneNumberSet, TemplateParamSet                  []string
		SmsSdkAppId, SignName, TemplateId, SessionContext string
	}
	if err := json.Unmarshal([]byte(q.Header.Get("Body")), &body); err != nil || q.Method != "POST" ||
		q.Header.Get("X-TC-Action") != "SendSms" ||
		q.Header.Get("X-TC-Version") != "2021-01-11" || q.Header.Get("X-TC-Region") != "ap-guangzhou" ||
		q.Header.Get("X-TC-Timestamp") == "" ||
		q.Header.Get("Content-Type") != "application/json; charset=utf-8" || body.PhoneNumberSet[0] != m.Recipient ||
		body.TemplateId != "SMS_1" ||
		body.SmsSdkAppId != "1400006666" || body.SignName != "腾讯云" || body.SessionContext != m.Key ||
		strings.Join(body.TemplateParamSet, "|") != m.Content.ProviderParams["main"][0].Value+"|073911" {
		t.Errorf("%v %s %+v %v", q.Header, q.Header.Get("Body"), body, err)
	}
	stamp, _ := strconv.ParseInt(q.Header.Get("X-TC-Timestamp"), 10, 64)
	day := time.Unix(stamp, 0).UTC().Format(time.DateOnly)
	signed := "POST\n/\n\ncontent-type:" + q.Header.Get("Content-Type") + "\nhost:" + q.Host +
		"\nx-tc-action:sendsms\n\n" +
		"content-type;host;x-tc-action\n" + sha(q.Header.Get("Body"))
	want := mac(mac(mac(mac([]byte("TC3secret"), day), "sms"), "tc3_request"),
		"TC3-HMAC-SHA256\n"+q.Header.Get("X-TC-Timestamp")+"\n"+day+"/sms/tc3_request\n"+sha(signed))
	if !strings.HasSuffix(q.Header.Get("Authorization"), "Signature="+hex.EncodeToString(want)) {
		t.Errorf("the signature does not match the request: %s", q.Header.Get("Authorization"))
	}
	answers{
		{200, status("LimitExceeded.PhoneNumberThirtySecondLimit"), send.Temporary,
			"tencent_LimitExceeded.PhoneNumberThirtySecondLimit", 30 * time.Second},
		{200, status("LimitExceeded.DeliveryFrequencyLimit"), send.Temporary,
			"tencent_LimitExceeded.DeliveryFrequencyLimit", time.Minute},
		{200, status("InvalidParameterValue.IncorrectPhoneNumber"), send.Permanent,
			"tencent_InvalidParameterValue.IncorrectPhoneNumber", 0},
		{200, status("FailedOperation.PhoneNumberInBlacklist"), send.Permanent,
			"tencent_FailedOperation.PhoneNumberInBlacklist", 0},
		{200, ours(status("FailedOperation.InsufficientBalanceInSmsPackage")), send.Refused,
			"tencent_FailedOperation.InsufficientBalanceInSmsPackage", 0},
		{200, status("FailedOperation.SignatureIncorrectOrUnapproved"), send.Refused,
			"tencent_FailedOperation.SignatureIncorrectOrUnapproved", 0},
		{200, status("InternalError.Timeout"), send.Unknown, "tencent_InternalError.Timeout", 0},
		{200, ours(failed("AuthFailure.SignatureFailure")), send.Refused, "tencent_AuthFailure.SignatureFailure", 0},
		{200, failed("RequestLimitExceeded.UinLimitExceeded"), send.Temporary,
			"tencent_RequestLimitExceeded.UinLimitExceeded", time.Second},
		{200, failed("InternalError"), send.Unknown, "tencent_InternalError", 0},
		{200, failed("SomethingNew"), send.Unknown, "tencent_SomethingNew", 0},
		{200, `{"Response":{"SendStatusSet":[]}}`, send.Unknown, "tencent_http_200", 0},
		{502, `bad gateway`, send.Unknown, "tencent_http_502", 0},
	}.check(t, p, s)
}

// ours marks a response as an error of the account, not of the message.
func ours(body string) string {
	return strings.Replace(body, `"Message":"`, `"Message":"account `, 1)
}

func TestSettingsAreValidated(t *testing.T) {
	for name, err := range map[string]error{
		"twilio, empty":       second(sms.NewTwilio(sms.TwilioSettings{})),
		"twilio, no password": second(sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", From: "x"})),
		"twilio, two senders": second(sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", AuthToken: "x", From: "x",
			MessagingService: "y"})),
		"twilio, without TLS": second(sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", AuthToken: "x", From: "x",
			URL: "http://api.twilio.com"})),
		"aliyun, empty":     second(sms.NewAliyun(sms.AliyunSettings{})),
		"tencent, empty":    second(sms.NewTencent(sms.TencentSettings{})),
		"http, empty":       second(sms.NewHTTP(sms.HTTPSettings{})),
		"http, user in URL": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://u:hunter2@example.com"})),
		"http, without TLS": second(sms.NewHTTP(sms.HTTPSettings{URL: "http://example.com/?key=hunter2"})),
		"http, placeholder": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com",
			Form: map[string]string{"a": "{recipent}"}})),
		"http, two bodies": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com",
			Form: map[string]string{"a": "b"}, JSON: json.RawMessage("{}")})),
		"http, no JSON": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com",
			JSON: json.RawMessage("{")})),
		"http, outcome": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com",
			Outcomes: map[string]string{"1": "maybe"}})),
		"http, pointer": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com", CodeAt: "code",
			Codes: []string{"0"}})),
		"http, no codes": second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com", CodeAt: "/code"})),
		"http, method":   second(sms.NewHTTP(sms.HTTPSettings{URL: "https://example.com", Method: "DELETE"})),
	} {
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
