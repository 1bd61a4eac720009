package email

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/mail"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/emersion/go-msgauth/dkim"
	gomail "github.com/wneessen/go-mail"
	"golang.org/x/net/idna"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Bounds of a message.
const (
	maxSubject  = 998 // bytes
	maxFileName = 255 // bytes
	maxHeader   = 900 // bytes
	maxWord     = 900 // bytes: lines break at blanks, and have 998 at most
	maxHeaders  = 50
)

// letter is a message on its way to a server.
type letter struct {
	from, to string // of the envelope
	utf8     bool   // the server has to know SMTPUTF8
	id       string // its Message-ID, without brackets
	text     []byte
}

// compose writes a message as it goes over the wire. It errs if nobody could send it: all of that is the
// content's or the recipient's fault.
func (s *Sender) compose(m *send.Message) (*letter, error) {
	who := s.identities[m.Tenant]
	if who == nil {
		who = s.identity
	}
	if m.Key == "" || !isKey(m.Key) {
		return nil, errors.New("the key is not one")
	}
	to, err := parseAddress(m.Recipient)
	if err != nil {
		return nil, fmt.Errorf("the recipient: %w", err)
	}
	l := &letter{from: who.envelope, to: to.Address, utf8: !isASCII(to.Address), id: m.Key + "@" + who.domain}
	out := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	out.FromMailAddress(who.from)
	out.ToMailAddress(&mail.Address{Address: to.Address})
	if who.replyTo != nil {
		out.ReplyToMailAddress(who.replyTo)
	}
	out.SetMessageIDWithValue(l.id)
	out.SetDate()
	// So that no machine answers (RFC 3834).
	out.SetGenHeader("Auto-Submitted", "auto-generated")
	if s.config.KeyHeader != "" {
		out.SetGenHeader(gomail.Header(s.config.KeyHeader), m.Key)
	}
	if err := setHeaders(out, m.Content.Headers); err != nil {
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

// signed are the fields that a signature covers. The first three are there twice: nobody can add a second one.
var signed = []string{
	"From", "To", "Subject", "From", "To", "Subject", "Date", "Message-ID", "Reply-To", "MIME-Version", "Content-Type",
	"Content-Transfer-Encoding", "Auto-Submitted", "List-Unsubscribe", "List-Unsubscribe-Post",
}

// sign puts a signature before a message. go-mail's own folds the names of fields in the middle, which no
// longer hold then.
func (d *DKIM) sign(text []byte) ([]byte, error) {
	signer, err := dkim.NewSigner(&dkim.SignOptions{Domain: d.Domain, Selector: d.Selector, Signer: d.Key, HeaderKeys: signed,
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
	switch {
	case len(c.Subject) > maxSubject:
		return fmt.Errorf("the subject has more than %d bytes", maxSubject)
	case slices.ContainsFunc(strings.Fields(c.Subject), func(w string) bool { return len(w) > maxWord }):
		return fmt.Errorf("the subject has a word of more than %d bytes", maxWord)
	case !isLine(c.Subject):
		return errors.New("the subject is not one line of UTF-8")
	case !utf8.ValidString(c.Text) || !utf8.ValidString(c.HTML):
		return errors.New("the text is not UTF-8")
	case c.Text == "" && c.HTML == "" && len(c.Attachments) == 0:
		return errors.New("it says nothing")
	}
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
			return fmt.Errorf("attachment %d: %w", i+1, err)
		}
	}
	return nil
}

func attach(out *gomail.Msg, a *send.Attachment) error {
	if a.Type == "" {
		a = &send.Attachment{Name: a.Name, Type: "application/octet-stream", Data: a.Data, Inline: a.Inline}
	}
	kind, params, err := mime.ParseMediaType(a.Type)
	if err != nil || len(a.Type) > 200 || !strings.Contains(kind, "/") || strings.HasPrefix(kind, "multipart/") {
		return errors.New("the type is not one")
	}
	switch {
	case a.Name == "" || len(a.Name) > maxFileName || !isLine(a.Name) || strings.ContainsAny(a.Name, `/\`):
		return fmt.Errorf("the name must have 1 to %d bytes and no slash", maxFileName)
	case a.Inline != "" && !isContentID(a.Inline):
		return errors.New("the content id is not one")
	}
	disposition := "attachment"
	if a.Inline != "" {
		disposition = "inline"
	}
	// By RFC 2231, which all programs read, other than words by RFC 2047 in quotes.
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

// ours are header fields that a message may not bring along: we write them, or servers do.
var ours = []string{
	"from", "to", "cc", "bcc", "sender", "subject", "date", "message-id", "mime-version", "return-path", "received",
	"dkim-signature", "arc-seal", "arc-message-signature", "authentication-results", "delivered-to",
}

func setHeaders(out *gomail.Msg, headers map[string]string) error {
	if len(headers) > maxHeaders {
		return fmt.Errorf("there are more than %d header fields", maxHeaders)
	}
	seen := map[string]bool{}
	for name, value := range headers {
		low := strings.ToLower(name)
		switch {
		case !isToken(name) || len(name) > 70:
			return errors.New("a header field has no proper name")
		case slices.Contains(ours, low), strings.HasPrefix(low, "content-"), strings.HasPrefix(low, "resent-"):
			return fmt.Errorf("the header field %s is not the message's to set", name)
		case seen[low]:
			return fmt.Errorf("the header field %s is there twice", name)
		case !isLine(value) || len(value) > maxHeader:
			return fmt.Errorf("the header field %s is not one line of at most %d bytes", name, maxHeader)
		}
		seen[low] = true
		switch low {
		case "reply-to":
			to, err := parseAddress(value)
			if err != nil {
				return fmt.Errorf("the header field %s: %w", name, err)
			}
			out.ReplyToMailAddress(to)
		case "list-unsubscribe":
			if err := setUnsubscribe(out, value, headers); err != nil {
				return err
			}
		case "list-unsubscribe-post": // with List-Unsubscribe
		default:
			out.SetGenHeader(gomail.Header(name), value)
		}
	}
	return nil
}

// setUnsubscribe sets List-Unsubscribe, whose value is a list of addresses in angle brackets, or one without.
// With an https one among them a click is enough (RFC 8058).
func setUnsubscribe(out *gomail.Msg, value string, headers map[string]string) error {
	var all []string
	oneClick := false
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(part), "<"), ">")
		u, err := url.Parse(part)
		if err != nil || !slices.Contains([]string{"https", "http", "mailto"}, u.Scheme) || strings.ContainsAny(part, "<> ") || !isASCII(part) {
			return errors.New("the header field List-Unsubscribe: must have URLs of https, http or mailto")
		}
		all = append(all, "<"+part+">")
		oneClick = oneClick || u.Scheme == "https"
	}
	out.SetGenHeader("List-Unsubscribe", all...)
	for name, value := range headers {
		if !strings.EqualFold(name, "List-Unsubscribe-Post") {
			continue
		}
		if value != "List-Unsubscribe=One-Click" || !oneClick {
			return errors.New("the header field List-Unsubscribe-Post: must be List-Unsubscribe=One-Click, and List-Unsubscribe have an https URL")
		}
		out.SetGenHeader("List-Unsubscribe-Post", value)
	}
	return nil
}

// parseAddress reads an address, with or without a name. Its domain comes back in ASCII.
func parseAddress(text string) (*mail.Address, error) {
	if !isLine(text) {
		return nil, errors.New("it is not one line of UTF-8")
	}
	a, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errors.New("it is not an address") // the error names it
	}
	at := strings.LastIndexByte(a.Address, '@')
	local, domain := a.Address[:at], a.Address[at+1:]
	if strings.HasPrefix(domain, "[") || local == "" || len(local) > 64 || strings.ContainsAny(local, "\" <>\\") {
		return nil, errors.New("it is not an address that we send to")
	}
	domain, err = idna.Lookup.ToASCII(domain)
	if err != nil || len(domain) > 255 || domain == "" {
		return nil, errors.New("its domain is not one")
	}
	a.Address = local + "@" + domain
	return a, nil
}

// encodeWords writes text as words of RFC 2047 where it has to, in the shorter of the two ways.
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

// canonical has each line end as lines end in e-mails.
func canonical(text string) string {
	if !strings.Contains(text, "\n") && !strings.Contains(text, "\r") {
		return text
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	return strings.ReplaceAll(text, "\n", "\r\n")
}

// mostlyASCII: quoted-printable is shorter than base64.
func mostlyASCII(text string) bool {
	other := 0
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			other++
		}
	}
	return other*6 < len(text)
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}

// isLine tells whether text can stand in a header: UTF-8, no line ends, no control characters.
func isLine(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 })
}

// isToken: the name of a header field (RFC 5322, of the characters that all servers take).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !isAlphanumeric(r) && r != '-' && r != '_' })
}

func isKey(key string) bool { return len(key) <= 64 && isToken(key) }

func isContentID(id string) bool {
	return len(id) <= 200 && !strings.ContainsFunc(id, func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("-_.@+=$", r) })
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
