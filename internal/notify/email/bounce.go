package email

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"mime"
	"mime/multipart"
	"net/http"
	"net/mail"
	"net/textproto"
	"strings"

	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

var _ report.Source = (*Sender)(nil)

// localPart returns the part of a Message-ID before the @: the message's key, and, if bounces are read, a MAC of it.
// Keys are sequential: without the MAC any recipient could forge bounces of other messages.
func (s *Sender) localPart(key string) string {
	if s.config.ReportSecret == "" {
		return key
	}
	mac := hmac.New(sha256.New, []byte(s.config.ReportSecret))
	mac.Write([]byte("message-id " + key))
	return key + "." + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)[:10]))
}

// keyOf returns the key in a Message-ID that this server generated; otherwise "".
func (s *Sender) keyOf(messageID string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(messageID), "<"), "@")
	key, _, _ := strings.Cut(name, ".")
	if !hmac.Equal([]byte(name), []byte(s.localPart(key))) {
		return ""
	}
	return key
}

// Reports reads a bounce e-mail, as received at the envelope address, or JSON as described by Config.Reports.
func (s *Sender) Reports(_ *http.Request, secret string, body []byte) ([]report.Report, error) {
	if err := report.Secret(secret, s.config.ReportSecret); err != nil {
		return nil, err
	}
	if text := bytes.TrimSpace(body); !bytes.HasPrefix(text, []byte("{")) && !bytes.HasPrefix(text, []byte("[")) {
		return s.bounce(body)
	}
	var ours []report.Report
	all, err := s.config.Reports.Read(body, "smtp")
	for _, r := range all {
		if r.Key != "" {
			if r.Key = s.keyOf(r.Key); r.Key == "" {
				continue // of another user of the provider account
			}
		}
		ours = append(ours, r)
	}
	return ours, err
}

// Acknowledge confirms a report.
func (s *Sender) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

var errNoMail = errors.New("email: the report is neither an e-mail nor JSON")

// bounce reads an e-mail. Only a delivery status notification (RFC 3464) with Action: failed is a report. Other
// e-mails, such as replies of people, are ignored.
func (s *Sender) bounce(text []byte) ([]report.Report, error) {
	m, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		return nil, errNoMail
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/report" || !strings.EqualFold(params["report-type"], "delivery-status") {
		return nil, nil
	}
	var said, first textproto.MIMEHeader
	parts := multipart.NewReader(m.Body, params["boundary"])
	for p, err := parts.NextPart(); err == nil; p, err = parts.NextPart() {
		fields := textproto.NewReader(bufio.NewReader(p))
		switch kind, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type")); kind {
		case "message/delivery-status", "message/global-delivery-status":
			_, _ = fields.ReadMIMEHeader()    // fields about the whole message
			said, _ = fields.ReadMIMEHeader() // fields about its only recipient
		case "message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers":
			first, _ = fields.ReadMIMEHeader()
		}
	}
	key := s.keyOf(first.Get("Message-Id"))
	if key == "" || !strings.EqualFold(strings.TrimSpace(said.Get("Action")), "failed") {
		return nil, nil
	}
	_, to, _ := strings.Cut(said.Get("Final-Recipient"), ";")
	_, why, _ := strings.Cut(said.Get("Diagnostic-Code"), ";")
	return []report.Report{{Key: key, Code: httpsend.Code("smtp", strings.TrimSpace(said.Get("Status"))),
		Text: redact(why, &send.Message{Recipient: strings.TrimSpace(to)})}}, nil
}
