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

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

var _ report.Source = (*Sender)(nil)

// name is what stands in a message's Message-ID before the @: its key, and where bounces are read a signature of it.
// Whoever got one message could count on to the keys of others, and send in bounces of them.
func (s *Sender) name(key string) string {
	if s.config.ReportSecret == "" {
		return key
	}
	mac := hmac.New(sha256.New, []byte(s.config.ReportSecret))
	mac.Write([]byte("message-id " + key))
	return key + "." + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)[:10]))
}

// keyOf is the key in a Message-ID of ours; empty: it is none.
func (s *Sender) keyOf(messageID string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(messageID), "<"), "@")
	key, _, _ := strings.Cut(name, ".")
	if !hmac.Equal([]byte(name), []byte(s.name(key))) {
		return ""
	}
	return key
}

// Reports reads what came back: an e-mail as the server of the envelope's address got it, or the JSON that
// Config.Reports describes.
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
				continue // of somebody else who uses the same account
			}
		}
		ours = append(ours, r)
	}
	return ours, err
}

// Acknowledge says that it was taken.
func (s *Sender) Acknowledge(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

var errNoMail = errors.New("email: the report is neither an e-mail nor JSON")

// bounce reads an e-mail. What is not the report of a server (RFC 3464) that it has given up says nothing: whoever
// answers, or writes to the address.
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
			_, _ = fields.ReadMIMEHeader()    // of the whole message
			said, _ = fields.ReadMIMEHeader() // of its recipient, of whom there is one
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
		Text: private(why, &send.Message{Recipient: strings.TrimSpace(to)})}}, nil
}
