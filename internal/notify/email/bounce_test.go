package email_test

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"net/mail"
	"reflect"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/report"
)

// returned returns a bounce as Postfix sends it, with the header of the undelivered message.
func returned(action, header string) string {
	return strings.ReplaceAll(`From: MAILER-DAEMON@mx.customer.example (Mail Delivery System)
To: no-reply@shop.example
Subject: Undelivered Mail Returned to Sender
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status;
	boundary="9B095B5ADSN.1204/mx.customer.example"

This is a MIME-encapsulated message.

--9B095B5ADSN.1204/mx.customer.example
Content-Type: text/plain; charset=us-ascii

I'm sorry to have to inform you that your message could not be delivered.

--9B095B5ADSN.1204/mx.customer.example
Content-Description: Delivery report
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.customer.example
X-Postfix-Queue-ID: 9B095B5A
Arrival-Date: Sun, 22 Nov 2026 01:00:00 +0000 (UTC)

Final-Recipient: rfc822; ada@customer.example
Original-Recipient: rfc822;ada@customer.example
Action: `+action+`
Status: 5.1.1
Diagnostic-Code: smtp; 550 5.1.1 <ada@customer.example>: user ada unknown
    in virtual mailbox table

--9B095B5ADSN.1204/mx.customer.example
Content-Description: Undelivered Message Headers
Content-Type: text/rfc822-headers

`+header+`
--9B095B5ADSN.1204/mx.customer.example--
`, "\n", "\r\n")
}

func TestBouncesAreReports(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	c := config(server)
	c.ReportSecret = "path"
	c.Reports = report.JSON{KeyAt: "/data/message-id", IDAt: "/data/id", StatusAt: "/event",
		Delivered: []string{"delivered"}, Undelivered: []string{"failed"}, CodeAt: "/data/code"}
	s := sender(t, c)
	deliver(t, s, message("hello"))
	sent, err := mail.ReadMessage(bytes.NewReader(server.Messages()[0].Text))
	if err != nil {
		t.Fatal(err)
	}
	id := sent.Header.Get("Message-Id")
	if !strings.HasPrefix(id, "<k-7.") || !strings.HasSuffix(id, "@shop.example>") {
		t.Fatal(id)
	}
	header := "Subject: hello\nMessage-ID: " + id + "\n"
	failed := []report.Report{{Key: "k-7", Code: "smtp_5.1.1",
		Text: "550 5.1.1 <…>: user … unknown in virtual mailbox table"}}
	for name, x := range map[string]struct {
		body string
		want []report.Report
	}{
		"failed":                   {returned("failed", header), failed},
		"delayed":                  {returned("delayed", header), nil},
		"relayed":                  {returned("relayed", header), nil},
		"forged bounce":            {returned("failed", "Message-ID: <k-8@shop.example>\n"), nil},
		"guessed key":              {returned("failed", strings.Replace(header, "k-7", "k-8", 1)), nil},
		"another server's message": {returned("failed", "Message-ID: <1@other.example>\n"), nil},
		"no message":               {returned("failed", "\n"), nil},
		"reply of a person": {"From: ada@customer.example\r\nSubject: Re: hello\r\nIn-Reply-To: " + id +
			"\r\n\r\nThank you\r\n", nil},
		"truncated": {returned("failed", header)[:700], nil},
		"JSON by key": {`{"event":"failed","data":{"message-id":"` + strings.Trim(id, "<>") + `","code":605}}`,
			[]report.Report{{Key: "k-7", Code: "smtp_605"}}},
		"JSON by provider_message_id": {`{"event":"delivered","data":{"id":"e-1"}}`,
			[]report.Report{{ProviderMessageID: "e-1", Delivered: true}}},
		"JSON with a forged key": {`{"event":"delivered","data":{"message-id":"k-7@shop.example","id":"e-1"}}`, nil},
		"JSON of another event":  {`{"event":"opened","data":{"message-id":"` + id + `"}}`, nil},
	} {
		r := httptest.NewRequest("POST", "/notify/reports/main/path", nil)
		if got, err := s.Reports(r, "path", []byte(x.body)); err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if got, err := s.Reports(r, "wrong", []byte(x.body)); !errors.Is(err, report.ErrForbidden) {
			t.Errorf("%s, wrong secret: %+v, %v", name, got, err)
		}
	}
	if got, err := s.Reports(nil, "path", []byte("neither")); err == nil {
		t.Errorf("%+v", got)
	}
	c.ReportSecret = ""
	if got, err := sender(t, c).Reports(nil, "",
		[]byte(returned("failed", "Message-ID: <k-7@shop.example>\n"))); !errors.Is(err, report.ErrForbidden) {
		t.Errorf("without a secret: %+v, %v", got, err)
	}
}
