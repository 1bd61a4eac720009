package push

import (
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// FCMSettings are the settings of a Firebase project.
// https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages/send
type FCMSettings struct {
	// ServiceAccount is the JSON key of a service account, as downloaded from Google.
	ServiceAccount string `json:"service_account"`
	// URL replaces https://fcm.googleapis.com.
	URL string      `json:"url"`
	TLS *tls.Config `json:"-"`
}

// FCM sends through Firebase Cloud Messaging.
type FCM struct {
	url    string
	access bearer
	client *httpsend.Client
}

// account is the key of a service account.
type account struct {
	ProjectID    string `json:"project_id"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	ClientEmail  string `json:"client_email"`
	TokenURI     string `json:"token_uri"`
}

// NewFCM validates the settings and returns a sender.
func NewFCM(s FCMSettings) (*FCM, error) {
	var a account
	if err := json.Unmarshal([]byte(s.ServiceAccount), &a); err != nil {
		return nil, fmt.Errorf("service_account: must be the JSON key of a service account")
	}
	if a.ProjectID == "" || a.ClientEmail == "" || a.TokenURI == "" {
		return nil, fmt.Errorf("service_account requires project_id, client_email and token_uri")
	}
	key, err := privateKey[*rsa.PrivateKey](a.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("service_account: %w", err)
	}
	f := &FCM{url: cmp.Or(s.URL, "https://fcm.googleapis.com") + "/v1/projects/" + url.PathEscape(a.ProjectID) +
		"/messages:send",
		client: httpsend.New(httpsend.Settings{TLS: s.TLS, Proxy: http.ProxyFromEnvironment, HTTP2: true})}
	f.access.make = func(ctx context.Context) (string, time.Time, *send.Failure) { return f.login(ctx, &a, key) }
	return f, nil
}

// login exchanges a signed claim for an access token. Its failures mean that no message was sent.
// https://developers.google.com/identity/protocols/oauth2/service-account#httprest
func (f *FCM) login(ctx context.Context, a *account, key *rsa.PrivateKey) (string, time.Time, *send.Failure) {
	now := time.Now()
	claim, err := jwt(map[string]string{"alg": "RS256", "typ": "JWT", "kid": a.PrivateKeyID},
		map[string]any{"iss": a.ClientEmail, "aud": a.TokenURI,
			"scope": "https://www.googleapis.com/auth/firebase.messaging", "iat": now.Unix(),
			"exp": now.Add(time.Hour).Unix()}, rs256(key))
	refused := &send.Failure{Outcome: send.Refused, Code: "fcm_login", Down: true}
	if err != nil {
		refused.Text = "the claim could not be signed"
		return "", now, refused
	}
	form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {claim}}
	answer, failed := f.client.Do(ctx, &httpsend.Request{URL: a.TokenURI, Body: []byte(form.Encode()),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}})
	if failed != nil {
		failed.Outcome, failed.Down, failed.Code = send.Temporary, true, "fcm_login_"+failed.Code
		return "", now, failed
	}
	var said struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
		Error       string `json:"error"`
	}
	_ = json.Unmarshal(answer.Body, &said)
	switch {
	case answer.Status == http.StatusOK && said.AccessToken != "":
		return said.AccessToken, now.Add(time.Duration(min(said.ExpiresIn, 3600))*time.Second - time.Minute), nil
	case answer.Status == http.StatusTooManyRequests, answer.Status >= 500, answer.Status < 400:
		refused.Outcome, refused.RetryAfter = send.Temporary, answer.RetryAfter
	}
	refused.Text = "no access token: " + httpsend.Code(strconv.Itoa(answer.Status), said.Error)
	return "", now, refused
}

// fcmVerdicts classifies error codes: https://firebase.google.com/docs/reference/fcm/rest/v1/ErrorCode.
var fcmVerdicts = map[string]send.Failure{
	"INVALID_ARGUMENT":       {Outcome: send.Permanent},
	"UNREGISTERED":           {Outcome: send.Permanent, Disable: true},
	"SENDER_ID_MISMATCH":     {Outcome: send.Refused}, // the device belongs to another project
	"QUOTA_EXCEEDED":         {Outcome: send.Temporary, RetryAfter: time.Minute},
	"UNAVAILABLE":            {Outcome: send.Temporary, Down: true},
	"INTERNAL":               {Outcome: send.Unknown},
	"THIRD_PARTY_AUTH_ERROR": {Outcome: send.Refused}, // the key for APNs or web push is wrong
}

// Send calls messages:send.
func (f *FCM) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	device, failed := token(m.Recipient, prefixFCM, prefixAPNs)
	if failed != nil {
		return send.Receipt{}, failed
	}
	body, err := json.Marshal(map[string]any{"message": fcmMessage(m, device)})
	if err != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "bad_content",
			Text: "the message cannot be written as JSON"}
	}
	access, failed := f.access.get(ctx)
	if failed != nil {
		return send.Receipt{}, failed
	}
	a, failed := f.client.Do(ctx, &httpsend.Request{URL: f.url, Body: body,
		Header: http.Header{"Authorization": {"Bearer " + access},
			"Content-Type": {"application/json; charset=utf-8"}}})
	if failed != nil {
		failed.Down = failed.Outcome == send.Temporary && ctx.Err() == nil
		return send.Receipt{}, failed
	}
	return f.receipt(m, a, device, access)
}

func (f *FCM) receipt(m *send.Message, a *httpsend.Answer, device, access string) (send.Receipt, error) {
	var said struct {
		Name  string
		Error struct {
			Status  string
			Message string
			Details []struct{ ErrorCode string }
		}
	}
	_ = json.Unmarshal(a.Body, &said)
	if a.Status == http.StatusOK && said.Name != "" {
		return send.Receipt{ProviderMessageID: httpsend.Cut(said.Name, 256)}, nil
	}
	var code string
	for _, d := range said.Error.Details {
		code = cmp.Or(code, d.ErrorCode)
	}
	v, known := fcmVerdicts[code]
	switch {
	case known:
	case a.Status == http.StatusUnauthorized: // the access token was revoked or has expired
		f.access.drop(access)
		v = send.Failure{Outcome: send.Temporary, Down: true}
	case a.Status == http.StatusTooManyRequests, a.Status == http.StatusServiceUnavailable:
		v = send.Failure{Outcome: send.Temporary, Down: true}
	case a.Status == http.StatusBadRequest:
		v = send.Failure{Outcome: send.Permanent}
	case a.Status == http.StatusForbidden:
		v = send.Failure{Outcome: send.Refused, Down: true}
	case a.Status > 400 && a.Status < 500:
		v = send.Failure{Outcome: send.Refused}
	}
	v.Code = httpsend.Code("fcm", cmp.Or(code, said.Error.Status, "http_"+strconv.Itoa(a.Status)))
	v.Text = clean(m, device, said.Error.Message)
	if v.Outcome == send.Temporary {
		v.RetryAfter = max(v.RetryAfter, a.RetryAfter)
	}
	return send.Receipt{}, &v
}

// fcmMessage encodes the data as strings, the only type in FCM data.
func fcmMessage(m *send.Message, device string) map[string]any {
	members := map[string]string{}
	for name, value := range data(m) {
		var s string
		if json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		members[name] = s
	}
	message := map[string]any{"token": device, "data": members}
	if m.Content.Subject != "" || m.Content.Text != "" {
		message["notification"] = map[string]string{"title": m.Content.Subject, "body": m.Content.Text}
		// A repeat replaces the first message on the device.
		message["android"] = map[string]any{"notification": map[string]string{"tag": m.Key}}
		message["apns"] = map[string]any{"headers": map[string]string{"apns-collapse-id": m.Key}}
	}
	return message
}
