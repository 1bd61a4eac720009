package push

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// APNsSettings are the settings of an Apple app.
// https://developer.apple.com/documentation/usernotifications/sending-notification-requests-to-apns
type APNsSettings struct {
	TeamID string `json:"team_id"`
	KeyID  string `json:"key_id"`
	// Key is the private key in PEM, as downloaded from Apple (.p8).
	Key string `json:"key"`
	// Topic is the app's bundle id.
	Topic string `json:"topic"`
	// URL replaces https://api.push.apple.com. For development: https://api.sandbox.push.apple.com.
	URL string      `json:"url"`
	TLS *tls.Config `json:"-"`
}

// APNs sends through the Apple Push Notification service.
type APNs struct {
	url, topic string
	access     bearer
	client     *httpsend.Client
}

// tokenLife is the life of a provider token: Apple requires renewal after 20 to 60 minutes.
const tokenLife = 50 * time.Minute

// NewAPNs validates the settings and returns a sender.
func NewAPNs(s APNsSettings) (*APNs, error) {
	for name, value := range map[string]string{"team_id": s.TeamID, "key_id": s.KeyID, "topic": s.Topic} {
		if value == "" {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	key, err := privateKey[*ecdsa.PrivateKey](s.Key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if !isP256(key) {
		return nil, fmt.Errorf("key: the private key is not on the curve P-256")
	}
	a := &APNs{url: cmp.Or(s.URL, "https://api.push.apple.com") + "/3/device/", topic: s.Topic,
		client: httpsend.New(httpsend.Settings{TLS: s.TLS, Proxy: http.ProxyFromEnvironment, HTTP2: true})}
	a.access.make = func(context.Context) (string, time.Time, *send.Failure) {
		now := time.Now()
		token, err := jwt(map[string]string{"alg": "ES256", "kid": s.KeyID},
			map[string]any{"iss": s.TeamID, "iat": now.Unix()}, es256(key))
		if err != nil {
			return "", now, &send.Failure{Outcome: send.Refused, Code: "apns_token",
				Text: "the provider token could not be signed", Down: true}
		}
		return token, now.Add(tokenLife), nil
	}
	return a, nil
}

// apnsVerdicts classifies reasons:
// https://developer.apple.com/documentation/usernotifications/handling-notification-responses-from-apns.
var apnsVerdicts = map[string]send.Failure{
	"Unregistered":                {Outcome: send.Permanent, Disable: true},
	"ExpiredToken":                {Outcome: send.Permanent, Disable: true},
	"BadDeviceToken":              {Outcome: send.Permanent},
	"MissingDeviceToken":          {Outcome: send.Permanent},
	"PayloadEmpty":                {Outcome: send.Permanent},
	"PayloadTooLarge":             {Outcome: send.Permanent},
	"BadCollapseId":               {Outcome: send.Permanent},
	"DeviceTokenNotForTopic":      {Outcome: send.Refused},
	"BadTopic":                    {Outcome: send.Refused, Down: true},
	"MissingTopic":                {Outcome: send.Refused, Down: true},
	"TopicDisallowed":             {Outcome: send.Refused, Down: true},
	"InvalidProviderToken":        {Outcome: send.Refused, Down: true},
	"MissingProviderToken":        {Outcome: send.Refused, Down: true},
	"Forbidden":                   {Outcome: send.Refused, Down: true},
	"ExpiredProviderToken":        {Outcome: send.Temporary, Down: true},
	"TooManyProviderTokenUpdates": {Outcome: send.Temporary, Down: true, RetryAfter: time.Minute},
	"TooManyRequests":             {Outcome: send.Temporary, RetryAfter: time.Minute}, // for this device
	"IdleTimeout":                 {Outcome: send.Temporary},
	"ServiceUnavailable":          {Outcome: send.Temporary, Down: true},
	"Shutdown":                    {Outcome: send.Temporary, Down: true},
	"InternalServerError":         {Outcome: send.Unknown},
}

var hexToken = regexp.MustCompile(`^[0-9a-fA-F]{1,200}$`)

// Send posts to the device's URL.
func (s *APNs) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	device, failed := token(m.Recipient, prefixAPNs, prefixFCM)
	if failed != nil {
		return send.Receipt{}, failed
	}
	if !hexToken.MatchString(device) { // it becomes part of the path
		return send.Receipt{}, &send.Failure{Outcome: send.Refused, Code: "other_platform",
			Text: "the device token is not an APNs token"}
	}
	body, kind, failed := apnsPayload(m)
	if failed != nil {
		return send.Receipt{}, failed
	}
	access, failed := s.access.get(ctx)
	if failed != nil {
		return send.Receipt{}, failed
	}
	id := apnsID(m.Key)
	h := http.Header{"Authorization": {"bearer " + access}, "Apns-Id": {id}, "Apns-Topic": {s.topic},
		"Apns-Push-Type":   {kind},
		"Apns-Collapse-Id": {m.Key}, "Apns-Priority": {"10"}, "Content-Type": {"application/json"}}
	if kind == "background" {
		h.Set("Apns-Priority", "5")
	}
	a, failed := s.client.Do(ctx, &httpsend.Request{URL: s.url + device, Body: body, Header: h})
	if failed != nil {
		failed.Down = failed.Outcome == send.Temporary && ctx.Err() == nil
		return send.Receipt{}, failed
	}
	if a.Status == http.StatusOK {
		return send.Receipt{ProviderMessageID: httpsend.Cut(cmp.Or(a.Header.Get("Apns-Id"), id), 256)}, nil
	}
	return send.Receipt{}, s.failed(m, a, device, access)
}

func (s *APNs) failed(m *send.Message, a *httpsend.Answer, device, access string) *send.Failure {
	var said struct{ Reason string }
	_ = json.Unmarshal(a.Body, &said)
	v, known := apnsVerdicts[said.Reason]
	switch {
	case known:
	case a.Status == http.StatusGone:
		v = send.Failure{Outcome: send.Permanent, Disable: true}
	case a.Status == http.StatusTooManyRequests, a.Status == http.StatusServiceUnavailable:
		v = send.Failure{Outcome: send.Temporary, Down: true}
	case a.Status == http.StatusForbidden:
		v = send.Failure{Outcome: send.Refused, Down: true}
	case a.Status >= 400 && a.Status < 500:
		v = send.Failure{Outcome: send.Refused}
	}
	if said.Reason == "ExpiredProviderToken" {
		s.access.drop(access)
	}
	v.Code = httpsend.Code("apns", cmp.Or(said.Reason, "http_"+strconv.Itoa(a.Status)))
	v.Text = clean(m, device, http.StatusText(a.Status))
	if v.Outcome == send.Temporary {
		v.RetryAfter = max(v.RetryAfter, a.RetryAfter)
	}
	return &v
}

// apnsPayload returns the payload. Without title and text it is a background notification.
func apnsPayload(m *send.Message) (body []byte, kind string, failed *send.Failure) {
	members := data(m)
	kind, aps := "alert", `{"content-available":1}`
	if m.Content.Subject != "" || m.Content.Text != "" {
		alert, _ := json.Marshal(map[string]map[string]string{"alert": {"title": m.Content.Subject,
			"body": m.Content.Text}})
		aps = string(alert)
	} else {
		kind = "background"
	}
	members["aps"] = json.RawMessage(aps)
	body, err := json.Marshal(members)
	if err != nil {
		return nil, "", &send.Failure{Outcome: send.Permanent, Code: "bad_content",
			Text: "the message cannot be written as JSON"}
	}
	return body, kind, nil
}

// apnsID derives a UUID (version 8, RFC 9562) from the key.
func apnsID(key string) string {
	h := sha256.Sum256([]byte("ledgerd apns-id " + key))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
