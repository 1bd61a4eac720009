package sms_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/sms"
)

func TestHTTPWithJSON(t *testing.T) {
	p := serve(t)
	s, err := sms.NewHTTP(sms.HTTPSettings{Name: "main", URL: p.URL + "/send?v=2", TLS: p.roots(),
		KeyHeader: "Idempotency-Key",
		Header:    map[string]string{"X-Api-Key": "secret", "X-To": "{number}"},
		Query:     map[string]string{"ref": "{key}"},
		JSON: json.RawMessage(`{"to":["{recipient}"],"n":1.50,"msg":{"text":"{text}!","code":"{param:code}",` +
			`"t":"{template}","again":true}}`),
		CodeAt: "/result/0/status", Codes: []string{"0", "ok"}, IDAt: "/result/0/id", TextAt: "/error/a~1b",
		Outcomes: map[string]string{"7": "permanent", "8": "refused", "9": "temporary", "http_503": "temporary"}})
	if err != nil {
		t.Fatal(err)
	}
	p.body = `{"result":[{"status":0,"id":12345678901234567890}]}`
	m := sample()
	r, err := s.Send(t.Context(), m)
	if err != nil || r.ProviderMessageID != "12345678901234567890" {
		t.Fatalf("%+v %v", r, err)
	}
	q := p.last(t)
	var body struct {
		To  []string
		N   json.Number
		Msg struct {
			Text, Code, T string
			Again         bool
		}
	}
	if err := json.Unmarshal([]byte(q.Header.Get("Body")), &body); err != nil || body.To[0] != m.Recipient ||
		body.N != "1.50" || !body.Msg.Again ||
		body.Msg.Text != m.Content.Text+"!" || body.Msg.Code != "073911" || body.Msg.T != "SMS_1" {
		t.Errorf("%s %v", q.Header.Get("Body"), err)
	}
	if q.URL.Query().Get("ref") != m.Key || q.URL.Query().Get("v") != "2" || q.Header.Get("Idempotency-Key") != m.Key ||
		q.Header.Get("X-Api-Key") != "secret" ||
		q.Header.Get("X-To") != "8613812345678" {
		t.Errorf("%s %v", q.URL, q.Header)
	}
	p.header = http.Header{"Retry-After": {"20"}}
	answers{
		{200, `{"result":[{"status":7}],"error":{"a/b":"number +8613812345678"}}`, send.Permanent, "sms_7", 0},
		{200, `{"result":[{"status":"8"}]}`, send.Refused, "sms_8", 0},
		{200, `{"result":[{"status":9}]}`, send.Temporary, "sms_9", 20 * time.Second},
		{200, `{"result":[{"status":10}]}`, send.Unknown, "sms_10", 0},
		{200, `{"result":[]}`, send.Unknown, "sms_http_200", 0},
		{200, `{"result":[{"status":{}}]}`, send.Unknown, "sms_http_200", 0},
		{400, `{"result":[{"status":0}]}`, send.Refused, "sms_0", 0},
		{503, ``, send.Temporary, "sms_http_503", 20 * time.Second},
		{500, ``, send.Unknown, "sms_http_500", 0},
		{429, ``, send.Temporary, "sms_http_429", 20 * time.Second},
	}.check(t, p, s)
}

func TestHTTPWithFormAndByGET(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		p := serve(t)
		fields := map[string]string{"to": "{number}", "text": "{text}", "plain": "a{b"}
		settings := sms.HTTPSettings{Method: method, URL: p.URL, TLS: p.roots(), User: "u", Password: "p",
			Statuses: []int{202}}
		if method == "GET" {
			settings.Query = fields
		} else {
			settings.Form = fields
		}
		s, err := sms.NewHTTP(settings)
		if err != nil {
			t.Fatal(err)
		}
		p.status = 202
		m := sample()
		if _, err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		q := p.last(t)
		got := q.URL.Query()
		if method == "POST" {
			got, _ = url.ParseQuery(q.Header.Get("Body"))
		}
		user, password, _ := q.BasicAuth()
		if q.Method != method || got.Get("to") != "8613812345678" || got.Get("text") != m.Content.Text ||
			got.Get("plain") != "a{b" || user+password != "up" {
			t.Errorf("%s %v", q.Method, got)
		}
		m.Content.Text = ""
		if _, err := s.Send(t.Context(), m); err == nil || !strings.Contains(err.Error(), "{text}") {
			t.Errorf("a message without text: %v", err)
		}
		answers{{200, ``, send.Unknown, "sms_http_200", 0}, {404, ``, send.Refused, "sms_http_404", 0}}.check(t, p, s)
	}
}
