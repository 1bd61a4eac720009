package sms

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" // Twilio signs with it
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/report"
)

var _ = []report.Source{(*Twilio)(nil), (*Aliyun)(nil), (*Tencent)(nil), (*HTTP)(nil)}

var errForm = errors.New("sms: a report in another form")

// Reports reads a status callback, which Twilio signs.
// https://www.twilio.com/docs/messaging/guides/track-outbound-message-status
func (t *Twilio) Reports(r *http.Request, _ string, body []byte) ([]report.Report, error) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, errForm
	}
	if t.report == nil || t.token == "" {
		return nil, report.ErrForbidden
	}
	u := *t.report // as Twilio knows it, whatever stands in front of us
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
	default: // on its way
		return nil, nil
	}
	return []report.Report{out}, nil
}

// Acknowledge says that it was taken.
func (t *Twilio) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

// twilioSignature is what X-Twilio-Signature is to be. https://www.twilio.com/docs/usage/security#validating-requests
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
	out := make([]report.Report, len(said))
	for i, r := range said {
		out[i] = report.Report{Key: r.OutID, ProviderMessageID: httpsend.Cut(r.BizID, 256), Delivered: r.Success}
		if !r.Success {
			out[i].Code, out[i].Text = httpsend.Code("aliyun", r.ErrCode), httpsend.Clean(nil, r.ErrMsg)
		}
	}
	return out, nil
}

// Acknowledge answers as Aliyun demands.
func (s *Aliyun) Acknowledge(w http.ResponseWriter) { answer(w, `{"code":0,"msg":"OK"}`) }

// Reports reads a status notification, which is not signed, and has Tencent's number alone.
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

// Acknowledge answers as Tencent demands.
func (s *Tencent) Acknowledge(w http.ResponseWriter) { answer(w, `{"result":0,"errmsg":"OK"}`) }

// HTTPReports describe the reports of a provider: JSON, with places as JSON pointers.
type HTTPReports struct {
	// ListAt is where the list is; / is the whole body. Empty: the body is one report.
	ListAt string `json:"list_at"`
	// KeyAt is where our key is, if the provider echoes it; IDAt where its own number is.
	KeyAt string `json:"key_at"`
	IDAt  string `json:"id_at"`
	// StatusAt is where the state is; those neither in Delivered nor in Undelivered are on the way.
	StatusAt    string   `json:"status_at"`
	Delivered   []string `json:"delivered"`
	Undelivered []string `json:"undelivered"`
	CodeAt      string   `json:"code_at"`
	TextAt      string   `json:"text_at"`
}

// Reports reads what HTTPReports describe.
func (p *HTTP) Reports(_ *http.Request, secret string, body []byte) ([]report.Report, error) {
	if err := report.Secret(secret, p.s.ReportSecret); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var said any
	if d.Decode(&said) != nil {
		return nil, errForm
	}
	list := []any{said}
	if p.s.Reports.ListAt != "" {
		v, _ := pointed(said, strings.TrimSuffix(p.s.Reports.ListAt, "/"))
		all, ok := v.([]any)
		if !ok {
			return nil, errForm
		}
		list = all
	}
	var out []report.Report
	for _, v := range list {
		status, _ := at(v, p.s.Reports.StatusAt)
		one := report.Report{Delivered: slices.Contains(p.s.Reports.Delivered, status)}
		if !one.Delivered && !slices.Contains(p.s.Reports.Undelivered, status) {
			continue
		}
		one.Key, _ = at(v, p.s.Reports.KeyAt)
		id, _ := at(v, p.s.Reports.IDAt)
		one.ProviderMessageID = httpsend.Cut(id, 256)
		if !one.Delivered {
			code, _ := at(v, p.s.Reports.CodeAt)
			text, _ := at(v, p.s.Reports.TextAt)
			one.Code, one.Text = httpsend.Code("sms", code), httpsend.Clean(nil, text)
		}
		out = append(out, one)
	}
	return out, nil
}

// Acknowledge says that it was taken.
func (p *HTTP) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

func answer(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = io.WriteString(w, body)
}
