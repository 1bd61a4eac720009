package consumer_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/consumer"
)

func read(t *testing.T, text string) ([]*consumer.Settings, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "consumers.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return consumer.ReadFile(file)
}

func TestTheDocumentedFileIsValid(t *testing.T) {
	page, err := os.ReadFile("../../docs/consumers.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("the page has no example file")
	}
	all, err := read(t, block[1])
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	k, n, r := all[0], all[1], all[2]
	if k.Name != "kafka/billing" || k.MessageID != "position" || k.MaxAttempts != 10 || k.Backoff != time.Second ||
		k.MaxBackoff != time.Hour ||
		k.ContentLife != 48*time.Hour || k.Life != 0 || k.RetryRefusals {
		t.Errorf("%+v", k)
	}
	if n.MessageID != "broker" || r.MessageID != "field:event.id" || r.MaxAttempts != 20 ||
		r.Backoff != 500*time.Millisecond || !r.RetryRefusals {
		t.Errorf("%+v, %+v", n, r)
	}
	for _, field := range regexp.MustCompile("(?m)^\\| `([a-z_`, ]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(strings.ReplaceAll(field[1], "`", ""), ", ") {
			if _, err := read(t, "consumers: [{"+name+": }]"); err == nil ||
				strings.Contains(err.Error(), "not found") {
				t.Errorf("the page documents a field %s: %v", name, err)
			}
		}
	}
}

func TestMistakesInTheFileAreReported(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "secret")
	const good = "broker: nats\n    url: nats://u:${NATS_PASSWORD}@h\n    stream: s\n    group: g\n    tenant: t\n"
	all, err := read(t, "consumers:\n  - "+good)
	if err != nil || all[0].URL != "nats://u:secret@h" {
		t.Fatalf("%v, %v", all, err)
	}
	if all, err := read(t, `{"consumers": [{"broker": "rabbitmq", "url": "u", "queue": "q", "group": "g", "tenant": `+
		`"t", "backoff": "2h"}]}`); err != nil ||
		all[0].MaxBackoff != 2*time.Hour || all[0].MessageID != "broker" {
		t.Errorf("JSON: %v, %v", all, err)
	}
	const kafka = "consumers:\n  - broker: kafka\n    url: h:1\n    topics: [t]\n    group: g\n    tenant: t\n"
	all, err = read(t, kafka+"    tls: true\n    sasl: scram-sha-512\n    username: u\n    password: "+
		"${NATS_PASSWORD}\n")
	if err != nil || all[0].Password != "secret" || !all[0].TLS {
		t.Errorf("%v, %v", all, err)
	}
	for text, want := range map[string]string{
		kafka + "    sasl: md5\n    username: u":    "sasl: must be",
		kafka + "    username: u":                   "sasl, username",
		kafka + "    sasl: plain":                   "sasl, username",
		"consumers:\n  - " + good + "    tls: true": "only for Kafka",
		"":                              "there are no consumers",
		"consumers:\n  -":               "broker: must be",
		"consumers:\n  - broker: redis": "broker: must be",
		"consumers:\n  - broker: kafka\n    url: u":                                    "group: is missing",
		"consumers:\n  - broker: kafka\n    url: u\n    group: g\n    tenant: t":       "topics: is missing",
		"consumers:\n  - " + good + "    colour: red":                                  "colour",
		"consumers:\n  - " + good + "    message_id: offset":                           "message_id: must be",
		"consumers:\n  - " + good + "    message_id: 'header:'":                        "message_id: must be",
		"consumers:\n  - " + good + "    request: ledgerd.ledger.v1.GetBalanceRequest": "request:",
		"consumers:\n  - " + good + "    max_attempts: 1001":                           "max_attempts: must be",
		"consumers:\n  - " + good + "    life: 1s":                                     "life: must be at least",
		"consumers:\n  - " + good + "    backoff: 2h\n    max_backoff: 1h":             "max_backoff: must not be",
		"consumers:\n  - " + good + "  - " +
			good: "has the name nats/g",
		"consumers:\n  - " + good + "  - " + good +
			"    name: n\n    request: ledgerd.ledger.v1.TransferRequest\n": "another request",
		"consumers:\n  - " + strings.ReplaceAll(good, "NATS_PASSWORD",
			"NOT_SET_ANYWHERE"): "NOT_SET_ANYWHERE",
		"consumers:\n  - broker: rabbitmq\n    url: u\n    queue: q\n    group: g\n    tenant: " +
			"t\n    message_id: position": "RabbitMQ has no positions",
		"consumers:\n  - broker: kafka\n    url: u\n    topics: [q]\n    group: g\n    tenant: " +
			"t\n    message_id: broker": "Kafka has no message ids",
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, not %q", text, err, want)
		}
	}
}
