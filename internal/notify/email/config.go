package email

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net/mail"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/settings"
)

const (
	StartTLS = "starttls" // plaintext until STARTTLS, which is required
	Implicit = "implicit" // TLS from the first byte
	None     = "none"     // no TLS: only to this machine, unless Config.Insecure
)

// Authentication mechanisms. By default the strongest one is used that the server offers and that needs only a
// password.
const (
	Plain       = "plain"
	Login       = "login"
	ScramSHA1   = "scram-sha-1"
	ScramSHA256 = "scram-sha-256"
	XOAuth2     = "xoauth2" // the password is an access token
)

// Config configures an SMTP server and the sender's identity.
type Config struct {
	Host string
	Port int    // 0: 587, or 465 with Implicit
	TLS  string // default StartTLS
	// Insecure allows None, and passwords in plaintext, to other machines.
	Insecure bool
	Roots    *x509.CertPool // nil: the system's
	// ServerName is the name expected in the certificate; empty: Host.
	ServerName string
	Hello      string // EHLO name; empty: the host name

	Auth     string // empty: chosen from what the server offers, if Username is set
	Username string
	// Password is called for every login, because access tokens change.
	Password func() (string, error)

	// Identity is the default identity. Identities override it by tenant; empty fields fall back to Identity.
	Identity
	Identities map[int32]Identity

	// KeyHeader is the header field for the message's key, for providers that deduplicate by it, such as
	// Resend-Idempotency-Key. Empty: none.
	KeyHeader string
	DKIM      *DKIM

	// ReportSecret is the last part of the path to which bounces are posted; empty: bounces are refused. It also signs
	// Message-IDs, which prevents forged bounces. Reports describes bounces in JSON.
	ReportSecret string
	Reports      report.JSON

	// Connections limits concurrent connections; default 10.
	Connections int
	// Idle is how long an unused connection stays open; default 30 s. Servers close idle connections after some
	// minutes.
	Idle time.Duration
	// PerConnection limits the messages per connection; default 1000.
	PerConnection int
	Timeouts      Timeouts
}

// Identity is the sender of messages.
type Identity struct {
	From     string // address with or without a name, such as Shop <no-reply@shop.example>
	ReplyTo  string // may be empty
	Envelope string // address for bounces; empty: the address of From
}

// DKIM is the key that signs messages.
type DKIM struct {
	Domain   string
	Selector string
	Key      crypto.Signer // ed25519.PrivateKey or *rsa.PrivateKey
}

// Timeouts of the phases. Zero means the default, which is shorter than RFC 5321 suggests, because the outbox retries.
type Timeouts struct {
	Connect time.Duration // TCP, TLS, greeting and login: 10 s
	Command time.Duration // each reply before the message: 10 s
	Data    time.Duration // transmission of the message: 20 s
	Submit  time.Duration // reply to the message: 30 s
}

// identity is a parsed Identity.
type identity struct {
	from, replyTo *mail.Address
	envelope      string
	domain        string // of from, used in Message-IDs
}

// complete validates the configuration and sets defaults. Errors begin with the name of the setting.
func (c *Config) complete() error {
	if c.Host == "" {
		return errors.New("host: is missing")
	}
	if err := c.completeTLS(); err != nil {
		return err
	}
	if c.Hello == "" {
		if c.Hello, _ = os.Hostname(); c.Hello == "" {
			c.Hello = "localhost"
		}
	}
	if strings.ContainsFunc(c.Hello, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("hello: must be printable ASCII without spaces")
	}
	switch {
	case !slices.Contains([]string{"", Plain, Login, ScramSHA1, ScramSHA256, XOAuth2}, c.Auth):
		return fmt.Errorf("auth: must be %s, %s, %s, %s or %s, not %q", Plain, Login, ScramSHA1, ScramSHA256, XOAuth2,
			c.Auth)
	case (c.Username == "") != (c.Password == nil):
		return errors.New("username, password: set both or neither")
	case c.Auth != "" && c.Username == "":
		return errors.New("auth: requires username and password")
	case c.KeyHeader != "" && !isToken(c.KeyHeader):
		return fmt.Errorf("key_header: %q is not the name of a header field", c.KeyHeader)
	case c.Connections < 0 || c.Connections > 1000:
		return errors.New("connections: must be 1 to 1000")
	case c.PerConnection < 0:
		return errors.New("per_connection: must be at least 1")
	}
	if err := c.DKIM.check(); err != nil {
		return err
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{
		{&c.Idle, 30 * time.Second}, {&c.Timeouts.Connect, 10 * time.Second}, {&c.Timeouts.Command, 10 * time.Second},
		{&c.Timeouts.Data, 20 * time.Second}, {&c.Timeouts.Submit, 30 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
		if *d.value < 0 {
			return errors.New("idle, timeouts: must not be negative")
		}
	}
	if c.Connections == 0 {
		c.Connections = 10
	}
	if c.PerConnection == 0 {
		c.PerConnection = 1000
	}
	return nil
}

func (c *Config) completeTLS() error {
	if c.TLS == "" {
		c.TLS = StartTLS
	}
	if c.Port == 0 {
		c.Port = 587
		if c.TLS == Implicit {
			c.Port = 465
		}
	}
	if c.ServerName == "" {
		c.ServerName = c.Host
	}
	switch {
	case c.Port < 0 || c.Port > 65535:
		return errors.New("port: must be 1 to 65535")
	case !slices.Contains([]string{StartTLS, Implicit, None}, c.TLS):
		return fmt.Errorf("tls: must be %s, %s or %s, not %q", StartTLS, Implicit, None, c.TLS)
	case c.TLS == None && !c.Insecure && !settings.Loopback(c.Host):
		return errors.New("tls: none is only allowed for servers on this machine; insecure: true allows it for others")
	}
	return nil
}

func (d *DKIM) check() error {
	if d == nil {
		return nil
	}
	switch key := d.Key.(type) {
	case ed25519.PrivateKey:
	case *rsa.PrivateKey:
		if key.N.BitLen() < 1024 {
			return errors.New("dkim: the key has fewer than 1024 bits")
		}
	default:
		return errors.New("dkim: the key must be RSA or Ed25519")
	}
	if d.Domain == "" || d.Selector == "" {
		return errors.New("dkim: domain and selector are required")
	}
	return nil
}

// parse validates an identity, with empty fields from fallback.
func (i Identity) parse(fallback Identity) (*identity, error) {
	if i.From == "" {
		i.From = fallback.From
		if i.Envelope == "" {
			i.Envelope = fallback.Envelope
		}
	}
	if i.ReplyTo == "" {
		i.ReplyTo = fallback.ReplyTo
	}
	from, err := parseAddress(i.From)
	if err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	out := &identity{from: from, envelope: from.Address}
	out.domain = from.Address[strings.LastIndexByte(from.Address, '@')+1:]
	if i.ReplyTo != "" {
		if out.replyTo, err = parseAddress(i.ReplyTo); err != nil {
			return nil, fmt.Errorf("reply_to: %w", err)
		}
	}
	if i.Envelope != "" {
		envelope, err := parseAddress(i.Envelope)
		if err != nil {
			return nil, fmt.Errorf("envelope: %w", err)
		}
		out.envelope = envelope.Address
	}
	for _, a := range []string{from.Address, out.envelope} {
		if !isASCII(a) {
			return nil, errors.New("from, envelope: the part before the @ must be ASCII")
		}
	}
	return out, nil
}
