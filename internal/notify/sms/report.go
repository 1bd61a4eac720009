package sms

import (
	"crypto/hmac"
	"crypto/sha1" // Twilio signs with it
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/report"
)

var _ = []report.Source{(*Twilio)(nil), (*Aliyun)(nil), (*Tencent)(nil), (*HTTP)(nil)}

var errForm = errors.New("sms: the report is not in the provider's format")

// Reports reads a status callback, authenticated by Twilio's signature.
// https://www.twilio.com/docs/messaging/guides/track-outbound-message-status
func (t *Twilio) Reports(r *http.Request, _ string, body []byte) ([]report.Report, error) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, errForm
	}
	if t.report == nil || t.token == "" {
		return nil, report.ErrForbidden
	}
	u := *t.report // the URL that Twilio knows, whatever proxy forwards the request
	u.RawQuery = r.URL.RawQuery
	want := twilioSignature(t.token, u.String(), form)
	if !hmac.Equal([]byte(r.Header.Get("X-Twilio-Signature")), []byte(want)) {
		return nil, report.ErrForbidden
	}
	out := report.Report{Key: r.URL.Query().Get("message"), ProviderMessageID: form.Get("MessageSid")}
	switch form.Get("MessageStatus") {
	case "delivered", "read":
		out.Delivered = true
	case "undelivered", "failed", "canceled":
		out.Code = httpsend.Code("twilio", form.Get("ErrorCode"))
		out.Text = httpsend.Clean(nil, form.Get("ErrorMessage"))
	default: // not final
		return nil, nil
	}
	return []report.Report{out}, nil
}

// Acknowledge confirms a report.
func (t *Twilio) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

// twilioSignature returns the expected X-Twilio-Signature.
// https://www.twilio.com/docs/usage/security#validating-requests
func twilioSignature(token, url string, form url.Values) string {
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	mac := hmac.New(sha1.New, []byte(token))
	_, _ = io.WriteString(mac, url)
	for _, name := range names {
		values := slices.Compact(slices.Sorted(slices.Values(form[name])))
		for _, value := range values {
			_, _ = io.WriteString(mac, name+value)
		}
	}
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Reports reads an SmsReport, which is not signed. https://help.aliyun.com/zh/sms/developer-reference/smsreport-2
func (s *Aliyun) Reports(_ *http.Request, secret string, body []byte) ([]report.Report, error) {
	if err := report.Secret(secret, s.s.ReportSecret); err != nil {
		return nil, err
	}
	var said []struct {
		Success bool
		ErrCode string `json:"err_code"`
		ErrMsg  string `json:"err_msg"`
		BizID   string `json:"biz_id"`
		OutID   string `json:"out_id"`
	}
	if json.Unmarshal(body, &said) != nil {
		return nil, errForm
	}
	out := make([]report.Report, 0, len(said))
	for _, r := range said {
		if r.OutID == "" { // not ours: another user of the account
			continue
		}
		one := report.Report{Key: r.OutID, ProviderMessageID: httpsend.Cut(r.BizID, 256), Delivered: r.Success}
		if !r.Success {
			one.Code, one.Text = httpsend.Code("aliyun", r.ErrCode), httpsend.Clean(nil, r.ErrMsg)
		}
		out = append(out, one)
	}
	return out, nil
}

// Acknowledge sends the response that Aliyun requires.
func (s *Aliyun) Acknowledge(w http.ResponseWriter) { answer(w, `{"code":0,"msg":"OK"}`) }

// Reports reads a status notification, which is not signed and contains only Tencent's message id.
// https://cloud.tencent.com/document/product/382/5807
func (s *Tencent) Reports(_ *http.Request, secret string, body []byte) ([]report.Report, error) {
	if err := report.Secret(secret, s.s.ReportSecret); err != nil {
		return nil, err
	}
	var said []struct {
		Status      string `json:"report_status"`
		ErrMsg      string `json:"errmsg"`
		Description string `json:"description"`
		SID         string `json:"sid"`
	}
	if json.Unmarshal(body, &said) != nil {
		return nil, errForm
	}
	out := make([]report.Report, 0, len(said))
	for _, r := range said {
		one := report.Report{ProviderMessageID: httpsend.Cut(r.SID, 256), Delivered: r.Status == "SUCCESS"}
		if !one.Delivered {
			one.Code, one.Text = httpsend.Code("tencent", r.ErrMsg), httpsend.Clean(nil, r.Description)
		}
		out = append(out, one)
	}
	return out, nil
}

// Acknowledge sends the response that Tencent requires.
func (s *Tencent) Acknowledge(w http.ResponseWriter) { answer(w, `{"result":0,"errmsg":"OK"}`) }

// Reports reads reports as described by the configuration.
func (p *HTTP) Reports(_ *http.Request, secret string, body []byte) ([]report.Report, error) {
	if err := report.Secret(secret, p.s.ReportSecret); err != nil {
		return nil, err
	}
	return p.s.Reports.Read(body, "sms")
}

// Acknowledge confirms a report.
func (p *HTTP) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

func answer(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = io.WriteString(w, body)
}
