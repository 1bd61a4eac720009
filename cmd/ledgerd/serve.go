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
	SecretsFile   string        `help:"File with the master key, 32 bytes in base64, readable by this user only. Alternatively set LEDGERD_SECRET to the key. Without a master key, messages are refused." type:"path" env:"LEDGERD_SECRETS_FILE"`
	PhoneRegion   string        `help:"Default country of phone numbers without a country code, such as CN." env:"LEDGERD_PHONE_REGION"`
	TraceURL      string        `help:"Send OpenTelemetry traces to this OTLP/HTTP address, such as http://127.0.0.1:4318. Empty: off." env:"LEDGERD_TRACE_URL"`
}

type serveCmd struct {
	serverFlags
	DatabaseURL string `required:"" help:"URL of the Postgres database, with a login role that is a member of ledgerd_app only." env:"DATABASE_URL"`
}

func (c *serveCmd) Run(e *env) error {
	if err := pg.CheckSchema(e.ctx, c.DatabaseURL); err != nil {
		return err
	}
	return c.serve(e, c.DatabaseURL, nil, nil, func(*server.Server) error { return nil })
}

// serve runs a server until shutdown. ready is called once it listens.
//
// senders serve the channels that the provider file does not name; nil: none.
func (f *serverFlags) serve(e *env, databaseURL string, anyone *access.Identity, senders *provider.File,
	ready func(*server.Server) error) error {
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
	master, err := f.master()
	if err != nil {
		return err
	}
	if f.PhoneRegion != "" && !recipient.Region(f.PhoneRegion) {
		return fmt.Errorf("--phone-region %s: must be a country code of two capital letters, such as CN", f.PhoneRegion)
	}
	s, err := server.Start(e.ctx, server.Options{DatabaseURL: databaseURL, Listen: f.Listen,
		MetricsListen: f.MetricsListen,
		Anyone:        anyone, Origins: f.CORSOrigin, KeyLife: f.KeyLife, DrainTimeout: f.DrainTimeout,
		Traces:  f.TraceURL != "",
		Consume: consumers, Notify: senders, Pay: gateways,
		Webhooks: urls, Secret: master, Region: f.PhoneRegion, Log: e.log})
	if err != nil {
		if errors.Is(err, pg.ErrTooPowerful) || errors.Is(err, pg.ErrNoRights) {
			return fmt.Errorf("%w; for example: create role ledgerd login password '...' in role ledgerd_app", err)
		}
		return err
	}
	defer s.Stop()
	e.log.Info("listening", "address", s.Addr())
	if err := ready(s); err != nil {
		return err
	}
	<-e.ctx.Done()
	e.log.Info("shutting down: waiting for calls in flight")
	return nil
}

// master reads the master key; nil if there is none.
func (f *serverFlags) master() (*secret.Master, error) {
	text := os.Getenv("LEDGERD_SECRET")
	switch {
	case text != "" && f.SecretsFile != "":
		return nil, errors.New("--secrets-file and LEDGERD_SECRET are both set: set only one of them")
	case text != "":
		m, err := secret.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("LEDGERD_SECRET: %w", err)
		}
		return m, nil
	case f.SecretsFile != "":
		return secret.ReadFile(f.SecretsFile)
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
