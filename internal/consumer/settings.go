package consumer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// Settings is one consumer's entry in the file.
type Settings struct {
	Name   string `yaml:"name"`   // in logs and metrics; default: broker and group
	Broker string `yaml:"broker"` // kafka, nats or rabbitmq
	URL    string `yaml:"url"`    // ${NAME} is replaced by an environment variable
	// Authentication for Kafka; other brokers have it in the URL.
	TLS      bool   `yaml:"tls"`
	SASL     string `yaml:"sasl"` // plain, scram-sha-256 or scram-sha-512; empty: no password
	Username string `yaml:"username"`
	Password string `yaml:"password"` // may contain ${NAME}, like the URL
	// The broker's destination to consume from.
	Topics  []string `yaml:"topics"`  // kafka
	Stream  string   `yaml:"stream"`  // nats: a JetStream stream
	Subject string   `yaml:"subject"` // nats: filter within the stream; may be empty
	Queue   string   `yaml:"queue"`   // rabbitmq

	Group  string `yaml:"group"`  // consumer group in the inbox, in Kafka, and name of JetStream's durable
	Tenant string `yaml:"tenant"` // the tenant to act for
	// MessageID is the source of message ids: "position" (topic-partition-offset), "header:NAME", "field:NAME"
	// (of the body; a.b for a nested field), or "broker": the broker's or its client's message id.
	MessageID string `yaml:"message_id"`
	// Request is the request type of the bodies. Empty: ExecuteRequest, or the type in "@type".
	Request string `yaml:"request"`

	MaxAttempts   int32         `yaml:"max_attempts"`
	Backoff       time.Duration `yaml:"backoff"`
	MaxBackoff    time.Duration `yaml:"max_backoff"`
	ContentLife   time.Duration `yaml:"content_life"`
	Life          time.Duration `yaml:"life"`           // 0: forever
	RetryRefusals bool          `yaml:"retry_refusals"` // otherwise a refused message is dead immediately
}

// Supported brokers.
const (
	Kafka    = "kafka"
	NATS     = "nats"
	RabbitMQ = "rabbitmq"
)

// ReadFile reads a consumer file: YAML, or JSON, which is a subset of YAML.
func ReadFile(name string) ([]*Settings, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Consumers []*Settings `yaml:"consumers"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(file.Consumers) == 0 {
		return nil, fmt.Errorf("%s: there are no consumers", name)
	}
	names, requests := map[string]bool{}, map[[2]string]string{}
	for i, s := range file.Consumers {
		if s == nil {
			s = &Settings{}
		}
		if err := s.complete(); err != nil {
			return nil, fmt.Errorf("%s: consumers[%d]: %w", name, i, err)
		}
		if names[s.Name] {
			return nil, fmt.Errorf("%s: consumers[%d]: another consumer has the name %s", name, i, s.Name)
		}
		names[s.Name] = true
		// A requeued message is run by the first consumer of its group.
		group := [2]string{s.Tenant, s.Group}
		if request, ok := requests[group]; ok && request != s.Request {
			return nil, fmt.Errorf("%s: consumers[%d]: request: another consumer of the group %s has another request",
				name, i, s.Group)
		}
		requests[group] = s.Request
	}
	return file.Consumers, nil
}

// complete validates the settings and fills in defaults.
func (s *Settings) complete() error {
	needs := map[string]string{"url": s.URL, "group": s.Group, "tenant": s.Tenant}
	switch s.Broker {
	case Kafka:
		needs["topics"] = strings.Join(s.Topics, ",")
	case NATS:
		needs["stream"] = s.Stream
	case RabbitMQ:
		needs["queue"] = s.Queue
	default:
		return fmt.Errorf("broker: must be %s, %s or %s, not %q", Kafka, NATS, RabbitMQ, s.Broker)
	}
	for _, field := range []string{"url", "group", "tenant", "topics", "stream", "queue"} {
		if value, needed := needs[field]; needed && value == "" {
			return fmt.Errorf("%s: is missing", field)
		}
	}
	if len(s.Group) > 128 {
		return errors.New("group: has more than 128 bytes")
	}
	if err := s.checkEntry(); err != nil {
		return err
	}
	if s.Request != "" && !rpc.IsRequest(s.Request) {
		return fmt.Errorf("request: %s is not the request of a mutation", s.Request)
	}
	if err := s.checkID(); err != nil {
		return err
	}
	return s.defaults()
}

// SASL mechanisms.
const (
	Plain       = "plain"
	ScramSHA256 = "scram-sha-256"
	ScramSHA512 = "scram-sha-512"
)

// checkEntry validates authentication.
func (s *Settings) checkEntry() error {
	var unset []string
	for _, text := range []*string{&s.URL, &s.Password} {
		*text = os.Expand(*text, func(name string) string {
			value, ok := os.LookupEnv(name)
			if !ok {
				unset = append(unset, name)
			}
			return value
		})
	}
	switch {
	case unset != nil:
		return fmt.Errorf("url, password: the environment variable %s is not set", strings.Join(unset, ", "))
	case s.Broker != Kafka && (s.TLS || s.SASL != "" || s.Username != "" || s.Password != ""):
		return errors.New("tls, sasl, username, password: only for Kafka; for other brokers put them into url")
	case !slices.Contains([]string{"", Plain, ScramSHA256, ScramSHA512}, s.SASL):
		return fmt.Errorf("sasl: must be %s, %s or %s, not %q", Plain, ScramSHA256, ScramSHA512, s.SASL)
	case (s.SASL == "") != (s.Username == ""):
		return errors.New("sasl, username: set both or neither")
	}
	return nil
}

func (s *Settings) checkID() error {
	how, name, named := strings.Cut(s.MessageID, ":")
	switch {
	case s.MessageID == "":
		s.MessageID = map[string]string{Kafka: "position", NATS: "position", RabbitMQ: "broker"}[s.Broker]
	case s.MessageID == "position" && s.Broker == RabbitMQ:
		return errors.New("message_id: RabbitMQ has no positions; use header:NAME, field:NAME or broker")
	case s.MessageID == "broker" && s.Broker == Kafka:
		return errors.New("message_id: Kafka has no message ids; use header:NAME, field:NAME or position")
	case !slices.Contains([]string{"position", "broker"}, s.MessageID) &&
		(!named || name == "" || how != "header" && how != "field"):
		return fmt.Errorf("message_id: must be position, broker, header:NAME or field:NAME, not %q", s.MessageID)
	}
	return nil
}

func (s *Settings) defaults() error {
	if s.Name == "" {
		s.Name = s.Broker + "/" + s.Group
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = inbox.DefaultMaxAttempts
	}
	for _, d := range []struct {
		field     string
		value     *time.Duration
		byDefault time.Duration
		least     time.Duration
	}{
		{"backoff", &s.Backoff, inbox.DefaultBackoff, time.Millisecond},
		{"max_backoff", &s.MaxBackoff, max(inbox.DefaultMaxBackoff, s.Backoff), time.Millisecond},
		{"content_life", &s.ContentLife, inbox.DefaultContentLife, time.Second},
		{"life", &s.Life, 0, time.Minute},
	} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
		if *d.value != 0 && *d.value < d.least {
			return fmt.Errorf("%s: must be at least %v", d.field, d.least)
		}
	}
	switch {
	case s.MaxAttempts < 1 || s.MaxAttempts > 1000:
		return errors.New("max_attempts: must be 1 to 1000")
	case s.MaxBackoff < s.Backoff:
		return errors.New("max_backoff: must not be less than backoff")
	case s.Backoff > 24*time.Hour, s.MaxBackoff > 7*24*time.Hour, s.ContentLife > 365*24*time.Hour,
		s.Life > 3650*24*time.Hour:
		return errors.New("backoff must be at most a day, max_backoff a week, content_life a year, and life ten years")
	}
	return nil
}
