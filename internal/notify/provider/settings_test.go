package provider_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/report"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

func TestSettingsErrorsNameTheField(t *testing.T) {
	t.Setenv("SMTP_PASSWORD", "pencil")
	const good = "email:\n  - kind: smtp\n    host: mail.shop.example\n    from: no-reply@shop.example\n"
	if _, err := provider.ReadFile(write(t, good+"    username: u\n    password: env:SMTP_PASSWORD\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.ReadFile(write(t, `{"sms": [{"kind": "file"}], "email": [{"kind": "file", `+
		`"name": "other"}]}`)); err != nil {
		t.Errorf("JSON: %v", err)
	}
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte("pencil\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                         "there are no providers",
		"fax: [{kind: file}]":      "fax: is not a channel",
		"email:\n  - kind: pigeon": "email[0], line 2: kind: must be one of",
		"sms:\n  - kind: smtp":     "kind: smtp does not support channel sms",
		"email: [{kind: file}]\nsms: [{kind: file}]":                     "two providers have the name file",
		"email: [{kind: file, name: 'a b'}]":                             "name: must be",
		"email: [{kind: file, path: [1]}]":                               "path: must be a text",
		"email: [{kind: file, colour: red}]":                             `unknown setting "colour"`,
		"email: [{kind: file, path: {1: 2}}]":                            "path: names must be strings",
		"email: [{kind: file, concurrency: 1001}]":                       "concurrency:",
		"email: [{kind: file, concurrency: -1}]":                         "concurrency:",
		"email: [{kind: file, rate: -1}]":                                "rate:",
		"email: [{kind: file, rate: .nan}]":                              "rate:",
		"email: [{kind: file, timeout: 1m}]":                             "timeout: must be",
		"email: [{kind: file, timeout: 1ms}]":                            "timeout: must be",
		"email: [{kind: file, tenants: ['']}]":                           "tenants:",
		"email: [{kind: file, tenants: [a], overrides: {b: {path: x}}}]": "overrides: b is not listed in tenants",
		"email: [{kind: file, overrides: {b: {colour: x}}}]":             "unknown setting",
		"webhook: [{kind: webhook, allow: [10]}]":                        "allow:",
		"webhook: [{kind: webhook, tenants: [a]}]": "tenants, overrides: " +
			"not supported by kind webhook",
		"webhook: [{kind: file}, {kind: webhook}]": "webhook must be the only provider",
		"sms: [{kind: twilio, account_sid: a}]":    "set auth_token",
		"sms: [{kind: aliyun, access_key_id: 5}]":  "access_key_id: must be a text",
		"sms: [{kind: tencent}]":                   "secret_id is missing",
		"sms: [{kind: http}]":                      "URL",
		good + "    port: x":                       "port: must be a number",
		good + "    tls: ssl":                      "tls: must be",
		good + "    tls: none":                     "tls: none is only allowed for servers on this machine",
		good + "    username: u":                   "username, password",
		good +
			"    idle: 5": "a duration must be written as 10s",
		good +
			"    timeouts: {connect: soon}": "a duration must be written as 10s",
		good + "    timeouts: {lunch: 1h}":                    "unknown setting",
		good + "    ca: none":                                 "ca:",
		good + "    dkim: {domain: d, selector: s, key: xyz}": "dkim.key: is not PEM",
		good + "    overrides: {a: {from: x}}":                "from: not an e-mail address",
		good + "    host: other":                              "already defined",
		good + "    username: u\n    password: env:NOT_SET": "password: " +
			"the environment variable NOT_SET is not set",
		good + "    username: u\n    password: file:/does/not/exist":                     "no such file",
		good + "    username: u\n    password: env:SMTP_PASSWORD\n    auth: ntlm":        "auth: must be",
		good + "    username: u\n    password: file:" + secretFile + "\n    port: 70000": "port:",
		good + "    username: u\n    password: [env:SMTP_PASSWORD]":                      "password: must be a text",
	} {
		_, err := provider.ReadFile(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "pencil") {
			t.Errorf("%s\n%v contains a secret", text, err)
		}
	}
	f, err := provider.ReadFile(write(t, "email:\n  - kind: file\n    tenants: [nobody]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Build(&provider.Env{Tenant: tenantNumber, Log: slog.Default()}); err == nil ||
		!strings.Contains(err.Error(), "email[0], line 2: tenant nobody: there is none") {
		t.Errorf("%v", err)
	}
}

func TestDocumentedFilesAreValid(t *testing.T) {
	dir := t.TempDir()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := webhook.New(webhook.Settings{Master: secret.New()})
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		if files++; files == 1 {
			continue // the text before the first block
		}
		text, _, _ := strings.Cut(block, "```")
		text = strings.ReplaceAll(text, "file:/etc/ledgerd/", "file:"+dir+"/")
		text = strings.ReplaceAll(text, "path: ", "path: "+dir)
		for _, name := range names(text, "env:") {
			t.Setenv(name, "secret")
		}
		for _, name := range names(text, "file:"+dir+"/") {
			if name != "key.pem" {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(secretFile(t, name)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		f, err := provider.ReadFile(write(t, text))
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		senders, err := f.Build(&provider.Env{Tenant: tenantNumber, Log: slog.Default(), Webhooks: hooks})
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		if senders.ByChannel[send.Webhook] == nil {
			t.Errorf("%s\nno sender for webhooks", text)
		}
		_ = senders.Close()
	}
	if files < 3 {
		t.Errorf("the docs have %d files", files-1)
	}
}

// secretFile returns valid content for a file that the docs mention.
func secretFile(t *testing.T, name string) string {
	t.Helper()
	der := func(key any, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		b, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}))
	}
	switch filepath.Ext(name) {
	case ".p8":
		return der(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	case ".json":
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		account, _ := json.Marshal(map[string]string{"project_id": "p", "client_email": "e",
			"token_uri": "https://oauth2.googleapis.com/token", "private_key": der(key, err)})
		return string(account)
	}
	return "secret\n"
}

// names returns the words in text that follow prefix.
func names(text, prefix string) []string {
	var all []string
	for _, part := range strings.Split(text, prefix)[1:] {
		all = append(all, strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune(" \n,}'\"", r) })[0])
	}
	return all
}

func TestDocsNameEveryField(t *testing.T) {
	page, err := os.ReadFile("../../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, fields := range provider.Fields() {
		for _, field := range fields {
			if !strings.Contains(string(page), "`"+field+"`") {
				t.Errorf("docs/providers.md does not mention %s of %s", field, kind)
			}
		}
	}
}

func TestDevelopmentWritesEveryChannelToOneFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "messages.json")
	senders, err := provider.Development(name).Build(&provider.Env{Log: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = senders.Close() }()
	for i, channel := range []send.Channel{send.Email, send.SMS, send.Push, send.Webhook} {
		m := message()
		m.Channel, m.Key = channel, "k"+string(rune('0'+i))
		if r, err := senders.ByChannel[channel].Send(t.Context(), m); err != nil ||
			r.Provider != "file-"+string(channel) {
			t.Errorf("%s: %+v, %v", channel, r, err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil || strings.Count(string(text), "\n") != 4 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestElseAddsTheOtherChannels(t *testing.T) {
	dir := t.TempDir()
	f, err := provider.ReadFile(write(t, "sms: [{kind: file, name: own, path: "+filepath.Join(dir, "own")+"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for other, want := range map[*provider.File]string{provider.Development(filepath.Join(dir,
		"all")): "sms own, email file-email, push file-push, ", nil: "sms own, "} {
		senders, err := f.WithDefaults(other).Build(&provider.Env{Log: slog.Default()})
		if err != nil {
			t.Fatal(err)
		}
		by := ""
		// there is no sender for webhooks
		for _, channel := range []send.Channel{send.SMS, send.Email, send.Push, send.Webhook} {
			if sender := senders.ByChannel[channel]; sender != nil {
				m := message()
				m.Channel, m.Key = channel, "k-"+string(channel)
				r, err := sender.Send(t.Context(), m)
				by += fmt.Sprintf("%s %s%v, ", channel, r.Provider, map[bool]any{true: "", false: err}[err == nil])
			}
		}
		if by != want {
			t.Errorf("%s, want %s", by, want)
		}
		if err := senders.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestReportsOfEveryAccountAreRead(t *testing.T) {
	senders, _, _ := build(t, "sms:\n  - {kind: http, name: gateway, url: 'https://gateway.example', query: {to: "+
		"'{recipient}'}, report_secret: one,\n     reports: {id_at: /id, status_at: /status, delivered: [ok]}, "+
		"overrides: {shop-eu: {report_secret: two}}}\n  - {kind: file}\n")
	if len(senders.Reports) != 1 {
		t.Errorf("%v", senders.Reports)
	}
	body := `{"id": "n1", "status": "ok"}`
	for _, secret := range []string{"one", "two", "three", ""} {
		r := httptest.NewRequest(http.MethodPost, "/notify/reports/gateway/"+secret, strings.NewReader(body))
		got, err := senders.Reports["gateway"].Reports(r, secret, []byte(body))
		if known := secret == "one" || secret == "two"; known != (err == nil) || !known &&
			!errors.Is(err, report.ErrForbidden) || known && (len(got) != 1 || !got[0].Delivered) {
			t.Errorf("%q: %v, %v", secret, got, err)
		}
	}
}
