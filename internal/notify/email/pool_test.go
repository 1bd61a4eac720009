package email_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	s := sender(t, config(server))
	for range 50 {
		deliver(t, s, message("hello"))
	}
	// A refusal does not close the connection.
	server.Do(emailtest.Rcpt, "550 5.1.1 no such user")
	fail(t, t.Context(), s, message("hello"))
	server.Do(emailtest.Rcpt, "")
	deliver(t, s, message("hello"))
	if n, c := len(server.Messages()), server.Count("connection"); n != 51 || c != 1 {
		t.Errorf("%d messages over %d connections", n, c)
	}
}

func TestStaleConnectionsAreReplacedAtOnce(t *testing.T) {
	t.Parallel()
	for _, serial := range []bool{false, true} {
		server := emailtest.Start(t, emailtest.Options{Serial: serial})
		s := sender(t, config(server))
		var both sync.WaitGroup
		server.Do(emailtest.End, "slow 200ms") // forces two connections
		for range 2 {
			both.Go(func() {
				if _, err := s.Send(t.Context(), message("hello")); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		server.Restart()
		for range 2 {
			deliver(t, s, message("hello"))
		}
		server.Do(emailtest.Mail, "421 4.4.2 idle timeout")
		if f := fail(t, t.Context(), s, message("hello")); f.Outcome != send.Temporary {
			t.Errorf("%+v", f)
		}
		server.Do(emailtest.Mail, "")
		deliver(t, s, message("hello"))
		if n := len(server.Messages()); n != 5 {
			t.Errorf("%d messages", n)
		}
	}
}

func TestConnectionsAreClosedAfterUseAndIdleness(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	c := config(server)
	c.PerConnection = 2
	s := sender(t, c)
	for range 5 {
		deliver(t, s, message("hello"))
	}
	if n := server.Count("connection"); n != 3 {
		t.Errorf("%d connections for five messages, at most two each", n)
	}
	server = emailtest.Start(t, emailtest.Options{})
	c = config(server)
	c.Idle = time.Millisecond
	s = sender(t, c)
	before := server.Count("connection")
	for s.Idle() > 0 || server.Count("connection") < before+2 {
		deliver(t, s, message("hello"))
		for start := time.Now(); s.Idle() > 0; {
			if time.Since(start) > 10*time.Second {
				t.Fatal("an idle connection was not closed")
			}
		}
	}
	server.Wait("gone")
}

func TestConcurrentMessagesArriveOnce(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	c := config(server)
	c.Connections = 4
	s := sender(t, c)
	const callers, each = 32, 20
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range each {
				m := message(strings.Repeat("hello ", 1+j*50))
				m.Key = fmt.Sprintf("k-%d-%d", i, j)
				if _, err := s.Send(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for _, m := range server.Messages() {
		_, after, _ := bytes.Cut(m.Text, []byte("Message-ID: <"))
		id, _, _ := bytes.Cut(after, []byte("@"))
		seen[string(id)]++
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
	if n := server.Count("connection"); len(seen) != callers*each || n > c.Connections {
		t.Errorf("%d messages over %d connections", len(seen), n)
	}
}

func TestCloseLeavesNoConnection(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	s := sender(t, config(server))
	deliver(t, s, message("hello"))
	if err := s.Close(); err != nil || s.Idle() != 0 {
		t.Errorf("%v, %d connections", err, s.Idle())
	}
	deliver(t, s, message("hello")) // while another Send may still run
	if s.Idle() != 0 {
		t.Errorf("%d connections", s.Idle())
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	secret := func() (string, error) { return "x", nil }
	for _, c := range []struct {
		change func(*email.Config)
		want   string
	}{
		{func(c *email.Config) { c.Host = "" }, "host:"},
		{func(c *email.Config) { c.TLS = "ssl" }, "tls:"},
		{func(c *email.Config) { c.Host = "mail.shop.example" }, "tls: none is only allowed for servers"},
		{func(c *email.Config) { c.Port = 70000 }, "port:"},
		{func(c *email.Config) { c.From = "" }, "from:"},
		{func(c *email.Config) { c.From = "a@b.example\r\nBcc: x@y.example" }, "from:"},
		{func(c *email.Config) { c.From = "jörg@shop.example" }, "from, envelope:"},
		{func(c *email.Config) { c.ReplyTo = "nobody" }, "reply_to:"},
		{func(c *email.Config) { c.Envelope = "nobody" }, "envelope:"},
		{func(c *email.Config) { c.Identities = map[int32]email.Identity{4: {From: "x"}} }, "tenant 4: from:"},
		{func(c *email.Config) { c.Auth = "ntlm" }, "auth:"},
		{func(c *email.Config) { c.Auth = email.Plain }, "auth: requires"},
		{func(c *email.Config) { c.Username = "x" }, "username, password:"},
		{func(c *email.Config) { c.Password = secret }, "username, password:"},
		{func(c *email.Config) { c.KeyHeader = "X: y" }, "key_header:"},
		{func(c *email.Config) { c.Hello = "a b" }, "hello:"},
		{func(c *email.Config) { c.Connections = -1 }, "connections:"},
		{func(c *email.Config) { c.PerConnection = -1 }, "per_connection:"},
		{func(c *email.Config) { c.Idle = -1 }, "idle"},
		{func(c *email.Config) { c.DKIM = &email.DKIM{Domain: "x", Selector: "y"} }, "dkim:"},
	} {
		settings := email.Config{Host: "127.0.0.1", TLS: email.None, Identity: email.Identity{From: "a@shop.example"}}
		if _, err := email.New(settings); err != nil {
			t.Fatal(err)
		}
		c.change(&settings)
		if _, err := email.New(settings); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
