package email

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"mime"
	"net/mail"
	"strings"
	"unicode/utf8"

	"github.com/emersion/go-msgauth/dkim"
	gomail "github.com/wneessen/go-mail"
	"golang.org/x/net/idna"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// composed is a message ready for transmission.
type composed struct {
	from, to string // envelope
	utf8     bool   // requires SMTPUTF8
	id       string // Message-ID, without brackets
	text     []byte
}

// compose renders a message as RFC 5322 text. Errors are caused by the content or the recipient, so no server could
// send it.
func (s *Sender) compose(m *send.Message) (*composed, error) {
	ident := s.identities[m.Tenant]
	if ident == nil {
		ident = s.identity
	}
	if !isKey(m.Key) {
		return nil, errors.New("the key is not valid")
	}
	if _, err := Check(&m.Content); err != nil {
		return nil, err
	}
	to, err := parseAddress(m.Recipient)
	if err != nil {
		return nil, fmt.Errorf("the recipient: %w", err)
	}
	l := &composed{from: ident.envelope, to: to.Address, utf8: !isASCII(to.Address),
		id: s.localPart(m.Key) + "@" + ident.domain}
	out := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	out.FromMailAddress(ident.from)
	out.ToMailAddress(&mail.Address{Address: to.Address})
	if ident.replyTo != nil {
		out.ReplyToMailAddress(ident.replyTo)
	}
	out.SetMessageIDWithValue(l.id)
	out.SetDate()
	// Suppresses automatic replies (RFC 3834).
	out.SetGenHeader("Auto-Submitted", "auto-generated")
	if s.config.KeyHeader != "" {
		out.SetGenHeader(gomail.Header(s.config.KeyHeader), m.Key)
	}
	if err := setHeaders(out, m.Content.Headers, s.config.KeyHeader); err != nil {
		return nil, err
	}
	if err := setContent(out, &m.Content); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if _, err := out.WriteTo(&text); err != nil {
		return nil, err
	}
	l.text = text.Bytes()
	if s.config.DKIM != nil {
		if l.text, err = s.config.DKIM.sign(l.text); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// signedHeaders are covered by the DKIM signature. The first three are listed twice, which prevents adding a second
// field of that name.
var signedHeaders = []string{
	"From", "To", "Subject", "From", "To", "Subject", "Date", "Message-ID", "Reply-To", "MIME-Version", "Content-Type",
	"Content-Transfer-Encoding", "Auto-Submitted", "List-Unsubscribe", "List-Unsubscribe-Post",
}

// sign prepends a DKIM signature. go-mail's own signer folds header names, which invalidates the signature.
func (d *DKIM) sign(text []byte) ([]byte, error) {
	signer, err := dkim.NewSigner(&dkim.SignOptions{Domain: d.Domain, Selector: d.Selector, Signer: d.Key,
		HeaderKeys:             signedHeaders,
		HeaderCanonicalization: dkim.CanonicalizationRelaxed, BodyCanonicalization: dkim.CanonicalizationRelaxed})
	if err != nil {
		return nil, err
	}
	_, err = signer.Write(text)
	if err := errors.Join(err, signer.Close()); err != nil {
		return nil, err
	}
	return append([]byte(signer.Signature()), text...), nil
}

func setContent(out *gomail.Msg, c *send.Content) error {
	if c.Subject != "" {
		out.Subject(encodeWords(c.Subject))
	}
	if c.Text != "" {
		out.SetBodyString(gomail.TypeTextPlain, canonical(c.Text), partEncoding(c.Text))
	}
	switch {
	case c.HTML != "" && c.Text != "":
		out.AddAlternativeString(gomail.TypeTextHTML, canonical(c.HTML), partEncoding(c.HTML))
	case c.HTML != "":
		out.SetBodyString(gomail.TypeTextHTML, canonical(c.HTML), partEncoding(c.HTML))
	}
	for i := range c.Attachments {
		if err := attach(out, &c.Attachments[i]); err != nil {
			return err
		}
	}
	return nil
}

func attach(out *gomail.Msg, a *send.Attachment) error {
	kind, params, err := mime.ParseMediaType(cmp.Or(a.Type, anyType))
	if err != nil {
		return err
	}
	disposition := "attachment"
	if a.Inline != "" {
		disposition = "inline"
	}
	// RFC 2231 encoding, which all mail programs read, unlike RFC 2047 words in quotes.
	set := func(f *gomail.File) {
		f.Header.Set("Content-Type", mime.FormatMediaType(kind, params))
		f.Header.Set("Content-Disposition", mime.FormatMediaType(disposition, map[string]string{"filename": a.Name}))
		if a.Inline != "" {
			f.Header.Set("Content-Id", "<"+a.Inline+">")
		}
	}
	if a.Inline != "" {
		return out.EmbedReader(a.Name, bytes.NewReader(a.Data), set)
	}
	return out.AttachReader(a.Name, bytes.NewReader(a.Data), set)
}

func setHeaders(out *gomail.Msg, headers map[string]string, ours string) error {
	for name, value := range headers {
		switch strings.ToLower(name) {
		case strings.ToLower(ours): // the key header: with the key of another message the provider would drop this one
			return errReserved(name)
		case "reply-to":
			to, err := parseAddress(value)
			if err != nil {
				return err
			}
			out.ReplyToMailAddress(to)
		case "list-unsubscribe":
			all, _, err := unsubscribe(value)
			if err != nil {
				return err
			}
			out.SetGenHeader("List-Unsubscribe", all...)
		default:
			out.SetGenHeader(gomail.Header(name), value)
		}
	}
	return nil
}

// parseAddress parses an address, with or without a name. The domain is returned in ASCII.
func parseAddress(text string) (*mail.Address, error) {
	if !isLine(text) {
		return nil, errors.New("not one line of UTF-8")
	}
	a, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errors.New("not an e-mail address") // the original error contains the address
	}
	at := strings.LastIndexByte(a.Address, '@')
	local, domain := a.Address[:at], a.Address[at+1:]
	if strings.HasPrefix(domain, "[") || local == "" || len(local) > 64 || strings.ContainsAny(local, "\" <>\\") {
		return nil, errors.New("not an e-mail address that ledgerd can send to")
	}
	domain, err = idna.Lookup.ToASCII(domain)
	if err != nil || len(domain) > 255 || domain == "" {
		return nil, errors.New("the domain is not valid")
	}
	a.Address = local + "@" + domain
	return a, nil
}

// encodeWords encodes text as RFC 2047 words where necessary, in the shorter encoding.
func encodeWords(text string) string {
	if mostlyASCII(text) {
		return mime.QEncoding.Encode("UTF-8", text)
	}
	return mime.BEncoding.Encode("UTF-8", text)
}

func partEncoding(text string) gomail.PartOption {
	if mostlyASCII(text) {
		return gomail.WithPartEncoding(gomail.EncodingQP)
	}
	return gomail.WithPartEncoding(gomail.EncodingB64)
}

// canonical converts line ends to CRLF.
func canonical(text string) string {
	if !strings.Contains(text, "\n") && !strings.Contains(text, "\r") {
		return text
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	return strings.ReplaceAll(text, "\n", "\r\n")
}

// mostlyASCII reports whether quoted-printable is shorter than base64.
func mostlyASCII(text string) bool {
	other := 0
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			other++
		}
	}
	return other*6 < len(text)
}
