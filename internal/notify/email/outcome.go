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

// phase is how far an attempt came.
type phase int

const (
	connecting phase = iota // TCP, TLS, greeting, EHLO
	loggingIn
	naming   // MAIL: who sends
	reaching // RCPT: who gets it
	handing  // DATA and the message, all but its end
	ending   // its end is going out or has gone out: the server may have it
)

// failed tells what became of an attempt that ended in err.
func failed(at phase, err error) *send.Failure {
	if reply := (*textproto.Error)(nil); errors.As(err, &reply) {
		return refused(at, reply)
	}
	f := &send.Failure{Outcome: send.Temporary, Code: "connection", Text: "the connection was lost",
		Down: at <= loggingIn}
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.Code, f.Text, f.Down = "cancelled", "the attempt was cancelled", false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.Code, f.Text = "timeout", "no answer in time"
	case isCertificate(err):
		f.Outcome, f.Code, f.Text = send.Refused, "tls_certificate", err.Error()
	case at == connecting:
		f.Code, f.Text = "connect", err.Error()
	case at == loggingIn:
		f.Outcome, f.Code, f.Text = send.Refused, "login", err.Error()
	}
	if at == ending {
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

// enhanced is a status code by RFC 3463 before the text of a reply.
var enhanced = regexp.MustCompile(`^([245])\.(\d{1,3})\.(\d{1,3})(?:\s|$)`)

// refused tells what a reply of the server means: none of them leaves it open whether the message was sent.
func refused(at phase, reply *textproto.Error) *send.Failure {
	f := &send.Failure{Outcome: send.Permanent, Code: "smtp_" + strconv.Itoa(reply.Code), Text: reply.Msg}
	subject := ""
	if m := enhanced.FindStringSubmatch(reply.Msg); m != nil {
		f.Code += "_" + m[1] + "." + m[2] + "." + m[3]
		subject = m[2]
	}
	switch {
	case reply.Code == 421: // it ends the connection, and may say so at any time
		f.Outcome = send.Temporary
		f.Down = at <= loggingIn
	case at == loggingIn && reply.Code/100 == 4: // its list of users is away
		f.Outcome, f.Down = send.Temporary, true
	case at == loggingIn:
		f.Outcome, f.Down = send.Refused, true
	case reply.Code/100 == 4:
		f.Outcome = send.Temporary
		f.Down = at == connecting
	case reply.Code/100 != 5: // it does not speak SMTP as we do
		f.Outcome, f.Down = send.Refused, true
	case at == connecting:
		f.Outcome, f.Down = send.Refused, true
	case reply.Code == 530, reply.Code == 538: // a login or TLS is wanted
		f.Outcome, f.Down = send.Refused, true
	case at == naming, subject == "7", subject == "5", subject == "3", reply.Code == 552, reply.Code/10 == 50:
		// Who sends, a rule of this server, what it knows, its size: another one may see it otherwise.
		f.Outcome = send.Refused
	}
	return f
}

var address = regexp.MustCompile(`[^\s<>"'(),;:]+@[^\s<>"'(),;:]+`)

// private takes the recipient, other addresses and what stands in the message out of the text of a failure, and
// shortens it.
func private(text string, m *send.Message) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	text = address.ReplaceAllString(text, "…")
	if local, domain, ok := strings.Cut(m.Recipient, "@"); ok {
		text = replaceFold(text, local, "…")
		text = replaceFold(text, domain, "…")
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		bare := strings.Trim(word, `.,;:!?()[]<>"'`)
		// What tells something: a code, a link, a name with a number. Plain words may stay.
		if len(bare) >= 4 && strings.ContainsAny(bare, "0123456789/.=") && !enhanced.MatchString(bare) &&
			says(&m.Content, bare) {
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

func says(c *send.Content, word string) bool {
	return strings.Contains(c.Subject, word) || strings.Contains(c.Text, word) || strings.Contains(c.HTML, word)
}

// replaceFold replaces words that are old, whatever their case. It leaves alone what is a part of a longer word.
func replaceFold(text, old, by string) string {
	if old == "" || !utf8.ValidString(old) {
		return text
	}
	return regexp.MustCompile(`(?i)(^|[^\pL\pN])`+regexp.QuoteMeta(old)+`($|[^\pL\pN])`).ReplaceAllString(text, "${1}"+by+"${2}")
}

var queuedAs = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\bqueued as <?([^\s<>]+)`),
	regexp.MustCompile(`(?i)^(?:2\.\d+\.\d+ )?ok:? id=([^\s<>]+)`),
	regexp.MustCompile(`(?i)^(?:2\.\d+\.\d+ )?ok:? <?([^\s<>:,]{8,})>?$`),
}

// providerID is the server's number for a message, from its answer to it, as Postfix, Exim, and the services
// write it. Without one it is the message's own id, which bounces quote.
func providerID(reply, own string) string {
	for _, r := range queuedAs {
		if m := r.FindStringSubmatch(strings.TrimSpace(reply)); m != nil && len(m[1]) <= 256 && utf8.ValidString(m[1]) {
			return strings.TrimRight(m[1], ".,;")
		}
	}
	return own
}
