package rpc_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/server"
)

// posts is an HTTP server that records request bodies.
type posts struct {
	*httptest.Server
	mu  sync.Mutex
	all []string
}

func newPosts(t *testing.T) *posts {
	p := &posts{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.all = append(p.all, r.URL.Path+" "+string(body))
		p.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "n1"})
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *posts) got() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.all...)
}

// sending restarts the site's server with the providers of a file.
func (s *site) sending(file string, guard webhook.URLPolicy) {
	s.T.Helper()
	name := filepath.Join(s.T.TempDir(), "notify.yaml")
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		s.T.Fatal(err)
	}
	f, err := provider.ReadFile(name)
	if err != nil {
		s.T.Fatal(err)
	}
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New(), Notify: f, Webhooks: guard})
}

func smtpProvider(name string, s *emailtest.Server) string {
	return fmt.Sprintf("  - {kind: smtp, name: %s, host: %s, port: %d, tls: none, from: no-reply@shop.example}\n", name,
		s.Host, s.Port)
}

func written(channel notifyv1.Channel, to, text string) *notifyv1.SendRequest {
	return &notifyv1.SendRequest{Channel: channel, Recipient: to, Says: &notifyv1.SendRequest_Content{
		Content: &notifyv1.Content{Subject: "Your order", Text: text}}, BusinessType: "order.paid"}
}

func (c *caller) message(id int64) *notifyv1.Message {
	c.T.Helper()
	return ok(c, "Notify.GetMessage",
		&notifyv1.GetMessageRequest{Target: &notifyv1.GetMessageRequest_MessageId{MessageId: id}},
		new(notifyv1.GetMessageResponse)).GetMessage()
}

func TestTransferAndItsMessagesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("one", "till", access.Admin)
	mail, spare, web := emailtest.Start(t, emailtest.Options{}), emailtest.Start(t, emailtest.Options{}), newPosts(t)
	at, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(at.Port())
	s.sending("email:\n"+smtpProvider("main", mail)+smtpProvider("spare", spare)+
		"sms:\n  - {kind: http, name: gateway, url: '"+web.URL+"/sms', json: {to: '{recipient}', say: '{text}'}, "+
		"id_at: /id,\n     report_secret: s3cret, reports: {id_at: /id, status_at: /status, delivered: [ok]}}\n",
		webhook.URLPolicy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, HTTP: true,
			Ports: []uint16{uint16(port)}})
	c := &caller{s, key}
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "world",
		Asset: "COIN", Unbounded: true},
		{Code: "ada", Asset: "COIN"}}}, new(ledgerv1.CreateAccountsResponse))
	ok(c, "Webhook.CreateEndpoint", &notifyv1.CreateEndpointRequest{Name: "shop", Url: web.URL + "/hook"},
		new(notifyv1.CreateEndpointResponse))
	hook := &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_WEBHOOK, Recipient: "shop",
		Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Type: "order.paid",
			Data: []byte(`{"order":"o1"}`)}}}
	paid := execute(operation("pay", pay("o1", "world", "ada", "5")),
		operation("mail", written(notifyv1.Channel_CHANNEL_EMAIL, "ada@customer.example", "It is paid.")),
		operation("text", written(notifyv1.Channel_CHANNEL_SMS, "+8613812345678", "It is paid.")),
		operation("hook", hook))
	first, _ := c.executed(paid, "Idempotency-Key", "paid-o1")
	second, _ := c.executed(paid, "Idempotency-Key", "paid-o1")
	var ids []int64
	for i, r := range first {
		if !proto.Equal(r, second[i]) {
			t.Errorf("%v, and again %v", r, second[i])
		}
		if sent, ok := r.(*notifyv1.SendResponse); ok {
			ids = append(ids, sent.GetMessage().GetId())
		}
	}
	eventually(t, 20*time.Second, "all are sent", func() bool {
		for _, id := range ids {
			if c.message(id).GetState() != notifyv1.MessageState_MESSAGE_STATE_SENT {
				return false
			}
		}
		return len(ids) == 3
	})
	got := web.got()
	if len(mail.Messages()) != 1 || len(got) != 2 ||
		!strings.Contains(strings.Join(got, "\n"), `/sms {"say":"It is paid.","to":"+8613812345678"}`) ||
		!strings.Contains(strings.Join(got, "\n"), `/hook {"order":"o1"}`) {
		t.Errorf("%d e-mails, %q", len(mail.Messages()), got)
	}
	// A report requires the secret.
	for path, status := range map[string]int{"/notify/reports/gateway/wrong": http.StatusForbidden,
		"/notify/reports/main/s3cret":    http.StatusForbidden,
		"/notify/reports/gateway/s3cret": http.StatusNoContent} {
		res, err := http.Post(s.Base+path, "application/json", strings.NewReader(`{"id": "n1", "status": "ok"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != status {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	if m := c.message(ids[1]); m.GetState() != notifyv1.MessageState_MESSAGE_STATE_DELIVERED {
		t.Errorf("%v", m)
	}
	// A refused call sends no message. If a provider fails, the next one is used.
	if a := c.call(connectProto, "Batch.Execute",
		execute(operation("mail", written(notifyv1.Channel_CHANNEL_EMAIL, "bob@customer.example", "It is paid.")),
			operation("pay", pay("o2", "ada", "world", "5000000")))); a.Code == "" {
		t.Errorf("%+v", a)
	}
	bad := written(notifyv1.Channel_CHANNEL_EMAIL, "bob@customer.example", "hello")
	bad.GetContent().Subject = "hello\r\nBcc: eve@evil.example"
	if a := c.call(connectProto, "Notify.Send", bad); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("%+v", a)
	}
	mail.Kill()
	sent := ok(c, "Notify.Send", written(notifyv1.Channel_CHANNEL_EMAIL, "eve@customer.example", "It is paid."),
		new(notifyv1.SendResponse)).GetMessage()
	eventually(t, 20*time.Second, "the fallback provider sent it", func() bool { return len(spare.Messages()) == 1 })
	if to := spare.Messages()[0].To; to != "eve@customer.example" {
		t.Errorf("to %s", to)
	}
	eventually(t, 20*time.Second, "it is sent", func() bool {
		return c.message(sent.GetId()).GetState() == notifyv1.MessageState_MESSAGE_STATE_SENT
	})
	s.Server.Stop()
	for _, private := range []string{"customer.example", "13812345678", "It is paid"} {
		if strings.Contains(s.Log.String(), private) {
			t.Errorf("the log has %q", private)
		}
	}
	if n := len(mail.Messages()) + len(spare.Messages()); n != 2 || len(web.got()) != 2 {
		t.Errorf("in total %d e-mails, %d other messages", n, len(web.got()))
	}
}

// A bounce takes effect once, even if it is posted again, and only for the tenant's own message.
func TestBounceMarksItsMessageUndelivered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("one", "till", access.Admin)}
	mail := emailtest.Start(t, emailtest.Options{})
	s.sending("email:\n"+strings.Replace(smtpProvider("main", mail), "}", ", report_secret: s3cret}", 1),
		webhook.URLPolicy{})
	var ids []int64
	for _, name := range []string{"ada", "bob"} {
		id := ok(c, "Notify.Send", written(notifyv1.Channel_CHANNEL_EMAIL, name+"@customer.example", "It is paid."),
			new(notifyv1.SendResponse)).GetMessage().GetId()
		eventually(t, 20*time.Second, "it is sent",
			func() bool { return c.message(id).GetState() == notifyv1.MessageState_MESSAGE_STATE_SENT })
		ids = append(ids, id)
	}
	header, _, _ := strings.Cut(string(mail.Messages()[0].Text), "\r\n\r\n")
	bounce := "Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\nContent-Type: " +
		"message/delivery-status\r\n\r\nReporting-MTA: dns; mx.customer.example\r\n\r\nFinal-Recipient: rfc822; " +
		"ada@customer.example\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n--b\r\nContent-Type: " +
		"text/rfc822-headers\r\n\r\n" + header + "\r\n\r\n--b--\r\n"
	for range 3 {
		res, err := http.Post(s.Base+"/notify/reports/main/s3cret", "message/rfc822", strings.NewReader(bounce))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			t.Error(res.Status)
		}
	}
	first, second := c.message(ids[0]), c.message(ids[1])
	if first.GetState() != notifyv1.MessageState_MESSAGE_STATE_UNDELIVERED || first.GetFailureCode() != "smtp_5.1.1" ||
		second.GetState() != notifyv1.MessageState_MESSAGE_STATE_SENT {
		t.Errorf("%v, %v", first, second)
	}
	if n := s.Count("select count(*) from notify_events where kind = 'undelivered'"); n != 1 {
		t.Errorf("recorded %d times", n)
	}
}
