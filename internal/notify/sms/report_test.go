package sms_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
)

func read(s report.Source, secret, query, body, signature string) ([]report.Report, error) {
	r := httptest.NewRequest(http.MethodPost, "/notify/reports/main"+query, strings.NewReader(body))
	r.Header.Set("X-Twilio-Signature", signature)
	return s.Reports(r, secret, []byte(body))
}

func acknowledged(s report.Source) string {
	w := httptest.NewRecorder()
	s.Acknowledge(w)
	return w.Body.String()
}

func TestTwilioReports(t *testing.T) {
	s, err := sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", AuthToken: "12345", From: "x",
		ReportURL: "https://mycompany.com/myapp.php"})
	if err != nil {
		t.Fatal(err)
	}
	// Test vectors of Twilio's libraries: spec/request_validator of twilio-ruby, tests/unit/test_request_validator of
	// twilio-python, RequestValidatorTest of twilio-php. They are about calls, so the signed report contains no message
	// status.
	vector := url.Values{"CallSid": {"CA1234567890ABCDE"}, "Caller": {"+14158675309"}, "Digits": {"1234"},
		"From": {"+14158675309"}, "To": {"+18005551212"}}
	const signature = "RSOYDt4T1cUTdK1PDd93/VVr8B8="
	if got, err := read(s, "", "?foo=1&bar=2", vector.Encode(), signature); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	for name, c := range map[string][3]string{
		"another query":     {"?foo=1&bar=3", vector.Encode(), signature},
		"another body":      {"?foo=1&bar=2", vector.Encode() + "&x=1", signature},
		"another signature": {"?foo=1&bar=2", vector.Encode(), "RSOYDt4T1cUTdK1PDd93/VVr8B9="},
		"no signature":      {"?foo=1&bar=2", vector.Encode(), ""},
	} {
		if _, err := read(s, "", c[0], c[1], c[2]); !errors.Is(err, report.ErrForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for body, want := range map[string][]report.Report{
		"MessageSid=SM1&MessageStatus=sent":      nil,
		"MessageSid=SM1&MessageStatus=queued":    nil,
		"MessageSid=SM1&MessageStatus=delivered": {{Key: "msg_1_cn5", ProviderMessageID: "SM1", Delivered: true}},
		"MessageSid=SM1&MessageStatus=undelivered&ErrorCode=30003&ErrorMessage=to+%2B8613812345678": {
			{Key: "msg_1_cn5", ProviderMessageID: "SM1", Code: "twilio_30003", Text: "to …"}},
		"MessageSid=SM1&MessageStatus=failed&ErrorCode=30008": {{Key: "msg_1_cn5", ProviderMessageID: "SM1",
			Code: "twilio_30008"}},
	} {
		form, _ := url.ParseQuery(body)
		got, err := read(s, "", "?message=msg_1_cn5", body,
			sms.TwilioSignature("12345", "https://mycompany.com/myapp.php?message=msg_1_cn5", form))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

// Test vector of twilio-python with repeated values.
func TestTwilioSignsRepeatedParametersOnce(t *testing.T) {
	form := url.Values{"Sid": {"CA123"}, "SidAccount": {"AC123"}, "Digits": {"5678", "1234", "1234"}}
	if got := sms.TwilioSignature("12345", "https://mycompany.com/myapp.php?foo=1&bar=2",
		form); got != "IK+Dwps556ElfBT0I3Rgjkr1wJU=" {
		t.Error(got)
	}
}

func TestAliyunReports(t *testing.T) {
	s, err := sms.NewAliyun(sms.AliyunSettings{AccessKeyID: "x", AccessKeySecret: "y", SignName: "z",
		ReportSecret: "path"})
	if err != nil {
		t.Fatal(err)
	}
	// The documentation's example, with a failed message added.
	const body = `[{"phone_number":"13811111111","send_time":"2017-01-01 00:00:00","report_time":"2017-01-01 00:00:00",
		"success":true,"err_code":"DELIVERED",
		"err_msg":"用户接收成功","sms_size":"1","biz_id":"12345","out_id":"msg_1_cn5"},
		{"phone_number":"13811111111","success":false,"err_code":"MK:1008","err_msg":"13811111111 空号",
		"biz_id":"12346","out_id":"67890"},
		{"phone_number":"13811111111","success":true,"biz_id":"12347"}]`
	want := []report.Report{{Key: "msg_1_cn5", ProviderMessageID: "12345", Delivered: true},
		{Key: "67890", ProviderMessageID: "12346", Code: "aliyun_MK_1008", Text: "… 空号"}}
	if got, err := read(s, "path", "", body, ""); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	refuses(t, s)
	if got := acknowledged(s); got != `{"code":0,"msg":"OK"}` {
		t.Error(got)
	}
}

func TestTencentReports(t *testing.T) {
	s, err := sms.NewTencent(sms.TencentSettings{SecretID: "x", SecretKey: "y", AppID: "z", ReportSecret: "path"})
	if err != nil {
		t.Fatal(err)
	}
	const body = `[{"user_receive_time":"2015-10-17 08:03:04","nationcode":"86","mobile":"13xxxxxxxxx",
		"report_status":"SUCCESS","errmsg":"DELIVRD",
		"description":"用户短信送达成功","sid":"5000:1"},{"report_status":"FAIL","errmsg":"002",
		"description":"13811111111 关机","sid":"5000:2"}]`
	want := []report.Report{{ProviderMessageID: "5000:1", Delivered: true},
		{ProviderMessageID: "5000:2", Code: "tencent_002", Text: "… 关机"}}
	if got, err := read(s, "path", "", body, ""); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	refuses(t, s)
	if got := acknowledged(s); got != `{"result":0,"errmsg":"OK"}` {
		t.Error(got)
	}
}

func TestHTTPReports(t *testing.T) {
	settings := sms.HTTPSettings{URL: "https://sms.example.com", ReportSecret: "path",
		Reports: report.JSON{ListAt: "/a/list", KeyAt: "/ref", IDAt: "/id",
			StatusAt: "/s/0", Delivered: []string{"ok", "1"}, Undelivered: []string{"bad"}, CodeAt: "/e", TextAt: "/m"}}
	s, err := sms.NewHTTP(settings)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(s, "path", "", `{"a":{"list":[{"ref":"msg_1_cn5","s":["ok"]},{"id":77,"s":[1]},{"id":"x",`+
		`"s":["bad"],"e":5,"m":"number 13811111111"},{"id":"y","s":["sent"]},{}]}}`, "")
	want := []report.Report{{Key: "msg_1_cn5", Delivered: true}, {ProviderMessageID: "77", Delivered: true},
		{ProviderMessageID: "x", Code: "sms_5", Text: "number …"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	refuses(t, s)
	for at, body := range map[string]string{"": `{"id":"1","s":["ok"]}`, "/": `[{"id":"1","s":["ok"]}]`} {
		settings.Reports.ListAt = at
		s, _ := sms.NewHTTP(settings)
		if got, err := read(s, "path", "", body, ""); err != nil || len(got) != 1 || got[0].ProviderMessageID != "1" {
			t.Errorf("%q: %+v, %v", at, got, err)
		}
	}
}

// refuses checks that a source refuses wrong secrets and malformed reports.
func refuses(t *testing.T, s report.Source) {
	t.Helper()
	for _, secret := range []string{"", "Path", "path2"} {
		if got, err := read(s, secret, "", "[]", ""); !errors.Is(err, report.ErrForbidden) {
			t.Errorf("secret %q: %v, %v", secret, got, err)
		}
	}
	if got, err := read(s, "path", "", `{"x":`, ""); err == nil || errors.Is(err, report.ErrForbidden) {
		t.Errorf("%v, %v", got, err)
	}
}

// An empty secret in the configuration matches nothing.
func TestReportsWithoutASecretAreRefused(t *testing.T) {
	aliyun, _ := sms.NewAliyun(sms.AliyunSettings{AccessKeyID: "x", AccessKeySecret: "y", SignName: "z"})
	twilio, _ := sms.NewTwilio(sms.TwilioSettings{AccountSID: "AC1", AuthToken: "12345", From: "x"})
	for _, s := range []report.Source{aliyun, twilio} {
		if _, err := read(s, "", "", "[]", sms.TwilioSignature("12345", "", nil)); !errors.Is(err,
			report.ErrForbidden) {
			t.Errorf("%T: %v", s, err)
		}
	}
}
