package email

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// phase is how far an attempt got.
type phase int

const (
	phaseConnect phase = iota // TCP, TLS, greeting, EHLO
	phaseLogin
	phaseMail
	phaseRcpt
	phaseData // DATA and the message up to its terminating dot
	phaseEnd  // from the terminating dot on: the server may have the message
)

// failed classifies an attempt that ended with err.
func failed(at phase, err error) *send.Failure {
	if reply := (*textproto.Error)(nil); errors.As(err, &reply) {
		return refused(at, reply)
	}
	f := &send.Failure{Outcome: send.Temporary, Code: "connection", Text: "the connection was lost",
		Down: at <= phaseLogin}
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.Code, f.Text, f.Down = "cancelled", "the attempt was cancelled", false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.Code, f.Text = "timeout", "no answer in time"
	case isCertificate(err):
		f.Outcome, f.Code, f.Text = send.Refused, "tls_certificate", err.Error()
	case at == phaseConnect:
		f.Code, f.Text = "connect", err.Error()
	case at == phaseLogin:
		f.Outcome, f.Code, f.Text = send.Refused, "login", err.Error()
	}
	if at == phaseEnd {
		f.Outcome, f.Text = send.Unknown, f.Text+" after the message had been transmitted"
	}
	return f
}

func isCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var host x509.HostnameError
	var unknown x509.UnknownAuthorityError
	return errors.As(err, &verify) || errors.As(err, &host) || errors.As(err, &unknown)
}

// enhanced matches an enhanced status code (RFC 3463) at the start of a reply.
var enhanced = regexp.MustCompile(`^([245])\.(\d{1,3})\.(\d{1,3})(?:\s|$)`)

// refused classifies a negative reply. After a reply it is certain that the message was not sent.
func refused(at phase, reply *textproto.Error) *send.Failure {
	f := &send.Failure{Outcome: send.Permanent, Code: "smtp_" + strconv.Itoa(reply.Code), Text: reply.Msg}
	subject := ""
	if m := enhanced.FindStringSubmatch(reply.Msg); m != nil {
		f.Code += "_" + m[1] + "." + m[2] + "." + m[3]
		subject = m[2]
	}
	switch {
	case reply.Code == 421: // closes the connection, in any phase
		f.Outcome = send.Temporary
		f.Down = at <= phaseLogin
	case at == phaseLogin && reply.Code/100 == 4: // the server's user database is unavailable
		f.Outcome, f.Down = send.Temporary, true
	case at == phaseLogin:
		f.Outcome, f.Down = send.Refused, true
	case reply.Code/100 == 4:
		f.Outcome = send.Temporary
		f.Down = at == phaseConnect
	case reply.Code/100 != 5: // not SMTP as specified
		f.Outcome, f.Down = send.Refused, true
	case at == phaseConnect:
		f.Outcome, f.Down = send.Refused, true
	case reply.Code == 530, reply.Code == 538: // login or TLS required
		f.Outcome, f.Down = send.Refused, true
	case at == phaseMail, subject == "7", subject == "5", subject == "3", reply.Code == 552, reply.Code/10 == 50:
		// Objections to the sender, policy, protocol support or size: another server may accept the message.
		f.Outcome = send.Refused
	}
	return f
}

var address = regexp.MustCompile(`[^\s<>"'(),;:]+@[^\s<>"'(),;:]+`)

// redact removes the recipient, other addresses and words of the message from an error text, and shortens it.
func redact(text string, m *send.Message) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	text = address.ReplaceAllString(text, "…")
	if local, domain, ok := strings.Cut(m.Recipient, "@"); ok {
		text = replaceFold(text, local, "…")
		text = replaceFold(text, domain, "…")
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		bare := strings.Trim(word, `.,;:!?()[]<>"'`)
		// Redact only words that carry information, such as codes, links and names with digits.
		if len(bare) >= 4 && strings.ContainsAny(bare, "0123456789/.=") && !enhanced.MatchString(bare) &&
			contains(&m.Content, bare) {
			words[i] = "…"
		}
	}
	text = strings.Join(words, " ")
	const most = 500
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func contains(c *send.Content, word string) bool {
	return strings.Contains(c.Subject, word) || strings.Contains(c.Text, word) || strings.Contains(c.HTML, word)
}

// replaceFold replaces whole words equal to old, ignoring case.
func replaceFold(text, old, by string) string {
	if old == "" || !utf8.ValidString(old) {
		return text
	}
	return regexp.MustCompile(`(?i)(^|[^\pL\pN])`+regexp.QuoteMeta(old)+`($|[^\pL\pN])`).
		ReplaceAllString(text, "${1}"+by+"${2}")
}

var queuedAs = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\bqueued as <?([^\s<>]+)`),
	regexp.MustCompile(`(?i)^(?:2\.\d+\.\d+ )?ok:? id=([^\s<>]+)`),
	regexp.MustCompile(`(?i)^(?:2\.\d+\.\d+ )?ok:? <?([^\s<>:,]{8,})>?$`),
}

// providerID extracts the server's queue id from its final reply, in the formats of Postfix, Exim and common services.
// Without one it returns own, the Message-ID, which bounces quote.
func providerID(reply, own string) string {
	for _, r := range queuedAs {
		if m := r.FindStringSubmatch(strings.TrimSpace(reply)); m != nil && len(m[1]) <= 256 && utf8.ValidString(m[1]) {
			return strings.TrimRight(m[1], ".,;")
		}
	}
	return own
}
