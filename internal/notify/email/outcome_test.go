package email_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// large returns a message that exceeds the socket buffers.
func large() *send.Message {
	m := message("hello")
	m.Content.Attachments = []send.Attachment{{Name: "a", Type: "text/plain", Data: make([]byte, 8<<20)}}
	return m
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	const temporary, refused, permanent, unknown = send.Temporary, send.Refused, send.Permanent, send.Unknown
	for _, c := range []struct {
		phase, does string
		want        send.Outcome
		code        string
		down        bool
		taken       int
	}{
		{emailtest.Connect, "421 4.3.2 busy", temporary, "smtp_421_4.3.2", true, 0},
		{emailtest.Connect, "450 4.3.2 busy", temporary, "smtp_450_4.3.2", true, 0},
		{emailtest.Connect, "554 5.7.1 you are on a list", refused, "smtp_554_5.7.1", true, 0},
		{emailtest.Connect, "220 2.0.0 and gone", temporary, "connect", true, 0},
		{emailtest.Connect, "reset", temporary, "connect", true, 0},
		{emailtest.Mail, "451 4.3.0 later", temporary, "smtp_451_4.3.0", false, 0},
		{emailtest.Mail, "421 4.3.2 restarting", temporary, "smtp_421_4.3.2", false, 0},
		{emailtest.Mail, "550 5.1.8 not your domain", refused, "smtp_550_5.1.8", false, 0},
		{emailtest.Mail, "530 5.7.0 log in", refused, "smtp_530_5.7.0", true, 0},
		{emailtest.Mail, "552 5.3.4 too large", refused, "smtp_552_5.3.4", false, 0},
		{emailtest.Mail, "reset", temporary, "connection", false, 0},
		{emailtest.Mail, "close", temporary, "connection", false, 0},
		{emailtest.Mail, "stall", temporary, "timeout", false, 0},
		{emailtest.Rcpt, "450 4.2.0 greylisted", temporary, "smtp_450_4.2.0", false, 0},
		{emailtest.Rcpt, "452 4.2.2 full", temporary, "smtp_452_4.2.2", false, 0},
		{emailtest.Rcpt, "550 5.1.1 no such user", permanent, "smtp_550_5.1.1", false, 0},
		{emailtest.Rcpt, "554 no such user", permanent, "smtp_554_5.0.0", false, 0},
		{emailtest.Rcpt, "550 5.7.1 relaying denied", refused, "smtp_550_5.7.1", false, 0},
		{emailtest.Rcpt, "reset", temporary, "connection", false, 0},
		{emailtest.Rcpt, "stall", temporary, "timeout", false, 0},
		// the whole message may have been in the socket buffer
		{emailtest.Body, "reset", unknown, "connection", false, 0},
		{emailtest.Body, "stall", unknown, "timeout", false, 0},
		{emailtest.End, "451 4.3.0 disk full", temporary, "smtp_451_4.3.0", false, 0},
		{emailtest.End, "421 4.3.2 restarting", temporary, "smtp_421_4.3.2", false, 0},
		{emailtest.End, "554 5.6.0 cannot be read", permanent, "smtp_554_5.6.0", false, 0},
		{emailtest.End, "554 5.7.1 looks like spam", refused, "smtp_554_5.7.1", false, 0},
		{emailtest.End, "reset", unknown, "connection", false, 0},
		{emailtest.End, "close", unknown, "connection", false, 0},
		{emailtest.End, "stall", unknown, "timeout", false, 0},
		{emailtest.Taken, "reset", unknown, "connection", false, 1},
		{emailtest.Taken, "close", unknown, "connection", false, 1},
		{emailtest.Taken, "stall", unknown, "timeout", false, 1},
		{emailtest.Taken, "slow 50ms", -1, "", false, 1},
		{emailtest.Mail, "slow 50ms", -1, "", false, 1},
	} {
		for _, serial := range []bool{false, true} {
			name := c.phase + " " + c.does
			if serial {
				name += ", no pipelining"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server := emailtest.Start(t, emailtest.Options{Serial: serial})
				server.Do(c.phase, c.does)
				settings := config(server)
				settings.Timeouts = email.Timeouts{Command: 500 * time.Millisecond, Submit: 500 * time.Millisecond,
					Data: 500 * time.Millisecond}
				s := sender(t, settings)
				if c.want < 0 {
					deliver(t, s, message("hello"))
				} else if f := fail(t, t.Context(), s, message("hello")); f.Outcome != c.want || f.Code != c.code ||
					f.Down != c.down || f.Text == "" {
					t.Errorf("%+v", f)
				}
				if n := len(server.Messages()); n != c.taken {
					t.Errorf("%d messages accepted", n)
				}
				// The next message is not affected.
				server.Do(c.phase, "")
				if c.does != "stall" {
					deliver(t, s, message("hello"))
					if n := len(server.Messages()); n != c.taken+1 {
						t.Errorf("%d messages accepted, including the second", n)
					}
				}
			})
		}
	}
}

func TestConnectionLostBeforeTheEndIsTemporary(t *testing.T) {
	t.Parallel()
	for _, does := range []string{"reset", "stall", "kill"} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			server := emailtest.Start(t, emailtest.Options{})
			settings := config(server)
			settings.Timeouts.Data = time.Second
			if does == "kill" {
				settings.Timeouts.Data = time.Minute
				server.Do(emailtest.Body, "stall")
				go func() { // while the message is being transmitted
					server.Wait(emailtest.Body)
					server.Kill()
				}()
			} else {
				server.Do(emailtest.Body, does)
			}
			f := fail(t, t.Context(), sender(t, settings), large())
			if f.Outcome != send.Temporary ||
				f.Code != map[string]string{"reset": "connection", "stall": "timeout", "kill": "connection"}[does] {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestServerKilledAfterTheEndIsUnknown(t *testing.T) {
	t.Parallel()
	for phase, taken := range map[string]int{emailtest.End: 0, emailtest.Taken: 1} {
		server := emailtest.Start(t, emailtest.Options{})
		server.Do(phase, "stall")
		var kill sync.WaitGroup
		kill.Go(func() {
			server.Wait(phase)
			server.Kill()
		})
		if f := fail(t, t.Context(), sender(t, config(server)), message("hello")); f.Outcome != send.Unknown ||
			f.Code != "connection" {
			t.Errorf("%s: %+v", phase, f)
		}
		kill.Wait()
		if n := len(server.Messages()); n != taken {
			t.Errorf("%s: %d messages", phase, n)
		}
	}
}

func TestAttemptEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phase string
		want  send.Outcome
	}{{emailtest.Login, send.Temporary}, {emailtest.Mail, send.Temporary}, {emailtest.Rcpt,
		send.Temporary}, {emailtest.End, send.Unknown}} {
		for _, cancelled := range []bool{false, true} {
			server := emailtest.Start(t, emailtest.Options{Auth: []string{"PLAIN"}})
			server.Do(c.phase, "stall")
			settings := config(server)
			settings.Username, settings.Password = emailtest.User,
				func() (string, error) { return emailtest.Password, nil }
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			code := "timeout"
			if cancelled {
				code = "cancelled"
				ctx, cancel = context.WithCancel(t.Context())
				go func() {
					server.Wait(c.phase)
					cancel()
				}()
			}
			start := time.Now()
			if f := fail(t, ctx, sender(t, settings), message("hello")); f.Outcome != c.want || f.Code != code ||
				f.Down {
				t.Errorf("%s, cancelled: %v: %+v", c.phase, cancelled, f)
			}
			if took := time.Since(start); took > 8*time.Second { // the timeout without a context is 10 s
				t.Errorf("%s, cancelled: %v: took %v", c.phase, cancelled, took)
			}
			cancel()
		}
	}
	server := emailtest.Start(t, emailtest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := fail(t, ctx, sender(t, config(server)), message("hello")); f.Outcome != send.Temporary || f.Down {
		t.Errorf("%+v", f)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	right := func() (string, error) { return emailtest.Password, nil }
	wrong := func() (string, error) { return "wrong", nil }
	for _, c := range []struct {
		offered  []string
		auth     string
		password func() (string, error)
		code     string // empty: success
	}{
		{[]string{"PLAIN"}, email.Plain, right, ""},
		{[]string{"LOGIN"}, email.Login, right, ""},
		{[]string{"XOAUTH2"}, email.XOAuth2, right, ""},
		{[]string{"SCRAM-SHA-256"}, email.ScramSHA256, right, ""},
		{[]string{"PLAIN", "SCRAM-SHA-256"}, "", right, ""},
		{[]string{"PLAIN", "LOGIN"}, "", right, ""},
		{[]string{"PLAIN"}, email.Plain, wrong, "smtp_535_5.7.8"},
		{[]string{"LOGIN"}, email.Login, wrong, "smtp_535_5.7.8"},
		{[]string{"XOAUTH2"}, email.XOAuth2, wrong, "smtp_535_5.7.8"},
		{[]string{"SCRAM-SHA-256"}, email.ScramSHA256, wrong, "smtp_535_5.7.8"},
		{[]string{"XOAUTH2"}, "", right, "login"},
		{[]string{"PLAIN"}, email.ScramSHA256, right, "smtp_504_5.7.4"},
		{[]string{"PLAIN"}, email.Plain, func() (string, error) { return "", errors.New("no such file") }, "login"},
		{[]string{"PLAIN"}, "", nil, "smtp_530_5.7.0"},
	} {
		server := emailtest.Start(t, emailtest.Options{Auth: c.offered, TLS: true})
		settings := config(server)
		settings.TLS, settings.Roots, settings.Auth = email.StartTLS, server.Roots, c.auth
		if c.password != nil {
			settings.Username, settings.Password = emailtest.User, c.password
		}
		s := sender(t, settings)
		if c.code == "" {
			deliver(t, s, message("hello"))
			if all := server.Messages(); len(all) != 1 || all[0].User != emailtest.User {
				t.Errorf("%v %s: %+v", c.offered, c.auth, all)
			}
			continue
		}
		if f := fail(t, t.Context(), s, message("hello")); f.Outcome != send.Refused || f.Code != c.code || !f.Down ||
			strings.Contains(f.Text, "pencil") {
			t.Errorf("%v %s: %+v", c.offered, c.auth, f)
		}
	}
	server := emailtest.Start(t, emailtest.Options{Auth: []string{"PLAIN"}})
	server.Do(emailtest.Login, "454 4.7.0 user database unavailable")
	settings := config(server)
	settings.Username, settings.Password = emailtest.User, right
	if f := fail(t, t.Context(), sender(t, settings), message("hello")); f.Outcome != send.Temporary || !f.Down {
		t.Errorf("%+v", f)
	}
}

func TestPasswordIsReadAtEveryLogin(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{Auth: []string{"PLAIN"}})
	file := filepath.Join(t.TempDir(), "token")
	settings := config(server)
	settings.Username = emailtest.User
	settings.Password = func() (string, error) {
		text, err := os.ReadFile(file)
		return string(text), err
	}
	s := sender(t, settings)
	for _, password := range []string{"old", emailtest.Password} {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Send(t.Context(), message("hello"))
		if (err == nil) != (password == emailtest.Password) {
			t.Errorf("%s: %v", password, err)
		}
	}
}

func TestTLSIsVerified(t *testing.T) {
	t.Parallel()
	other := emailtest.Start(t, emailtest.Options{})
	for name, c := range map[string]struct {
		options emailtest.Options
		tls     string
		change  func(*email.Config)
		code    string
	}{
		"no STARTTLS": {emailtest.Options{}, email.StartTLS, nil, "smtp_538"},
		"an untrusted certificate": {emailtest.Options{TLS: true}, email.StartTLS,
			func(c *email.Config) { c.Roots = other.Roots }, "tls_certificate"},
		"a certificate for another host": {emailtest.Options{TLS: true}, email.StartTLS,
			func(c *email.Config) { c.ServerName = "mail.other.example" }, "tls_certificate"},
		"a certificate for another host, implicit TLS": {emailtest.Options{Only: true}, email.Implicit,
			func(c *email.Config) { c.ServerName = "mail.other.example" }, "tls_certificate"},
	} {
		server := emailtest.Start(t, c.options)
		settings := config(server)
		settings.TLS, settings.Roots = c.tls, server.Roots
		if c.change != nil {
			c.change(&settings)
		}
		if f := fail(t, t.Context(), sender(t, settings), message("hello")); f.Outcome != send.Refused ||
			f.Code != c.code || !f.Down {
			t.Errorf("%s: %+v", name, f)
		}
		if n := len(server.Messages()); n != 0 {
			t.Errorf("%s: %d messages", name, n)
		}
	}
	server := emailtest.Start(t, emailtest.Options{TLS: true})
	settings := config(server)
	settings.TLS, settings.Roots, settings.ServerName = email.StartTLS, server.Roots, "mail.shop.example"
	deliver(t, sender(t, settings), message("hello"))
}

func TestUnreachableServerIsDown(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	server.Kill()
	if f := fail(t, t.Context(), sender(t, config(server)), message("hello")); f.Outcome != send.Temporary ||
		f.Code != "connect" || !f.Down {
		t.Errorf("%+v", f)
	}
	settings := config(server)
	settings.Host, settings.Insecure = "mail.does-not-exist.invalid", true
	if f := fail(t, t.Context(), sender(t, settings), message("hello")); f.Outcome != send.Temporary || !f.Down {
		t.Errorf("%+v", f)
	}
}

func TestFailureTextsAreRedacted(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	s := sender(t, config(server))
	for reply, want := range map[string]string{
		"550 5.1.1 <Ada@Customer.example>: Recipient address rejected: User unknown; " +
			"ada at customer.example": "5.1.1 <…>: Recipient address rejected: User unknown; … at …",
		"554 5.7.1 your code 445566, https://shop.example/reset?token=abc, " +
			"is spam (see https://help.example/spam)": "5.7.1 your code … … is spam (see https://help.example/spam)",
		"451 4.3.0 adamant about eve@evil.example": "4.3.0 adamant about …",
	} {
		server.Do(emailtest.Rcpt, reply)
		m := message("Your code: 445566. Or https://shop.example/reset?token=abc")
		if f := fail(t, t.Context(), s, m); f.Text != want {
			t.Errorf("%q, want %q", f.Text, want)
		}
	}
	server.Do(emailtest.Rcpt, "451 4.3.0 "+strings.Repeat("a", 900))
	if f := fail(t, t.Context(), s, message("hello")); len(f.Text) > 510 {
		t.Errorf("%d bytes", len(f.Text))
	}
}

func TestMessageAboveSIZEIsNotTransmitted(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{Largest: 100_000})
	s := sender(t, config(server))
	if f := fail(t, t.Context(), s, large()); f.Outcome != send.Refused || f.Code != "smtp_552_5.3.4" || f.Down ||
		server.Count(emailtest.Mail) != 0 {
		t.Errorf("%+v, %d MAIL commands", f, server.Count(emailtest.Mail))
	}
	deliver(t, s, message("hello"))
	if n := server.Count("connection"); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// scripted starts a server that answers commands from a table, and returns what it received over each connection.
func scripted(t *testing.T, answers map[string]string) (settings email.Config, heard chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	heard = make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "220 hello\r\n")
			lines := bufio.NewScanner(c)
			text := ""
			for lines.Scan() {
				text += lines.Text() + "\n"
				if answer := answers[lines.Text()[:min(4, len(lines.Text()))]]; answer != "" {
					_, _ = io.WriteString(c, answer+"\r\n")
				}
			}
			heard <- text
		}
	}()
	settings = config(&emailtest.Server{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port})
	settings.Hello = "here"
	return settings, heard
}

// With PIPELINING a server may accept DATA although it refused the only RCPT (RFC 2920). The connection is closed
// without a message.
func TestPipelinedDATAAfterRefusedRCPTClosesTheConnection(t *testing.T) {
	t.Parallel()
	settings, heard := scripted(t, map[string]string{"EHLO": "250-hello\r\n250 PIPELINING", "MAIL": "250 ok",
		"RCPT": "550 5.1.1 no such user", "DATA": "354 go on"})
	s := sender(t, settings)
	for range 2 {
		if f := fail(t, t.Context(), s, message("hello")); f.Outcome != send.Permanent || f.Code != "smtp_550_5.1.1" {
			t.Errorf("%+v", f)
		}
		if text := <-heard; text != "EHLO here\nMAIL FROM:<no-reply@shop.example>\nRCPT "+
			"TO:<ada@customer.example>\nDATA\n" {
			t.Errorf("the server received %q", text)
		}
	}
	if s.Idle() != 0 {
		t.Error("a closed connection is in the pool")
	}
}

func TestRSETAfterARefusal(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		hello, data := "250 hello", ""
		if together {
			hello, data = "250-hello\r\n250 PIPELINING", "DATA\n"
		}
		settings, heard := scripted(t, map[string]string{"EHLO": hello, "MAIL": "250 ok", "RCPT": "450 4.2.0 later",
			"DATA": "503 to whom?", "RSET": "250 ok", "QUIT": "221 bye"})
		s := sender(t, settings)
		for range 2 {
			if f := fail(t, t.Context(), s, message("hello")); f.Outcome != send.Temporary ||
				f.Code != "smtp_450_4.2.0" {
				t.Errorf("%+v", f)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		const one = "MAIL FROM:<no-reply@shop.example>\nRCPT TO:<ada@customer.example>\n"
		if text := <-heard; text != "EHLO here\n"+one+data+"RSET\n"+one+data+"QUIT\n" {
			t.Errorf("the server received %q", text)
		}
	}
}
