package sms

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// TwilioSettings are the settings of a Twilio account.
// https://www.twilio.com/docs/messaging/api/message-resource#create-a-message-resource
type TwilioSettings struct {
	AccountSID string `json:"account_sid"`
	// AuthToken is the account's token. It also authenticates Twilio's reports.
	AuthToken string `json:"auth_token"`
	// APIKeySID and APIKeySecret, if set, authenticate requests instead of the token.
	APIKeySID    string `json:"api_key_sid"`
	APIKeySecret string `json:"api_key_secret"`
	// From is the sender: a number, a short code or a name. Set either From or MessagingService.
	From             string `json:"from"`
	MessagingService string `json:"messaging_service"`
	// ReportURL is the URL for Twilio's reports: https://…/notify/reports/NAME. Empty: no reports are requested.
	ReportURL string `json:"report_url"`
	// URL replaces https://api.twilio.com.
	URL string      `json:"url"`
	TLS *tls.Config `json:"-"`
}

// Twilio sends through Twilio's Messages resource. Twilio does not deduplicate: a retry is a second message.
type Twilio struct {
	url, auth string
	token     string // authenticates reports
	form      url.Values
	report    *url.URL
	client    *httpsend.Client
}

// NewTwilio validates the settings and returns a sender.
func NewTwilio(s TwilioSettings) (*Twilio, error) {
	if err := require("account_sid", s.AccountSID); err != nil {
		return nil, err
	}
	user, password := s.AccountSID, s.AuthToken
	if s.APIKeySID != "" {
		user, password = s.APIKeySID, s.APIKeySecret
	}
	if password == "" {
		return nil, fmt.Errorf("set auth_token, or api_key_sid and api_key_secret")
	}
	if (s.From == "") == (s.MessagingService == "") {
		return nil, fmt.Errorf("set either from or messaging_service")
	}
	if s.URL == "" {
		s.URL = "https://api.twilio.com"
	}
	u, err := base(s.URL, false)
	if err != nil {
		return nil, err
	}
	t := &Twilio{url: u.JoinPath("2010-04-01", "Accounts", s.AccountSID, "Messages.json").String(),
		auth: "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)), token: s.AuthToken,
		form: url.Values{}, client: client(s.TLS)}
	if s.From != "" {
		t.form.Set("From", s.From)
	} else {
		t.form.Set("MessagingServiceSid", s.MessagingService)
	}
	if s.ReportURL != "" {
		if t.report, err = base(s.ReportURL, true); err != nil {
			return nil, fmt.Errorf("report_url: %w", err)
		}
		if s.AuthToken == "" {
			return nil, fmt.Errorf("auth_token is missing: Twilio signs its reports with it")
		}
	}
	return t, nil
}

// twilioVerdicts classifies error codes: https://www.twilio.com/docs/api/errors. An error response means that no
// message was created.
var twilioVerdicts = verdicts{
	"20003": account,            // wrong SID or token
	"20005": account,            // the account is not active
	"20404": account,            // no such account
	"20429": later(time.Second), // too many requests
	"14107": later(time.Second), // sending faster than allowed
	"21211": permanent,          // invalid To
	"21214": permanent,          // unreachable To
	"21217": permanent,          // invalid number
	"21408": refused,            // sending to this country is not enabled
	"21421": permanent,          // invalid number
	"21602": permanent,          // no text
	"21604": permanent,          // no To
	"21606": refused,            // From is not ours, or cannot send to To
	"21608": refused,            // a trial account sends only to verified numbers
	"21610": permanent,          // the recipient answered STOP
	"21611": later(time.Minute), // From's queue is full
	"21612": refused,            // no route from From to To
	"21614": permanent,          // To is not a mobile number
	"21617": permanent,          // the text is too long
	"21659": refused,            // From is not a Twilio number
	"21660": refused,            // From belongs to another account
	"21703": refused,            // the messaging service has no numbers
	"30001": later(time.Minute), // the queue is full
	"30002": account,            // the account is suspended
	"63038": later(time.Hour),   // the account's daily limit
}

func (t *Twilio) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	if m.Content.Text == "" {
		return send.Receipt{}, failure(send.Refused, "no_text",
			"the message has neither a text nor a template for Twilio")
	}
	form := url.Values{"To": {m.Recipient}, "Body": {m.Content.Text}}
	for name, values := range t.form {
		form[name] = values
	}
	if t.report != nil {
		u := *t.report
		q := u.Query()
		q.Set("message", m.Key)
		u.RawQuery = q.Encode()
		form.Set("StatusCallback", u.String())
	}
	a, f := ask(ctx, t.client, &httpsend.Request{URL: t.url, Body: []byte(form.Encode()), Header: http.Header{
		"Authorization": {t.auth}, "Content-Type": {"application/x-www-form-urlencoded"},
		"Accept": {"application/json"}}})
	if f != nil {
		return send.Receipt{}, f
	}
	var said struct {
		SID     string `json:"sid"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	err := json.Unmarshal(a.Body, &said)
	if a.Status == http.StatusCreated || a.Status == http.StatusOK {
		if err != nil || said.SID == "" {
			return send.Receipt{}, failure(send.Unknown, "twilio_bad_answer",
				"the provider's response has no message id")
		}
		return send.Receipt{ProviderMessageID: httpsend.Cut(said.SID, 256)}, nil
	}
	code := strconv.Itoa(said.Code)
	v, known := twilioVerdicts.of(code)
	if !known || a.Status >= 500 {
		v = byStatus(a.Status)
	}
	if said.Code == 0 {
		code = "http_" + strconv.Itoa(a.Status)
	}
	return send.Receipt{}, v.failed(m, a, "twilio", code, said.Message)
}
