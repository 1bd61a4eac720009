package dialects_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/gateways.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentedSettingsAreValid(t *testing.T) {
	dir := t.TempDir()
	_, after, _ := strings.Cut(page(t), "```yaml\n")
	text, _, _ := strings.Cut(after, "```")
	text = strings.ReplaceAll(text, "file:/etc/ledgerd/", "file:"+dir+"/")
	for name, value := range map[string]string{"STRIPE_API_KEY": "sk_live_1",
		"STRIPE_WEBHOOK_SECRET": "whsec_0123456789",
		"WECHAT_API_V3_KEY":     strings.Repeat("k", 32), "BANK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		t.Setenv(name, value)
	}
	for _, name := range regexp.MustCompile(`[a-z-]+\.pem`).FindAllString(text, -1) {
		_, private, public := gatewaytest.Key(t)
		if strings.Contains(name, "public") {
			private = public
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(private), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "gateways.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gateway.ReadFile(file, dialects.All)
	if err != nil {
		t.Fatal(err)
	}
	set, err := f.Build(&gateway.Env{Tenant: func(string) (int32, error) { return 1, nil }})
	if err != nil || len(set.ByName) != len(dialects.All) {
		t.Errorf("%v, %v", set, err)
	}
}

func TestDocsNameEveryPayTypeAndSetting(t *testing.T) {
	text := page(t)
	var names []string
	for kind, d := range dialects.All {
		names = append(names, kind)
		for _, p := range d.PayTypes {
			names = append(names, p.Name)
		}
	}
	// The settings as their packages decode them.
	tag := regexp.MustCompile("`json:\"([a-z0-9_]+)\"`")
	for _, file := range []string{"../settings.go", "../stripe/doc.go", "../alipay/doc.go", "../wechat/doc.go",
		"../standard/standard.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, options, _ := strings.Cut(string(source), " struct {")
		options, _, _ = strings.Cut(options, "\n}")
		found := tag.FindAllStringSubmatch(options, -1)
		if len(found) == 0 {
			t.Errorf("%s has no settings", file)
		}
		for _, m := range found {
			names = append(names, m[1])
		}
	}
	for _, name := range names {
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "| "+name+" |") {
			t.Errorf("docs/gateways.md does not mention %s", name)
		}
	}
}
