package email

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// conn is an authenticated connection to the server.
type conn struct {
	raw        net.Conn // the TCP connection, whose deadlines also apply to TLS
	client     *smtp.Client
	timeouts   *Timeouts
	pipeline   bool // PIPELINING (RFC 2920): send commands together
	utf8       bool // SMTPUTF8 (RFC 6531)
	largest    int  // SIZE limit of a message, bytes; 0: unknown
	needsReset bool // the last transaction was aborted: send RSET first
	closed     bool // closed by us
	used       int  // messages sent
	expiry     *time.Timer
}

func (s *Sender) dial(ctx context.Context) (*conn, *send.Failure) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeouts.Connect)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.Port)))
	if err != nil {
		return nil, failed(phaseConnect, err)
	}
	c := &conn{raw: raw, timeouts: &s.config.Timeouts}
	defer c.watch(ctx)()
	c.setDeadline(ctx, s.config.Timeouts.Connect)
	at, err := s.handshake(ctx, c)
	if err != nil {
		c.close()
		if ctx.Err() != nil && !isReply(err) {
			err = ctx.Err()
		}
		return nil, failed(at, err)
	}
	return c, nil
}

// handshake runs everything up to the first message, and returns the phase it reached.
func (s *Sender) handshake(ctx context.Context, c *conn) (phase, error) {
	config := &tls.Config{ServerName: s.config.ServerName, RootCAs: s.config.Roots, MinVersion: tls.VersionTLS12}
	wire := c.raw
	if s.config.TLS == Implicit {
		over := tls.Client(c.raw, config)
		if err := over.HandshakeContext(ctx); err != nil {
			return phaseConnect, err
		}
		wire = over
	}
	var err error
	if c.client, err = smtp.NewClient(wire, s.config.Host); err != nil {
		return phaseConnect, err
	}
	if err := c.client.Hello(s.config.Hello); err != nil {
		return phaseConnect, err
	}
	if s.config.TLS == StartTLS {
		if ok, _ := c.client.Extension("STARTTLS"); !ok {
			return phaseConnect, &textproto.Error{Code: 538, Msg: "the server does not offer STARTTLS"}
		}
		if err := c.client.StartTLS(config); err != nil {
			return phaseConnect, err
		}
	}
	if s.config.Username != "" {
		if err := s.login(c); err != nil {
			return phaseLogin, err
		}
	}
	c.pipeline, _ = c.client.Extension("PIPELINING")
	c.utf8, _ = c.client.Extension("SMTPUTF8")
	if ok, size := c.client.Extension("SIZE"); ok {
		c.largest, _ = strconv.Atoi(size)
	}
	return phaseMail, nil
}

// errAuth: the server offers no mechanism that the configuration allows.
var errAuth = errors.New("the server offers no authentication mechanism that the configuration allows")

func (s *Sender) login(c *conn) error {
	password, err := s.config.Password()
	if err != nil {
		return fmt.Errorf("the password: %w", err)
	}
	mechanism := s.config.Auth
	if mechanism == "" {
		_, offered := c.client.Extension("AUTH")
		offers := strings.Fields(strings.ToLower(offered))
		// Not XOAUTH2: a password is not a token.
		for _, w := range []string{ScramSHA256, ScramSHA1, Plain, Login} {
			if slices.Contains(offers, w) {
				mechanism = w
				break
			}
		}
	}
	// The library sends passwords in plaintext only to this machine, unless allowed.
	plain := s.config.Insecure
	user, host := s.config.Username, s.config.Host
	switch mechanism {
	case ScramSHA256:
		return c.client.Auth(smtp.ScramSHA256Auth(user, password))
	case ScramSHA1:
		return c.client.Auth(smtp.ScramSHA1Auth(user, password))
	case Plain:
		return c.client.Auth(smtp.PlainAuth("", user, password, host, plain))
	case Login:
		return c.client.Auth(smtp.LoginAuth(user, password, host, plain))
	case XOAuth2:
		return c.client.Auth(smtp.XOAuth2Auth(user, password))
	}
	return errAuth
}

// send transmits one message. reply is the server's final reply.
func (c *conn) send(ctx context.Context, l *composed) (reply string, at phase, err error) {
	defer c.watch(ctx)()
	if l.utf8 && !c.utf8 {
		return "", phaseMail, &textproto.Error{Code: 553,
			Msg: "5.6.7 the server does not accept addresses beyond ASCII"}
	}
	if c.largest > 0 && len(l.text) > c.largest {
		return "", phaseMail, &textproto.Error{Code: 552, Msg: "5.3.4 the message is larger than the server accepts"}
	}
	if at, err = c.open(ctx, l); err != nil {
		return "", at, c.cause(ctx, err)
	}
	c.needsReset = true // until the final reply
	c.setDeadline(ctx, c.timeouts.Data)
	text := c.client.Text
	w := text.DotWriter()
	if _, err := w.Write(l.text); err != nil {
		return "", phaseData, c.cause(ctx, err)
	}
	// Flush before the terminating dot: if the connection breaks up to here, the message was not sent.
	if err := text.W.Flush(); err != nil {
		return "", phaseData, c.cause(ctx, err)
	}
	if err := ctx.Err(); err != nil {
		return "", phaseData, err
	}
	c.setDeadline(ctx, c.timeouts.Submit)
	if err := w.Close(); err != nil {
		return "", phaseEnd, c.cause(ctx, err)
	}
	_, reply, err = text.ReadResponse(250)
	if err == nil || isReply(err) {
		c.needsReset = false
	}
	return reply, phaseEnd, c.cause(ctx, err)
}

// open sends the commands up to DATA.
func (c *conn) open(ctx context.Context, l *composed) (phase, error) {
	type command struct {
		at     phase
		expect int
		line   string
	}
	mail := "MAIL FROM:<" + l.from + ">"
	if ok, _ := c.client.Extension("8BITMIME"); ok && l.utf8 {
		mail += " BODY=8BITMIME"
	}
	if l.utf8 {
		mail += " SMTPUTF8"
	}
	if c.largest > 0 {
		mail += " SIZE=" + strconv.Itoa(len(l.text))
	}
	commands := []command{{phaseMail, 250, mail}, {phaseRcpt, 25, "RCPT TO:<" + l.to + ">"}, {phaseData, 354, "DATA"}}
	if c.needsReset {
		commands = append([]command{{phaseMail, 250, "RSET"}}, commands...)
	}
	text := c.client.Text
	c.setDeadline(ctx, c.timeouts.Command)
	if c.pipeline {
		for _, cmd := range commands {
			_, _ = text.W.WriteString(cmd.line + "\r\n") // Flush returns the error
		}
		if err := text.W.Flush(); err != nil {
			return phaseMail, err
		}
	}
	at, first := phaseMail, error(nil)
	for _, cmd := range commands {
		if !c.pipeline {
			c.setDeadline(ctx, c.timeouts.Command)
			if err := text.PrintfLine("%s", cmd.line); err != nil {
				return cmd.at, err
			}
		}
		_, _, err := text.ReadResponse(cmd.expect)
		switch {
		case err == nil && first != nil && cmd.at == phaseData:
			// The server waits for a message without recipients: closing is the only way out.
			c.close()
		case err == nil || first != nil && isReply(err):
		case !isReply(err):
			if first != nil {
				return at, first // the first reply matters more than a later error
			}
			return cmd.at, err
		default:
			at, first = cmd.at, err
			c.needsReset = true
			if !c.pipeline {
				return at, first
			}
		}
	}
	return at, first
}

// setDeadline limits the following I/O to d and to ctx.
func (c *conn) setDeadline(ctx context.Context, d time.Duration) {
	deadline := time.Now().Add(d)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	_ = c.raw.SetDeadline(deadline)
	if ctx.Err() != nil { // watch may have run before this
		_ = c.raw.SetDeadline(time.Unix(1, 0))
	}
}

// watch interrupts I/O when ctx ends, until off is called.
func (c *conn) watch(ctx context.Context) (off func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.raw.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// cause returns the error of ctx if that caused err.
func (c *conn) cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !isReply(err) {
		return ctx.Err()
	}
	return err
}

// quit sends QUIT and closes the connection without waiting for the reply.
func (c *conn) quit() {
	_ = c.raw.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c.client.Text.W, "QUIT\r\n")
	_ = c.client.Text.W.Flush()
	c.close()
}

func (c *conn) close() {
	c.closed = true
	_ = c.raw.Close()
}

func isReply(err error) bool {
	var reply *textproto.Error
	return errors.As(err, &reply)
}
