package email

import (
	"errors"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Limits of a message.
const (
	maxSubject  = 998 // bytes
	maxFileName = 255 // bytes
	maxHeader   = 900 // bytes
	maxWord     = 900 // bytes: lines are folded at spaces, and hold at most 998
	maxHeaders  = 50
)

const anyType = "application/octet-stream"

// Check returns why a message cannot be sent by e-mail, and the field of the content that is at fault. The error
// contains nothing of the message but names of header fields.
func Check(c *send.Content) (field string, err error) {
	switch {
	case len(c.Subject) > maxSubject:
		return "subject", fmt.Errorf("the subject has more than %d bytes", maxSubject)
	case slices.ContainsFunc(strings.Fields(c.Subject), func(w string) bool { return len(w) > maxWord }):
		return "subject", fmt.Errorf("the subject has a word of more than %d bytes", maxWord)
	case !isLine(c.Subject):
		return "subject", errors.New("the subject is not one line of UTF-8")
	case !utf8.ValidString(c.Text) || !utf8.ValidString(c.HTML):
		return "text", errors.New("the text is not UTF-8")
	case c.Text == "" && c.HTML == "" && len(c.Attachments) == 0:
		return "text", errors.New("the message has neither text, html nor attachments")
	}
	for i := range c.Attachments {
		if err := checkAttachment(&c.Attachments[i]); err != nil {
			return fmt.Sprintf("attachments[%d]", i), fmt.Errorf("attachment %d: %w", i+1, err)
		}
	}
	return "headers", checkHeaders(c.Headers)
}

func checkAttachment(a *send.Attachment) error {
	kind, _, err := mime.ParseMediaType(a.Type)
	switch {
	case a.Type != "" && (err != nil || len(a.Type) > 200 || !strings.Contains(kind, "/") ||
		strings.HasPrefix(kind, "multipart/")):
		return errors.New("the type must be a media type such as application/pdf, of at most 200 bytes, " +
			"and not multipart")
	case a.Name == "" || len(a.Name) > maxFileName || !isLine(a.Name) || strings.ContainsAny(a.Name, `/\`):
		return fmt.Errorf("the name must have 1 to %d bytes and no slash", maxFileName)
	case a.Inline != "" && !isContentID(a.Inline):
		return errors.New("inline is not a valid Content-ID")
	}
	return nil
}

// reservedHeaders must not be set by a message. The server or mail servers write them; the last three add recipients at
// SendGrid, Mandrill and SparkPost, which would bypass limits.
var reservedHeaders = []string{
	"from", "to", "cc", "bcc", "sender", "subject", "date", "message-id", "mime-version", "return-path", "received",
	"dkim-signature", "arc-seal", "arc-message-signature", "authentication-results", "delivered-to", "auto-submitted",
	"x-smtpapi", "x-mc-bccaddress", "x-msys-api",
}

func errReserved(name string) error {
	return fmt.Errorf("the header field %s must not be set by a message", name)
}

func checkHeaders(headers map[string]string) error {
	if len(headers) > maxHeaders {
		return fmt.Errorf("there are more than %d header fields", maxHeaders)
	}
	all := make(map[string]string, len(headers))
	for name, value := range headers {
		low := strings.ToLower(name)
		_, twice := all[low]
		switch {
		case !isToken(name) || len(name) > 70:
			return errors.New("a header field has an invalid name")
		case slices.Contains(reservedHeaders, low), strings.HasPrefix(low, "content-"),
			strings.HasPrefix(low, "resent-"):
			return errReserved(name)
		case twice:
			return fmt.Errorf("the header field %s is set twice", name)
		case !isLine(value) || len(value) > maxHeader:
			return fmt.Errorf("the header field %s is not one line of at most %d bytes", name, maxHeader)
		}
		all[low] = value
	}
	if to, ok := all["reply-to"]; ok {
		if _, err := parseAddress(to); err != nil {
			return fmt.Errorf("the header field Reply-To: %w", err)
		}
	}
	oneClick := false
	if value, ok := all["list-unsubscribe"]; ok {
		var err error
		if _, oneClick, err = unsubscribe(value); err != nil {
			return fmt.Errorf("the header field List-Unsubscribe: %w", err)
		}
	}
	if post, ok := all["list-unsubscribe-post"]; ok && (post != "List-Unsubscribe=One-Click" || !oneClick) {
		return errors.New("the header field List-Unsubscribe-Post: must be List-Unsubscribe=One-Click, " +
			"and List-Unsubscribe must have an https URL")
	}
	return nil
}

// unsubscribe parses List-Unsubscribe: one or more URLs, in angle brackets or not. An https URL allows one-click
// unsubscription (RFC 8058).
func unsubscribe(value string) (all []string, oneClick bool, err error) {
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(part), "<"), ">")
		u, err := url.Parse(part)
		if err != nil || !slices.Contains([]string{"https", "http", "mailto"}, u.Scheme) ||
			strings.ContainsAny(part, "<> ") || !isASCII(part) {
			return nil, false, errors.New("must have URLs of https, http or mailto")
		}
		all = append(all, "<"+part+">")
		oneClick = oneClick || u.Scheme == "https"
	}
	return all, oneClick, nil
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}

// isLine reports whether text is valid in a header: UTF-8 without line ends and control characters.
func isLine(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text,
		func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 })
}

// isToken reports whether name is a header field name of the characters that all servers accept.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name,
		func(r rune) bool { return !isAlphanumeric(r) && r != '-' && r != '_' })
}

func isKey(key string) bool { return len(key) <= 64 && isToken(key) }

func isContentID(id string) bool {
	return len(id) <= 200 && !strings.ContainsFunc(id,
		func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("-_.@+=$", r) })
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
