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

// conn is a connection to the server that has logged in.
type conn struct {
	raw       net.Conn // below TLS: its deadlines hold for both
	client    *smtp.Client
	timeouts  *Timeouts
	pipeline  bool // PIPELINING (RFC 2920): commands go out together
	utf8      bool // SMTPUTF8 (RFC 6531)
	largest   int  // bytes of a message; 0: it does not say
	unsettled bool // the last transaction was broken off: RSET is due
	gone      bool // closed by us
	used      int  // messages that went over it
	expiry    *time.Timer
}

// dial connects and logs in.
func (s *Sender) dial(ctx context.Context) (*conn, *send.Failure) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeouts.Connect)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.Port)))
	if err != nil {
		return nil, failed(connecting, err)
	}
	c := &conn{raw: raw, timeouts: &s.config.Timeouts}
	defer c.watch(ctx)()
	c.until(ctx, s.config.Timeouts.Connect)
	at, err := s.enter(ctx, c)
	if err != nil {
		c.close()
		if ctx.Err() != nil && !isReply(err) {
			err = ctx.Err()
		}
		return nil, failed(at, err)
	}
	return c, nil
}

// enter goes through all that comes before the first message, and tells how far it came.
func (s *Sender) enter(ctx context.Context, c *conn) (phase, error) {
	config := &tls.Config{ServerName: s.config.ServerName, RootCAs: s.config.Roots, MinVersion: tls.VersionTLS12}
	wire := c.raw
	if s.config.TLS == Implicit {
		over := tls.Client(c.raw, config)
		if err := over.HandshakeContext(ctx); err != nil {
			return connecting, err
		}
		wire = over
	}
	var err error
	if c.client, err = smtp.NewClient(wire, s.config.Host); err != nil {
		return connecting, err
	}
	if err := c.client.Hello(s.config.Hello); err != nil {
		return connecting, err
	}
	if s.config.TLS == StartTLS {
		if ok, _ := c.client.Extension("STARTTLS"); !ok {
			return connecting, &textproto.Error{Code: 538, Msg: "the server does not offer STARTTLS"}
		}
		if err := c.client.StartTLS(config); err != nil {
			return connecting, err
		}
	}
	if s.config.Username != "" {
		if err := s.login(c); err != nil {
			return loggingIn, err
		}
	}
	c.pipeline, _ = c.client.Extension("PIPELINING")
	c.utf8, _ = c.client.Extension("SMTPUTF8")
	if ok, size := c.client.Extension("SIZE"); ok {
		c.largest, _ = strconv.Atoi(size)
	}
	return naming, nil
}

// errAuth: the server offers no way to log in that we may use.
var errAuth = errors.New("the server offers no authentication mechanism that the configuration allows")

func (s *Sender) login(c *conn) error {
	password, err := s.config.Password()
	if err != nil {
		return fmt.Errorf("the password: %w", err)
	}
	way := s.config.Auth
	if way == "" {
		_, offered := c.client.Extension("AUTH")
		ways := strings.Fields(strings.ToLower(offered))
		// XOAUTH2 is not among them: a password is no token.
		for _, w := range []string{ScramSHA256, ScramSHA1, Plain, Login} {
			if slices.Contains(ways, w) {
				way = w
				break
			}
		}
	}
	// The library sends no password in the clear but to this machine, unless it is allowed.
	plain := s.config.Insecure
	user, host := s.config.Username, s.config.Host
	switch way {
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

// send hands over one message. reply is the server's answer.
func (c *conn) send(ctx context.Context, l *letter) (reply string, at phase, err error) {
	defer c.watch(ctx)()
	if l.utf8 && !c.utf8 {
		return "", naming, &textproto.Error{Code: 553, Msg: "5.6.7 the server does not accept addresses beyond ASCII"}
	}
	if c.largest > 0 && len(l.text) > c.largest {
		return "", naming, &textproto.Error{Code: 552, Msg: "5.3.4 the message is larger than the server accepts"}
	}
	if at, err = c.open(ctx, l); err != nil {
		return "", at, c.cause(ctx, err)
	}
	c.unsettled = true // until the server has answered to the message
	c.until(ctx, c.timeouts.Data)
	text := c.client.Text
	w := text.DotWriter()
	if _, err := w.Write(l.text); err != nil {
		return "", handing, c.cause(ctx, err)
	}
	// What comes before the end goes out on its own, so that a connection lost meanwhile leaves nothing open.
	if err := text.W.Flush(); err != nil {
		return "", handing, c.cause(ctx, err)
	}
	if err := ctx.Err(); err != nil {
		return "", handing, err
	}
	c.until(ctx, c.timeouts.Submit)
	if err := w.Close(); err != nil {
		return "", ending, c.cause(ctx, err)
	}
	_, reply, err = text.ReadResponse(250)
	if err == nil || isReply(err) {
		c.unsettled = false
	}
	return reply, ending, c.cause(ctx, err)
}

// open begins a transaction: after it the server waits for the message.
func (c *conn) open(ctx context.Context, l *letter) (phase, error) {
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
	commands := []command{{naming, 250, mail}, {reaching, 25, "RCPT TO:<" + l.to + ">"}, {handing, 354, "DATA"}}
	if c.unsettled {
		commands = append([]command{{naming, 250, "RSET"}}, commands...)
	}
	text := c.client.Text
	c.until(ctx, c.timeouts.Command)
	if c.pipeline {
		for _, cmd := range commands {
			_, _ = text.W.WriteString(cmd.line + "\r\n") // Flush has the error
		}
		if err := text.W.Flush(); err != nil {
			return naming, err
		}
	}
	at, first := naming, error(nil)
	for _, cmd := range commands {
		if !c.pipeline {
			c.until(ctx, c.timeouts.Command)
			if err := text.PrintfLine("%s", cmd.line); err != nil {
				return cmd.at, err
			}
		}
		_, _, err := text.ReadResponse(cmd.expect)
		switch {
		case err == nil && first != nil && cmd.at == handing:
			// It waits for a message that has nobody to get it: the only way out is to leave.
			c.close()
		case err == nil || first != nil && isReply(err):
		case !isReply(err):
			if first != nil {
				return at, first // a reply counts more than what came after it
			}
			return cmd.at, err
		default:
			at, first = cmd.at, err
			c.unsettled = true
			if !c.pipeline {
				return at, first
			}
		}
	}
	return at, first
}

// until lets what follows take so long, and not longer than ctx.
func (c *conn) until(ctx context.Context, d time.Duration) {
	deadline := time.Now().Add(d)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	_ = c.raw.SetDeadline(deadline)
	if ctx.Err() != nil { // watch may have been before us
		_ = c.raw.SetDeadline(time.Unix(1, 0))
	}
}

// watch ends what is under way when ctx ends, until it is called off.
func (c *conn) watch(ctx context.Context) (off func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.raw.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// cause names the end of ctx where that is why err came.
func (c *conn) cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !isReply(err) {
		return ctx.Err()
	}
	return err
}

// quit says good-bye, and does not wait for the answer.
func (c *conn) quit() {
	_ = c.raw.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c.client.Text.W, "QUIT\r\n")
	_ = c.client.Text.W.Flush()
	c.close()
}

func (c *conn) close() {
	c.gone = true
	_ = c.raw.Close()
}

func isReply(err error) bool {
	var reply *textproto.Error
	return errors.As(err, &reply)
}
