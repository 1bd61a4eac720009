package provider

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"

	"github.com/ledgerd/ledgerd/internal/notify/email"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/settings"
)

// smtpSettings are the settings of kind smtp.
type smtpSettings struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	TLS        string `json:"tls"`
	Insecure   bool   `json:"insecure"`
	CA         string `json:"ca"` // CA certificates, PEM; empty: the system's
	ServerName string `json:"server_name"`
	Hello      string `json:"hello"`

	Auth     string `json:"auth"`
	Username string `json:"username"`
	Password string `json:"password"`

	From     string `json:"from"`
	ReplyTo  string `json:"reply_to"`
	Envelope string `json:"envelope"`

	KeyHeader string        `json:"key_header"`
	DKIM      *dkimSettings `json:"dkim"`

	ReportSecret string      `json:"report_secret"`
	Reports      report.JSON `json:"reports"`

	Idle          settings.Duration `json:"idle"`
	PerConnection int               `json:"per_connection"`
	Timeouts      struct {
		Connect settings.Duration `json:"connect"`
		Command settings.Duration `json:"command"`
		Data    settings.Duration `json:"data"`
		Submit  settings.Duration `json:"submit"`
	} `json:"timeouts"`
}

type dkimSettings struct {
	Domain   string `json:"domain"`
	Selector string `json:"selector"`
	Key      string `json:"key"` // PEM
}

func checkSMTP(s *Settings, options map[string]any) error {
	_, err := buildSMTP(nil, s, options, nil) // New does not connect
	return err
}

func buildSMTP(_ *Env, s *Settings, options map[string]any, others map[int32]map[string]any) (send.Sender, error) {
	var o smtpSettings
	if err := settings.Decode(options, &o); err != nil {
		return nil, err
	}
	c := email.Config{Host: o.Host, Port: o.Port, TLS: o.TLS, Insecure: o.Insecure, ServerName: o.ServerName,
		Hello: o.Hello,
		Auth:  o.Auth, Username: o.Username,
		Identity:  email.Identity{From: o.From, ReplyTo: o.ReplyTo, Envelope: o.Envelope},
		KeyHeader: o.KeyHeader, ReportSecret: o.ReportSecret, Reports: o.Reports, Connections: s.Concurrency,
		Idle: o.Idle.Value(), PerConnection: o.PerConnection,
		Timeouts: email.Timeouts{Connect: o.Timeouts.Connect.Value(), Command: o.Timeouts.Command.Value(),
			Data:   o.Timeouts.Data.Value(),
			Submit: o.Timeouts.Submit.Value()}}
	if o.Password != "" {
		// Resolve the reference for every login: a file may change, for example with an access token.
		written, _ := options["password"].(string)
		c.Password = func() (string, error) { return settings.Reference(written) }
	}
	if o.CA != "" {
		c.Roots = x509.NewCertPool()
		if !c.Roots.AppendCertsFromPEM([]byte(o.CA)) {
			return nil, errors.New("ca: has no certificate")
		}
	}
	var err error
	if c.DKIM, err = o.DKIM.read(); err != nil {
		return nil, err
	}
	for tenant, options := range others {
		var other smtpSettings
		if err := settings.Decode(options, &other); err != nil {
			return nil, err
		}
		if c.Identities == nil {
			c.Identities = map[int32]email.Identity{}
		}
		c.Identities[tenant] = email.Identity{From: other.From, ReplyTo: other.ReplyTo, Envelope: other.Envelope}
	}
	sender, err := email.New(c)
	if err != nil {
		return nil, err // not sender: a nil *Sender in a send.Sender is not nil
	}
	return sender, nil
}

func (d *dkimSettings) read() (*email.DKIM, error) {
	if d == nil {
		return nil, nil
	}
	block, _ := pem.Decode([]byte(d.Key))
	if block == nil {
		return nil, errors.New("dkim.key: is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if key, err = x509.ParsePKCS1PrivateKey(block.Bytes); err != nil {
			return nil, errors.New("dkim.key: must be an RSA or Ed25519 private key")
		}
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("dkim.key: cannot sign")
	}
	return &email.DKIM{Domain: d.Domain, Selector: d.Selector, Key: signer}, nil
}
