package push_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/push"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// start starts an HTTP/2 server and returns its URL and root certificates.
func start(t *testing.T, h http.HandlerFunc) (url string, roots *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
}

func pemOf(t *testing.T, key any) string {
	t.Helper()
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}))
}

// claims verifies a token's signature and returns its header and claims.
func claims(t *testing.T, token string, check func(hash, signature []byte) bool) (header, body map[string]any) {
	t.Helper()
	part := strings.Split(token, ".")
	if len(part) != 3 {
		t.Errorf("%q is not a JWT", token)
		return nil, nil
	}
	signature, err := base64.RawURLEncoding.DecodeString(part[2])
	hash := sha256.Sum256([]byte(part[0] + "." + part[1]))
	if err != nil || !check(hash[:], signature) {
		t.Errorf("the signature of %q is wrong: %v", token, err)
	}
	for i, into := range []*map[string]any{&header, &body} {
		b, err := base64.RawURLEncoding.DecodeString(part[i])
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Error(err)
		}
	}
	return header, body
}

func message() *send.Message {
	return &send.Message{Key: "msg_1_cn5", Channel: send.Push, Recipient: "abcdef0123",
		Content: send.Content{Subject: "Paid", Text: "Thank you, Ada",
			Type: "order.paid", Data: []byte(`{"order":"77","n":5,"deep":{"a":[1]}}`)}}
}

func failed(t *testing.T, err error) *send.Failure {
	t.Helper()
	var f *send.Failure
	if !errors.As(err, &f) {
		t.Fatalf("%v is not a *Failure", err)
	}
	if strings.Contains(f.Text, "abcdef0123") || strings.Contains(f.Text, "Ada") {
		t.Errorf("the failure contains the recipient or the content: %s", f.Text)
	}
	return f
}

// google is a token server and FCM in one.
type google struct {
	*testing.T
	key    *rsa.PrivateKey
	mu     sync.Mutex
	status int
	header http.Header
	body   string
	drop   bool
	bad    int // this many logins return a token that is refused
	logins atomic.Int64
	asked  atomic.Int64
	got    map[string]any
	url    string
}

func (g *google) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 2 {
		g.Errorf("protocol %s", r.Proto)
	}
	b, _ := io.ReadAll(r.Body)
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.URL.Path == "/token" {
		n := g.logins.Add(1)
		_ = r.ParseForm()
		form := string(b)
		assertion, found := strings.CutPrefix(form, "assertion=")
		assertion, grant, _ := strings.Cut(assertion, "&")
		header, body := claims(g.T, assertion, func(hash, signature []byte) bool {
			return rsa.VerifyPKCS1v15(&g.key.PublicKey, crypto.SHA256, hash, signature) == nil
		})
		if now := float64(time.Now().Unix()); !found ||
			grant != "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer" || header["alg"] != "RS256" ||
			header["kid"] != "k1" || body["iss"] != "robot@p.example" || body["aud"] != g.url+"/token" ||
			body["iat"].(float64) > now+1 ||
			body["exp"].(float64) != body["iat"].(float64)+3600 ||
			body["scope"] != "https://www.googleapis.com/auth/firebase.messaging" {
			g.Errorf("%s %v %v", form, header, body)
		}
		access := "good"
		if int(n) <= g.bad {
			access = "old"
		}
		_, _ = io.WriteString(w, `{"access_token":"`+access+`","expires_in":3599,"token_type":"Bearer"}`)
		return
	}
	g.asked.Add(1)
	if g.drop {
		panic(http.ErrAbortHandler) // resets the stream
	}
	if r.Header.Get("Authorization") != "Bearer good" {
		w.WriteHeader(401)
		_, _ = io.WriteString(w, `{"error":{"code":401,"message":"Request had invalid authentication `+
			`credentials.","status":"UNAUTHENTICATED"}}`)
		return
	}
	if r.URL.Path != "/v1/projects/p1/messages:send" || json.Unmarshal(b, &g.got) != nil {
		g.Errorf("%s %s", r.URL, b)
	}
	for name, values := range g.header {
		w.Header()[name] = values
	}
	w.WriteHeader(g.status)
	_, _ = io.WriteString(w, g.body)
}

func newGoogle(t *testing.T) (*google, *push.FCM) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g := &google{T: t, key: key, status: 200, body: `{"name":"projects/p1/messages/0:1"}`}
	var roots *tls.Config
	g.url, roots = start(t, g.ServeHTTP)
	account, _ := json.Marshal(map[string]string{"type": "service_account", "project_id": "p1", "private_key_id": "k1",
		"private_key":  pemOf(t, key),
		"client_email": "robot@p.example", "token_uri": g.url + "/token"})
	f, err := push.NewFCM(push.FCMSettings{ServiceAccount: string(account), URL: g.url, TLS: roots})
	if err != nil {
		t.Fatal(err)
	}
	return g, f
}

func TestFCM(t *testing.T) {
	g, f := newGoogle(t)
	var wg sync.WaitGroup
	for range 20 { // one login for all
		wg.Go(func() {
			if r, err := f.Send(t.Context(), message()); err != nil ||
				r.ProviderMessageID != "projects/p1/messages/0:1" {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
	wg.Wait()
	if g.logins.Load() != 1 || g.asked.Load() != 20 {
		t.Errorf("%d logins, %d messages", g.logins.Load(), g.asked.Load())
	}
	got, _ := json.Marshal(g.got)
	want := `{"message":{"android":{"notification":{"tag":"msg_1_cn5"}},` +
		`"apns":{"headers":{"apns-collapse-id":"msg_1_cn5"}},` +
		`"data":{"deep":"{\"a\":[1]}","message_key":"msg_1_cn5","n":"5","order":"77","type":"order.paid"},` +
		`"notification":{"body":"Thank you, Ada","title":"Paid"},"token":"abcdef0123"}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for recipient, device := range map[string]string{"fcm:tok:en": "tok:en", "tok:en": "tok:en", "apns:abc": ""} {
		m := message()
		m.Recipient = recipient
		_, err := f.Send(t.Context(), m)
		if device == "" {
			if failed(t, err).Outcome != send.Refused {
				t.Errorf("%s: %v", recipient, err)
			}
		} else if err != nil || g.got["message"].(map[string]any)["token"] != device {
			t.Errorf("%s: %v, %v", recipient, err, g.got)
		}
	}
}

func TestFCMOutcomes(t *testing.T) {
	g, f := newGoogle(t)
	says := func(status, code string) string {
		return `{"error":{"code":1,"message":"token abcdef0123 is bad","status":"` + status +
			`","details":[{"@type":"type.googleapis.com/google.rpc.BadRequest"},
			{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":"` + code + `"}]}}`
	}
	for _, c := range []struct {
		status int
		retry  string
		body   string
		want   send.Failure
	}{
		{404, "", says("NOT_FOUND", "UNREGISTERED"),
			send.Failure{Outcome: send.Permanent, Code: "fcm_UNREGISTERED", Disable: true}},
		{400, "", says("INVALID_ARGUMENT", "INVALID_ARGUMENT"),
			send.Failure{Outcome: send.Permanent, Code: "fcm_INVALID_ARGUMENT"}},
		{403, "", says("PERMISSION_DENIED", "SENDER_ID_MISMATCH"),
			send.Failure{Outcome: send.Refused, Code: "fcm_SENDER_ID_MISMATCH"}},
		{429, "90", says("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"),
			send.Failure{Outcome: send.Temporary, Code: "fcm_QUOTA_EXCEEDED", RetryAfter: 90 * time.Second}},
		{429, "", says("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"),
			send.Failure{Outcome: send.Temporary, Code: "fcm_QUOTA_EXCEEDED", RetryAfter: time.Minute}},
		{503, "7", says("UNAVAILABLE", "UNAVAILABLE"),
			send.Failure{Outcome: send.Temporary, Code: "fcm_UNAVAILABLE", RetryAfter: 7 * time.Second, Down: true}},
		{500, "", says("INTERNAL", "INTERNAL"), send.Failure{Outcome: send.Unknown, Code: "fcm_INTERNAL"}},
		{403, "", `{"error":{"status":"PERMISSION_DENIED"}}`,
			send.Failure{Outcome: send.Refused, Code: "fcm_PERMISSION_DENIED", Down: true}},
		{404, "", `<html>`, send.Failure{Outcome: send.Refused, Code: "fcm_http_404"}},
		{502, "", `<html>`, send.Failure{Outcome: send.Unknown, Code: "fcm_http_502"}},
		{200, "", `{}`, send.Failure{Outcome: send.Unknown, Code: "fcm_http_200"}},
	} {
		g.status, g.body, g.header = c.status, c.body, http.Header{}
		if c.retry != "" {
			g.header.Set("Retry-After", c.retry)
		}
		_, err := f.Send(t.Context(), message())
		got := *failed(t, err)
		got.Text = ""
		if got != c.want {
			t.Errorf("%d %s: %+v, want %+v", c.status, c.body, got, c.want)
		}
	}
	before := g.asked.Load()
	g.drop = true
	_, err := f.Send(t.Context(), message())
	if got := failed(t, err); got.Outcome != send.Unknown || g.asked.Load() != before+1 {
		t.Errorf("stream reset: %+v, %d requests", got, g.asked.Load()-before)
	}
}

func TestRefusedAccessTokenIsRenewed(t *testing.T) {
	g, f := newGoogle(t)
	g.bad = 1
	_, err := f.Send(t.Context(), message())
	if got := failed(t, err); got.Outcome != send.Temporary || !got.Down {
		t.Errorf("%+v", got)
	}
	if _, err := f.Send(t.Context(), message()); err != nil || g.logins.Load() != 2 {
		t.Errorf("%v, %d logins", err, g.logins.Load())
	}
}

func TestAPNs(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	type said struct {
		status int
		retry  string
		reason string
	}
	now, tokens := said{status: 200}, map[string]bool{}
	var last *http.Request
	var body string
	url, roots := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("protocol %s", r.Proto)
		}
		b, _ := io.ReadAll(r.Body)
		last, body = r, string(b)
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "bearer ")
		tokens[token] = true
		header, c := claims(t, token, func(hash, signature []byte) bool {
			return len(signature) == 64 &&
				ecdsa.Verify(&key.PublicKey, hash, new(big.Int).SetBytes(signature[:32]),
					new(big.Int).SetBytes(signature[32:]))
		})
		if header["alg"] != "ES256" || header["kid"] != "K1" || c["iss"] != "T1" ||
			c["iat"].(float64) > float64(time.Now().Unix()) {
			t.Errorf("%v %v", header, c)
		}
		w.Header().Set("apns-id", strings.ToUpper(r.Header.Get("apns-id")))
		if now.retry != "" {
			w.Header().Set("Retry-After", now.retry)
		}
		w.WriteHeader(now.status)
		if now.reason != "" {
			_, _ = io.WriteString(w, `{"reason":"`+now.reason+`"}`)
		}
	})
	s, err := push.NewAPNs(push.APNsSettings{TeamID: "T1", KeyID: "K1", Key: pemOf(t, key), Topic: "com.example.shop",
		URL: url, TLS: roots})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Send(t.Context(), message())
	h := func(name string) string { return last.Header.Get(name) }
	id := h("apns-id")
	if err != nil || r.ProviderMessageID != strings.ToUpper(id) || last.URL.Path != "/3/device/abcdef0123" ||
		h("apns-topic") != "com.example.shop" ||
		h("apns-push-type") != "alert" || h("apns-priority") != "10" || h("apns-collapse-id") != "msg_1_cn5" ||
		len(id) != 36 || id[14] != '8' {
		t.Errorf("%+v %v %v %s", r, err, last.Header, last.URL)
	}
	if want := `{"aps":{"alert":{"body":"Thank you, Ada","title":"Paid"}},"deep":{"a":[1]},"message_key":"msg_1_cn5",` +
		`"n":5,"order":"77","type":"order.paid"}`; body != want {
		t.Errorf("got\n%s\nwant\n%s", body, want)
	}
	m := message()
	m.Recipient, m.Content.Subject, m.Content.Text, m.Content.Data = "apns:ABC", "", "", []byte(`[1]`)
	if _, err := s.Send(t.Context(), m); err != nil || h("apns-push-type") != "background" ||
		h("apns-priority") != "5" || last.URL.Path != "/3/device/ABC" ||
		body != `{"aps":{"content-available":1},"data":[1],"message_key":"msg_1_cn5","type":"order.paid"}` ||
		h("apns-id") != id {
		t.Errorf("%v %v %s", err, last.Header, body)
	}
	if len(tokens) != 1 {
		t.Errorf("%d tokens for two messages", len(tokens))
	}
	for _, c := range []struct {
		said
		want send.Failure
	}{
		{said{410, "", "Unregistered"}, send.Failure{Outcome: send.Permanent, Code: "apns_Unregistered",
			Disable: true}},
		{said{410, "", ""}, send.Failure{Outcome: send.Permanent, Code: "apns_http_410", Disable: true}},
		{said{400, "", "BadDeviceToken"}, send.Failure{Outcome: send.Permanent, Code: "apns_BadDeviceToken"}},
		{said{400, "", "DeviceTokenNotForTopic"},
			send.Failure{Outcome: send.Refused, Code: "apns_DeviceTokenNotForTopic"}},
		{said{413, "", "PayloadTooLarge"}, send.Failure{Outcome: send.Permanent, Code: "apns_PayloadTooLarge"}},
		{said{403, "", "InvalidProviderToken"},
			send.Failure{Outcome: send.Refused, Code: "apns_InvalidProviderToken", Down: true}},
		{said{429, "", "TooManyRequests"},
			send.Failure{Outcome: send.Temporary, Code: "apns_TooManyRequests", RetryAfter: time.Minute}},
		{said{503, "30", "ServiceUnavailable"},
			send.Failure{Outcome: send.Temporary, Code: "apns_ServiceUnavailable", RetryAfter: 30 * time.Second,
				Down: true}},
		{said{500, "", "InternalServerError"}, send.Failure{Outcome: send.Unknown, Code: "apns_InternalServerError"}},
		{said{400, "", "SomethingNew"}, send.Failure{Outcome: send.Refused, Code: "apns_SomethingNew"}},
		{said{502, "", ""}, send.Failure{Outcome: send.Unknown, Code: "apns_http_502"}},
		{said{403, "", "ExpiredProviderToken"},
			send.Failure{Outcome: send.Temporary, Code: "apns_ExpiredProviderToken", Down: true}},
	} {
		now = c.said
		_, err := s.Send(t.Context(), message())
		got := *failed(t, err)
		got.Text = ""
		if got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.said, got, c.want)
		}
	}
	now = said{status: 200}
	if _, err := s.Send(t.Context(), message()); err != nil || len(tokens) != 2 {
		t.Errorf("after ExpiredProviderToken: %v, %d tokens", err, len(tokens))
	}
	for _, recipient := range []string{"fcm:abc", "../../secret", "abc/def", "xyz", ""} {
		m := message()
		m.Recipient = recipient
		if _, err := s.Send(t.Context(), m); failed(t, err).Outcome != send.Refused {
			t.Errorf("%s: %v", recipient, err)
		}
	}
}

func TestSettingsAreValidated(t *testing.T) {
	small, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	good, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	account := func(key string) string {
		b, _ := json.Marshal(map[string]string{"project_id": "p", "client_email": "e", "token_uri": "u",
			"private_key": key})
		return string(b)
	}
	for name, err := range map[string]error{
		"fcm, invalid JSON": second(push.NewFCM(push.FCMSettings{ServiceAccount: "x"})),
		"fcm, empty":        second(push.NewFCM(push.FCMSettings{ServiceAccount: "{}"})),
		"fcm, no PEM":       second(push.NewFCM(push.FCMSettings{ServiceAccount: account("secret")})),
		"fcm, another kind": second(push.NewFCM(push.FCMSettings{ServiceAccount: account(pemOf(t, good))})),
		"apns, empty":       second(push.NewAPNs(push.APNsSettings{})),
		"apns, no PEM": second(push.NewAPNs(push.APNsSettings{TeamID: "a", KeyID: "b", Topic: "c",
			Key: "secret"})),
		"apns, curve": second(push.NewAPNs(push.APNsSettings{TeamID: "a", KeyID: "b", Topic: "c",
			Key: pemOf(t, small)})),
	} {
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
