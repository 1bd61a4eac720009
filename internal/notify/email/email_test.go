package email_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"

	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func config(s *emailtest.Server) email.Config {
	return email.Config{Host: s.Host, Port: s.Port, TLS: email.None,
		Identity: email.Identity{From: "Shop <no-reply@shop.example>"}}
}

func sender(t *testing.T, c email.Config) *email.Sender {
	t.Helper()
	s, err := email.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func message(text string) *send.Message {
	return &send.Message{Tenant: 1, ID: 7, Key: "k-7", Channel: send.Email, Attempt: 1,
		Recipient: "ada@customer.example",
		Content:   send.Content{Subject: "Your order", Text: text}}
}

func deliver(t *testing.T, s send.Sender, m *send.Message) send.Receipt {
	t.Helper()
	r, err := s.Send(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fail(t *testing.T, ctx context.Context, s send.Sender, m *send.Message) *send.Failure {
	t.Helper()
	r, err := s.Send(ctx, m)
	if err == nil {
		t.Fatalf("sent: %+v", r)
	}
	return send.Failed(err)
}

// leaf is a part of a message without subparts.
type leaf struct {
	kind, name, disposition, id string
	body                        []byte
}

// leaves parses a message as a mail program does.
func leaves(t *testing.T, header func(string) string, body io.Reader) (kinds []string, all []leaf) {
	t.Helper()
	kind, params, err := mime.ParseMediaType(header("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	kinds = []string{kind}
	if strings.HasPrefix(kind, "multipart/") {
		parts := multipart.NewReader(body, params["boundary"])
		for {
			p, err := parts.NextRawPart()
			if err == io.EOF {
				return kinds, all
			}
			if err != nil {
				t.Fatal(err)
			}
			k, l := leaves(t, p.Header.Get, p)
			kinds, all = append(kinds, k...), append(all, l...)
		}
	}
	switch header("Content-Transfer-Encoding") {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}
	l := leaf{kind: kind, id: header("Content-Id")}
	if l.body, err = io.ReadAll(body); err != nil {
		t.Fatal(err)
	}
	if d := header("Content-Disposition"); d != "" {
		var more map[string]string
		if l.disposition, more, err = mime.ParseMediaType(d); err != nil {
			t.Fatal(err)
		}
		l.name = more["filename"]
	}
	return kinds, []leaf{l}
}

func TestMessageArrivesUnchanged(t *testing.T) {
	t.Parallel()
	random := make([]byte, 300_000)
	_, _ = rand.Read(random)
	m := message("Dear Ada,\n.\n..\n\nit's on its way: 10 €\r\nFrom the shop " + strings.Repeat("a long line ", 200))
	m.Content.Subject = "Ihre Bestellung ist unterwegs – 您的订单已发货 " + strings.Repeat("ü", 60)
	m.Content.HTML = "<p>您的订单已发货 <img src=\"cid:logo@shop\"></p>\n" + strings.Repeat("好", 2000)
	m.Content.Attachments = []send.Attachment{
		{Name: strings.Repeat("发票", 40) + " 2026.pdf", Type: "application/pdf", Data: random},
		{Name: "logo.png", Type: "image/png", Data: random[:1000], Inline: "logo@shop"},
		{Name: "naked.txt", Type: "text/plain; charset=utf-8", Data: []byte("one\ntwo\r\nthree\r.\r\n")},
	}
	m.Content.Headers = map[string]string{"List-Unsubscribe": "<https://shop.example/u?t=1&x=,2>, " +
		"mailto:leave@shop.example",
		"list-unsubscribe-post": "List-Unsubscribe=One-Click", "X-Campaign": "Grüße",
		"Reply-To": "Help <help@shop.example>"}
	m.Content.Headers["List-Unsubscribe"] = "<https://shop.example/u?t=1>, mailto:leave@shop.example"
	ways := map[string]struct {
		options emailtest.Options
		tls     string
	}{
		"clear": {emailtest.Options{}, email.None}, "starttls": {emailtest.Options{TLS: true}, email.StartTLS},
		"implicit": {emailtest.Options{Only: true}, email.Implicit},
		"serial":   {emailtest.Options{Serial: true}, email.None},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := emailtest.Start(t, way.options)
			c := config(server)
			c.TLS, c.Roots, c.KeyHeader = way.tls, server.Roots, "X-Idempotency-Key"
			if r := deliver(t, sender(t, c), m); r.ProviderMessageID != "4F2C7A1B" {
				t.Errorf("provider_message_id %q", r.ProviderMessageID)
			}
			all := server.Messages()
			if len(all) != 1 || all[0].From != "no-reply@shop.example" || all[0].To != "ada@customer.example" ||
				all[0].TLS != (way.tls != email.None) || all[0].UTF8 {
				t.Fatalf("%d messages: %+v", len(all), all)
			}
			checkArrived(t, m, all[0].Text)
		})
	}
}

func checkArrived(t *testing.T, m *send.Message, text []byte) {
	t.Helper()
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\r\n")) || bytes.Count(line, []byte("\r")) != 1 || len(line) > 1000 {
			t.Fatalf("a line of %d bytes: %q", len(line), line)
		}
	}
	got, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var decoder mime.WordDecoder
	for name, want := range map[string]string{
		"Subject": m.Content.Subject, "From": `"Shop" <no-reply@shop.example>`, "To": "<ada@customer.example>",
		"Reply-To":   `"Help" <help@shop.example>`,
		"Message-ID": "<k-7@shop.example>", "X-Idempotency-Key": "k-7", "X-Campaign": "Grüße", "MIME-Version": "1.0",
		"Auto-Submitted":        "auto-generated",
		"List-Unsubscribe":      "<https://shop.example/u?t=1>, <mailto:leave@shop.example>",
		"List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
	} {
		if value, err := decoder.DecodeHeader(got.Header.Get(name)); err != nil || value != want ||
			len(got.Header[name]) > 1 {
			t.Errorf("%s: %q, want %q: %v", name, value, want, err)
		}
	}
	if date, err := got.Header.Date(); err != nil || time.Since(date) > time.Minute {
		t.Errorf("date %v: %v", date, err)
	}
	kinds, parts := leaves(t, got.Header.Get, got.Body)
	if k := strings.Join(kinds, " "); k != "multipart/mixed multipart/related multipart/alternative text/plain "+
		"text/html image/png application/pdf text/plain" {
		t.Errorf("parts: %s", k)
	}
	crlf := strings.NewReplacer("\r\n", "\r\n", "\n", "\r\n")
	a := m.Content.Attachments
	for i, want := range []leaf{
		{"text/plain", "", "", "", []byte(crlf.Replace(m.Content.Text))}, {"text/html", "", "", "",
			[]byte(crlf.Replace(m.Content.HTML))},
		{"image/png", "logo.png", "inline", "<logo@shop>", a[1].Data},
		{"application/pdf", a[0].Name, "attachment", "", a[0].Data},
		{"text/plain", "naked.txt", "attachment", "", a[2].Data},
	} {
		p := parts[i]
		if p.kind != want.kind || p.name != want.name || p.disposition != want.disposition || p.id != want.id ||
			!bytes.Equal(p.body, want.body) {
			t.Errorf("part %d: %s %q %s %s, %d bytes, want %d", i, p.kind, p.name, p.disposition, p.id, len(p.body),
				len(want.body))
		}
	}
}

func TestDKIMSignaturesVerify(t *testing.T) {
	t.Parallel()
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rivest, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	records := map[string]string{}
	for selector, key := range map[string]crypto.Signer{"e1": edwards, "r1": rivest} {
		kind, public := "rsa", []byte(nil)
		if selector == "e1" {
			kind, public = "ed25519", edwards.Public().(ed25519.PublicKey)
		} else if public, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
			t.Fatal(err)
		}
		records[selector+"._domainkey.shop.example"] = "v=DKIM1; k=" + kind + "; p=" +
			base64.StdEncoding.EncodeToString(public)
	}
	server := emailtest.Start(t, emailtest.Options{})
	for selector, key := range map[string]crypto.Signer{"e1": edwards, "r1": rivest} {
		c := config(server)
		c.DKIM = &email.DKIM{Domain: "shop.example", Selector: selector, Key: key}
		m := message("Grüße  \n\n.\n  and blanks   at the end  \n\n\n")
		m.Content.Subject, m.Content.HTML = strings.Repeat("订单", 50), "<p>hello</p>"
		m.Content.Headers = map[string]string{"List-Unsubscribe": "https://shop.example/u"}
		deliver(t, sender(t, c), m)
	}
	look := func(domain string) ([]string, error) { return []string{records[domain]}, nil }
	for _, arrived := range server.Messages() {
		found, err := dkim.VerifyWithOptions(bytes.NewReader(arrived.Text), &dkim.VerifyOptions{LookupTXT: look})
		if err != nil || len(found) != 1 || found[0].Err != nil || found[0].Domain != "shop.example" {
			t.Errorf("%v, %+v\n%s", err, found[0], arrived.Text)
			continue
		}
		// Any change, and a second subject, invalidates the signature.
		for _, changed := range [][]byte{
			bytes.Replace(arrived.Text, []byte("hello"), []byte("hullo"), 1),
			append([]byte("Subject: win\r\n"), arrived.Text...),
			bytes.Replace(arrived.Text, []byte("shop.example/u"), []byte("shop.example/v"), 1),
		} {
			found, err := dkim.VerifyWithOptions(bytes.NewReader(changed), &dkim.VerifyOptions{LookupTXT: look})
			if err != nil || len(found) != 1 || found[0].Err == nil {
				t.Errorf("a changed message verifies: %v, %+v", err, found)
			}
		}
	}
	if n := len(server.Messages()); n != 2 {
		t.Errorf("%d messages", n)
	}
}

func TestIdentitiesOfTenants(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	c := config(server)
	c.ReplyTo = "help@shop.example"
	c.Identities = map[int32]email.Identity{2: {From: "Büro <post@bücher.example>"},
		3: {Envelope: "bounce@shop.example"}}
	s := sender(t, c)
	for tenant, want := range map[int32][3]string{
		1: {"no-reply@shop.example", `"Shop" <no-reply@shop.example>`, "<k-7@shop.example>"},
		2: {"post@xn--bcher-kva.example", "=?utf-8?q?B=C3=BCro?= <post@xn--bcher-kva.example>",
			"<k-7@xn--bcher-kva.example>"},
		3: {"bounce@shop.example", `"Shop" <no-reply@shop.example>`, "<k-7@shop.example>"},
	} {
		m := message("hello")
		m.Tenant, m.Recipient = tenant, "ada@müller.example"
		deliver(t, s, m)
		all := server.Messages()
		last := all[len(all)-1]
		got, err := mail.ReadMessage(bytes.NewReader(last.Text))
		if err != nil {
			t.Fatal(err)
		}
		if last.From != want[0] || got.Header.Get("From") != want[1] || got.Header.Get("Message-ID") != want[2] ||
			got.Header.Get("Reply-To") != "<help@shop.example>" {
			t.Errorf("tenant %d: %s, %v", tenant, last.From, got.Header)
		}
		if last.To != "ada@xn--mller-kva.example" || got.Header.Get("To") != "<ada@xn--mller-kva.example>" {
			t.Errorf("to %s, %s", last.To, got.Header.Get("To"))
		}
	}
}

func TestNonASCIIAddressesRequireSMTPUTF8(t *testing.T) {
	t.Parallel()
	m := message("hello")
	m.Recipient = "jörg@müller.example"
	knows := emailtest.Start(t, emailtest.Options{})
	deliver(t, sender(t, config(knows)), m)
	if all := knows.Messages(); len(all) != 1 || all[0].To != "jörg@xn--mller-kva.example" || !all[0].UTF8 ||
		!bytes.Contains(all[0].Text, []byte("To: <jörg@xn--mller-kva.example>")) {
		t.Errorf("%+v", all)
	}
	knowsNot := emailtest.Start(t, emailtest.Options{ASCII: true})
	if f := fail(t, t.Context(), sender(t, config(knowsNot)), m); f.Outcome != send.Refused ||
		f.Code != "smtp_553_5.6.7" || f.Down {
		t.Errorf("%+v", f)
	}
}

func TestInvalidMessagesAreRefusedWithoutConnecting(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	c := config(server)
	c.KeyHeader = "Idempotency-Key"
	s := sender(t, c)
	for name, change := range map[string]func(*send.Message){
		"another message's key": func(m *send.Message) {
			m.Content.Headers = map[string]string{"idempotency-key": "k-8"}
		},
		"further recipients": func(m *send.Message) {
			m.Content.Headers = map[string]string{"X-SMTPAPI": `{"to":["eve@evil.example"]}`}
		},
		"another Auto-Submitted": func(m *send.Message) {
			m.Content.Headers = map[string]string{"Auto-Submitted": "no"}
		},
		"a subject of two lines":      func(m *send.Message) { m.Content.Subject = "a\r\nBcc: eve@evil.example" },
		"a subject of two lines (LF)": func(m *send.Message) { m.Content.Subject = "a\nBcc: eve@evil.example" },
		"a subject that is not UTF-8": func(m *send.Message) { m.Content.Subject = "a\xff" },
		"a long subject":              func(m *send.Message) { m.Content.Subject = strings.Repeat("a ", 500) },
		"a subject of a long word":    func(m *send.Message) { m.Content.Subject = strings.Repeat("a", 901) },
		"a recipient of two lines": func(m *send.Message) {
			m.Recipient = "ada@customer.example\r\nRCPT " +
				"TO:<eve@evil.example>"
		},
		"a recipient with a command": func(m *send.Message) { m.Recipient = "\"ada> x\"@customer.example" },
		"two recipients":             func(m *send.Message) { m.Recipient = "ada@customer.example, eve@evil.example" },
		"no recipient":               func(m *send.Message) { m.Recipient = "" },
		"no address":                 func(m *send.Message) { m.Recipient = "ada" },
		"a bare host":                func(m *send.Message) { m.Recipient = "ada@[127.0.0.1]" },
		"a header of two lines": func(m *send.Message) {
			m.Content.Headers = map[string]string{"X-A": "a\r\nBcc: eve@evil.example"}
		},
		"a header's name of two lines": func(m *send.Message) {
			m.Content.Headers = map[string]string{"X-A: b\r\nBcc": "eve@evil.example"}
		},
		"a reserved header": func(m *send.Message) {
			m.Content.Headers = map[string]string{"BCC": "eve@evil.example"}
		},
		"a header of the body": func(m *send.Message) {
			m.Content.Headers = map[string]string{"Content-Type": "text/html"}
		},
		"a header twice": func(m *send.Message) {
			m.Content.Headers = map[string]string{"X-A": "1",
				"x-a": "2"}
		},
		"a script as List-Unsubscribe": func(m *send.Message) {
			m.Content.Headers = map[string]string{"List-Unsubscribe": "<javascript:x>"}
		},
		"one click without https": func(m *send.Message) {
			m.Content.Headers = map[string]string{"List-Unsubscribe": "mailto:a@shop.example",
				"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
		},
		"two Reply-To addresses": func(m *send.Message) {
			m.Content.Headers = map[string]string{"Reply-To": "a@b.example, c@d.example"}
		},
		"a file in a folder": func(m *send.Message) {
			m.Content.Attachments = []send.Attachment{{Name: "../a", Type: "text/plain"}}
		},
		"a file of two lines": func(m *send.Message) {
			m.Content.Attachments = []send.Attachment{{Name: "a\r\nb", Type: "text/plain"}}
		},
		"a type of two lines": func(m *send.Message) {
			m.Content.Attachments = []send.Attachment{{Name: "a", Type: "text/plain\r\nBcc: eve@evil.example"}}
		},
		"a content id of two": func(m *send.Message) {
			m.Content.Attachments = []send.Attachment{{Name: "a", Type: "image/png", Inline: "a> <b"}}
		},
		"text that is not UTF-8": func(m *send.Message) { m.Content.Text = "\xff" },
		"nothing":                func(m *send.Message) { m.Content = send.Content{Subject: "hello"} },
		"a key of two lines":     func(m *send.Message) { m.Key = "a\r\nb" },
	} {
		m := message("hello")
		change(m)
		f := fail(t, t.Context(), s, m)
		if f.Outcome != send.Permanent || f.Code != "content" || f.Down {
			t.Errorf("%s: %+v", name, f)
		}
		if strings.Contains(f.Text, "evil") || strings.Contains(f.Text, "ada") {
			t.Errorf("%s: the text reveals %q", name, f.Text)
		}
	}
	if n := server.Count("connection"); n != 0 {
		t.Errorf("%d connections", n)
	}
}
