package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/server"
)

// serverFlags are common to dev and serve.
type serverFlags struct {
	Listen        string        `help:"Address to listen on, host:port." default:"127.0.0.1:8080" env:"LEDGERD_LISTEN"`
	MetricsListen string        `help:"Address for /metrics and /debug/pprof, host:port. They need no API key, so keep it private." env:"LEDGERD_METRICS_LISTEN"`
	KeyLife       time.Duration `help:"Life of request keys (Idempotency-Key)." default:"24h" env:"LEDGERD_KEY_LIFE"`
	CORSOrigin    []string      `name:"cors-origin" help:"Origin of web pages that may call the server, such as https://shop.example.com." env:"LEDGERD_CORS_ORIGIN"`
	DrainTimeout  time.Duration `help:"How long calls in flight and attempts to send messages may take at shutdown." default:"15s" env:"LEDGERD_DRAIN_TIMEOUT"`
	Consume       string        `help:"YAML file of consumers of message brokers (docs/consumers.md). Empty: none." type:"existingfile" env:"LEDGERD_CONSUME"`
	Notify        string        `help:"YAML file of providers of messages (docs/providers.md). Empty: only webhooks are sent." type:"existingfile" env:"LEDGERD_NOTIFY"`
	Pay           string        `help:"YAML file of payment gateways (docs/gateways.md). Empty: none." type:"existingfile" env:"LEDGERD_PAY"`
	SecretsFile   string        `help:"File with the master keys, each 32 bytes in base64, one a line, the newest first, readable by this user only. Alternatively set LEDGERD_SECRET to the keys. Without a master key, messages are refused." type:"path" env:"LEDGERD_SECRETS_FILE"`
	PhoneRegion   string        `help:"Default country of phone numbers without a country code, such as CN." env:"LEDGERD_PHONE_REGION"`
	TraceURL      string        `help:"Send OpenTelemetry traces to this OTLP/HTTP address, such as http://127.0.0.1:4318. Empty: off." env:"LEDGERD_TRACE_URL"`
}

type serveCmd struct {
	serverFlags
	TLSCert     string `name:"tls-cert" help:"PEM file of the server's certificate and intermediate ones: connections use TLS (docs/security.md). Read again when it changes." type:"existingfile" env:"LEDGERD_TLS_CERT"`
	TLSKey      string `name:"tls-key" help:"PEM file of the certificate's private key." type:"existingfile" env:"LEDGERD_TLS_KEY"`
	TLSClientCA string `name:"tls-client-ca" help:"PEM file of authorities whose client certificates identify callers, instead of an API key. Needs --tls-cert." type:"existingfile" env:"LEDGERD_TLS_CLIENT_CA"`
	OIDC        string `name:"oidc" help:"YAML file of OpenID Connect issuers whose tokens identify callers, beside API keys (docs/security.md). Empty: none." type:"existingfile" env:"LEDGERD_OIDC"`
	DatabaseURL string `required:"" help:"URL of the Postgres database, with a login role that is a member of ledgerd_app only." env:"DATABASE_URL"`

	AdminDatabaseURL string `help:"URL of the same database, with a login role that is a member of ledgerd_admin only: turns AdminService on. Empty: off." env:"LEDGERD_ADMIN_DATABASE_URL"`
}

func (c *serveCmd) Run(e *env) error {
	if err := pg.CheckSchema(e.ctx, c.DatabaseURL); err != nil {
		return err
	}
	o := server.Options{DatabaseURL: c.DatabaseURL, AdminDatabaseURL: c.AdminDatabaseURL}
	if c.TLSCert+c.TLSKey+c.TLSClientCA != "" {
		if c.TLSCert == "" || c.TLSKey == "" {
			return errors.New("--tls-cert and --tls-key: set both, or neither; --tls-client-ca needs both")
		}
		o.TLS = &server.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA}
	}
	if c.OIDC != "" {
		var err error
		if o.Issuers, err = access.ReadIssuers(c.OIDC); err != nil {
			return err
		}
	}
	return c.serve(e, o, nil, func(*server.Server) error { return nil })
}

// serve runs a server until shutdown, with the given options and those of the flags. ready is called once it listens.
//
// senders serve the channels that the provider file does not name; nil: none.
func (f *serverFlags) serve(e *env, o server.Options, senders *provider.File, ready func(*server.Server) error) error {
	limitMemory()
	endTraces, err := startTraces(e.ctx, f.TraceURL, e.log)
	if err != nil {
		return err
	}
	defer endTraces()
	var consumers []*consumer.Settings
	if f.Consume != "" {
		if consumers, err = consumer.ReadFile(f.Consume); err != nil {
			return err
		}
	}
	if f.Notify != "" {
		named, err := provider.ReadFile(f.Notify)
		if err != nil {
			return err
		}
		senders = named.WithDefaults(senders)
	}
	var gateways *gateway.File
	if f.Pay != "" {
		if gateways, err = gateway.ReadFile(f.Pay, dialects.All); err != nil {
			return err
		}
	}
	urls, err := senders.URLPolicy()
	if err != nil {
		return err
	}
	master, err := readMaster(f.SecretsFile)
	if err != nil {
		return err
	}
	if f.PhoneRegion != "" && !recipient.Region(f.PhoneRegion) {
		return fmt.Errorf("--phone-region %s: must be a country code of two capital letters, such as CN", f.PhoneRegion)
	}
	o.Listen, o.MetricsListen, o.Origins = f.Listen, f.MetricsListen, f.CORSOrigin
	o.KeyLife, o.DrainTimeout, o.Traces = f.KeyLife, f.DrainTimeout, f.TraceURL != ""
	o.Consume, o.Notify, o.Pay, o.Webhooks = consumers, senders, gateways, urls
	o.Secret, o.Region, o.Log = master, f.PhoneRegion, e.log
	s, err := server.Start(e.ctx, o)
	if err != nil {
		if errors.Is(err, pg.ErrAdminExcessRights) || errors.Is(err, pg.ErrNoAdminRights) {
			return fmt.Errorf("%w; for example: create role ledgerd_boss login password '...' in role ledgerd_admin",
				err)
		}
		if errors.Is(err, pg.ErrExcessRights) || errors.Is(err, pg.ErrNoRights) {
			return fmt.Errorf("%w; for example: create role ledgerd_server login password '...' in role ledgerd_app",
				err)
		}
		return err
	}
	defer s.Stop()
	e.log.Info("listening", "address", s.Addr(), "tls", o.TLS != nil)
	if err := ready(s); err != nil {
		return err
	}
	<-e.ctx.Done()
	e.log.Info("shutting down: waiting for calls in flight")
	return nil
}

// readMaster reads the master keys; nil if there are none.
func readMaster(file string) (*secret.Master, error) {
	text := os.Getenv("LEDGERD_SECRET")
	switch {
	case text != "" && file != "":
		return nil, errors.New("--secrets-file and LEDGERD_SECRET are both set: set only one of them")
	case text != "":
		m, err := secret.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("LEDGERD_SECRET: %w", err)
		}
		return m, nil
	case file != "":
		return secret.ReadFile(file)
	}
	return nil, nil
}

type migrateCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database, with a role that may create roles or is a member of ledgerd_owner." env:"DATABASE_URL"`
}

func (c *migrateCmd) Run(e *env) error {
	if err := pg.Migrate(e.ctx, c.DatabaseURL); err != nil {
		return err
	}
	fmt.Fprintln(e.out, "the schema is up to date")
	return nil
}
