package rpc_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/server"
)

func endpoint(name string) *notifyv1.CreateEndpointRequest {
	return &notifyv1.CreateEndpointRequest{Name: name, Url: "https://hooks.example.com/" + name,
		Description: secretNote}
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ok(c, "Webhook.CreateEndpoint", endpoint(x.paid), new(notifyv1.CreateEndpointResponse), id...)
	})
	goWell = append(goWell, "Webhook.CreateEndpoint", "Webhook.ListEndpoints", "Webhook.Publish")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Webhook.CreateEndpoint": func(x resources) []proto.Message {
			return all(&notifyv1.CreateEndpointRequest{Name: x.paid, Url: "https://walk.example.com"})
		},
		"Webhook.UpdateEndpoint": func(x resources) []proto.Message {
			return all(&notifyv1.UpdateEndpointRequest{Name: x.paid, Enabled: proto.Bool(false)})
		},
		"Webhook.RotateSecret": func(x resources) []proto.Message {
			return all(&notifyv1.RotateSecretRequest{Name: x.paid, SecretVersion: 1})
		},
		"Webhook.DeleteEndpoint": func(x resources) []proto.Message {
			return all(&notifyv1.DeleteEndpointRequest{Name: x.paid})
		},
		"Webhook.Publish": func(resources) []proto.Message {
			return all(&notifyv1.PublishRequest{Type: "walk", Data: []byte("{}")})
		},
		"Webhook.GetSecret": func(x resources) []proto.Message {
			return all(&notifyv1.GetSecretRequest{Name: x.paid})
		},
		"Webhook.GetEndpoint": func(x resources) []proto.Message {
			return all(&notifyv1.GetEndpointRequest{Name: x.paid})
		},
		"Webhook.ListEndpoints": func(resources) []proto.Message {
			return all(&notifyv1.ListEndpointsRequest{PageSize: 1})
		},
	} {
		examples[name] = example
	}
	preparers["Webhook"] = func(c *caller, tag string) {
		ok(c, "Webhook.CreateEndpoint", endpoint("hook-"+strings.ToLower(tag)), new(notifyv1.CreateEndpointResponse))
	}
	hook := func(tag string) string { return "hook-" + strings.ToLower(tag) }
	for name, c := range map[string]change{
		"Webhook.CreateEndpoint": {well: func(tag string) proto.Message { return endpoint("new-" + hook(tag)) }},
		"Webhook.UpdateEndpoint": {well: func(tag string) proto.Message {
			return &notifyv1.UpdateEndpointRequest{Name: hook(tag),
				Types: &notifyv1.EventTypes{Types: []string{"b", "a"}}}
		}},
		"Webhook.RotateSecret": {well: func(tag string) proto.Message {
			return &notifyv1.RotateSecretRequest{Name: hook(tag), SecretVersion: 1}
		}},
		"Webhook.Publish": {well: func(tag string) proto.Message {
			return &notifyv1.PublishRequest{Type: "order.paid", Data: []byte(`{}`), BizNo: "event-" + tag}
		}},
		"Webhook.DeleteEndpoint": {well: func(tag string) proto.Message {
			return &notifyv1.DeleteEndpointRequest{Name: hook(tag)}
		}},
	} {
		changes[name] = c
	}
}

// Admins get both secrets during a rotation. No other call returns secrets.
func TestEndpointSecretsRequireAdmin(t *testing.T) {
	s := newSite(t)
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New()})
	admin, writer := &caller{s, s.Key("one", "boss", access.Admin)}, &caller{s, s.Key("one", "till", access.Write)}
	ok(admin, "Webhook.CreateEndpoint", endpoint("shop"), new(notifyv1.CreateEndpointResponse))
	first := ok(admin, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"},
		new(notifyv1.GetSecretResponse)).GetSecrets()
	moved := ok(admin, "Webhook.RotateSecret", &notifyv1.RotateSecretRequest{Name: "shop", SecretVersion: 1},
		new(notifyv1.RotateSecretResponse)).GetEndpoint()
	both := ok(admin, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"},
		new(notifyv1.GetSecretResponse)).GetSecrets()
	if len(first) != 1 || len(both) != 2 || both[1].GetSecret() != first[0].GetSecret() ||
		both[0].GetSecret() == first[0].GetSecret() || both[0].GetVersion() != 2 ||
		!strings.HasPrefix(first[0].GetSecret(), "whsec_") ||
		time.Until(moved.GetPreviousExpireTime().AsTime()) < 23*time.Hour {
		t.Errorf("%v, then %v, %v", first, both, moved)
	}
	if a := writer.call(connectProto, "Webhook.GetSecret",
		&notifyv1.GetSecretRequest{Name: "shop"}); a.Code != "permission_denied" {
		t.Errorf("a key that may write gets the secret: %+v", a)
	}
	if a := admin.call(connectProto, "Webhook.GetSecret",
		&notifyv1.GetSecretRequest{Name: "shop"}); a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("secrets may be cached: %v", a.Header)
	}
}

// A webhook is retried under one id, with valid signatures, after every failure of the endpoint, except 410 Gone.
func TestWebhookIsRetriedUntilAccepted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	admin := &caller{s, s.Key("one", "boss", access.Admin)}
	var mu sync.Mutex
	var ids []string
	var verify func(body []byte, h http.Header) error
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if err := verify(body, r.Header); err != nil {
			t.Error(err)
		}
		switch ids = append(ids, r.Header.Get("webhook-id")); len(ids) {
		case 1: // accept, but lose the response
			c, _, _ := w.(http.Hijacker).Hijack()
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		case 2:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 4:
			w.WriteHeader(http.StatusGone)
		}
	}))
	t.Cleanup(receiver.Close)
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New(),
		Webhooks: webhook.URLPolicy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, HTTP: true,
			Ports: []uint16{0}}})
	ok(admin, "Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "shop", Url: receiver.URL},
		new(notifyv1.CreateEndpointResponse))
	told := ok(admin, "Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"},
		new(notifyv1.GetSecretResponse)).GetSecrets()[0].GetSecret()
	library, err := standardwebhooks.NewWebhook(told)
	if err != nil {
		t.Fatal(err)
	}
	verify = library.Verify
	post := func(body string) int64 {
		return ok(admin, "Notify.Send", &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_WEBHOOK,
			Recipient: "shop",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Type: "order.paid",
				Data: []byte(body)}}},
			new(notifyv1.SendResponse)).GetMessage().GetId()
	}
	state := func(id int64) notifyv1.MessageState { return admin.message(id).GetState() }
	first := post(`{"order":1}`)
	eventually(t, time.Minute, "the webhook is sent",
		func() bool { return state(first) == notifyv1.MessageState_MESSAGE_STATE_SENT })
	if mu.Lock(); len(ids) != 3 || ids[0] != ids[1] || ids[0] != ids[2] {
		t.Errorf("posted under %q", ids)
	}
	mu.Unlock()
	second := post(`{"order":2}`)
	eventually(t, time.Minute, "the message is dead",
		func() bool { return state(second) == notifyv1.MessageState_MESSAGE_STATE_DEAD })
	gone := ok(admin, "Webhook.GetEndpoint", &notifyv1.GetEndpointRequest{Name: "shop"},
		new(notifyv1.GetEndpointResponse)).GetEndpoint()
	if gone.GetDisabledReason() != notifyv1.DisabledReason_DISABLED_REASON_GONE {
		t.Errorf("%v", gone)
	}
}

// The provider posts its report without an API key.
func TestProviderReportMarksATextDelivered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("one", "till", access.Admin)}
	web := newPosts(t) // its id of every message is n1
	s.sending("sms:\n  - {kind: http, name: gateway, url: '"+web.URL+"/sms', json: {to: '{recipient}', say: "+
		"'{text}'}, id_at: /id, report_secret: s3cret,\n     reports: {id_at: /id, status_at: /status, delivered: "+
		"[DELIVERED], undelivered: [REJECTED]}}\n",
		webhook.URLPolicy{})
	id := ok(c, "Notify.Send", written(notifyv1.Channel_CHANNEL_SMS, "+8613812345678", "It is paid."),
		new(notifyv1.SendResponse)).GetMessage().GetId()
	eventually(t, 20*time.Second, "it is sent",
		func() bool { return c.message(id).GetState() == notifyv1.MessageState_MESSAGE_STATE_SENT })
	post := func(path, body string) int {
		r, err := http.Post(s.Base+"/notify/reports/"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		return r.StatusCode
	}
	for _, c := range []struct {
		path, body string
		want       int
	}{{"gateway/wrong", `{"id":"n1","status":"DELIVERED"}`, 403}, {"gateway", `{"id":"n1","status":"DELIVERED"}`, 403},
		{"other/s3cret", `{}`, 404},
		{"gateway/s3cret", `{"id":"n1","status":"SENT"}`, 204}} {
		if got := post(c.path, c.body); got != c.want {
			t.Errorf("%s %s: %d", c.path, c.body, got)
		}
	}
	if got := c.message(id).GetState(); got != notifyv1.MessageState_MESSAGE_STATE_SENT {
		t.Errorf("it is %v", got)
	}
	if a, b := post("gateway/s3cret", `{"id":"n1","status":"DELIVERED"}`),
		post("gateway/s3cret", `{"id":"n1","status":"DELIVERED"}`); a != 204 || b != 204 {
		t.Errorf("%d, %d", a, b)
	}
	if got := c.message(id).GetState(); got != notifyv1.MessageState_MESSAGE_STATE_DELIVERED {
		t.Errorf("it is %v", got)
	}
}

// Publish sends once to each subscribed endpoint per biz_no, also in an Execute, and not at all if the Execute fails.
func TestPublishSendsToSubscribedEndpoints(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("one", "till", access.Admin)}
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New()})
	for name, types := range map[string][]string{"all": nil, "paid": {"order.made", "order.paid"},
		"made": {"order.made"}, "off": nil} {
		ok(c, "Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: name, Url: "https://" + name +
			".example.com", Types: &notifyv1.EventTypes{Types: types}},
			new(notifyv1.CreateEndpointResponse))
	}
	ok(c, "Webhook.UpdateEndpoint", &notifyv1.UpdateEndpointRequest{Name: "off", Enabled: proto.Bool(false)},
		new(notifyv1.UpdateEndpointResponse))
	other := &caller{s, s.Key("two", "till", access.Admin)}
	ok(other, "Webhook.CreateEndpoint", endpoint("theirs"), new(notifyv1.CreateEndpointResponse))
	told := func(r *notifyv1.PublishResponse) (names string) {
		for _, m := range r.GetMessages() {
			if m.GetMessageId() == 0 {
				t.Errorf("%v", r)
			}
			if names += m.GetEndpoint(); m.GetExisted() {
				names += " existed"
			}
			names += ";"
		}
		return names
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	paid := &notifyv1.PublishRequest{Type: "order.paid", Data: []byte(`{"order":1}`), BizNo: "e1"}
	publish := func(r *notifyv1.PublishRequest) string {
		return told(ok(c, "Webhook.Publish", r, new(notifyv1.PublishResponse)))
	}
	want(publish(paid), "all;paid;")
	want(publish(paid), "all existed;paid existed;")
	ok(c, "Webhook.CreateEndpoint", endpoint("late"), new(notifyv1.CreateEndpointResponse))
	want(publish(paid), "all existed;late;paid existed;")
	want(publish(&notifyv1.PublishRequest{Type: "order.made", Data: []byte(`{}`)}), "all;late;made;paid;")
	want(told(ok(other, "Webhook.Publish", paid, new(notifyv1.PublishResponse))), "theirs;")
	if a := c.call(connectProto, "Webhook.Publish",
		&notifyv1.PublishRequest{Type: "x", Data: []byte("{")}); a.Code != "invalid_argument" {
		t.Errorf("%+v", a)
	}

	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "world",
		Asset: "COIN", Unbounded: true},
		{Code: "ada", Asset: "COIN"}}}, new(ledgerv1.CreateAccountsResponse))
	event := operation("event", &notifyv1.PublishRequest{Type: "order.paid", Data: []byte(`{"order":2}`), BizNo: "e2"})
	before := s.Count("select count(*) from notify_messages")
	if a := c.call(connectProto, "Batch.Execute",
		execute(event, operation("pay", pay("o1", "ada", "world", "5")))); a.Code == "" {
		t.Errorf("%+v", a)
	}
	if n := s.Count("select count(*) from notify_messages"); n != before {
		t.Errorf("%d messages of a failed Execute", n-before)
	}
	done, _ := c.executed(execute(operation("pay", pay("o1", "world", "ada", "5")), event), "Idempotency-Key", "o1")
	want(told(done[1].(*notifyv1.PublishResponse)), "all;late;paid;")
	want(publish(&notifyv1.PublishRequest{Type: "order.paid", Data: []byte(`{"order":2}`), BizNo: "e2"}),
		"all existed;late existed;paid existed;")
}
