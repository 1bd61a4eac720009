package server_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

const alerts = "../../deploy/alerts.yml"

// An alert on a metric that nobody exports never fires.
func TestAlertsAreOnMetricsThatAreThere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a") // what is counted by name is exported when there is one
	ok(c, "Transfer", payment("a", "1"), new(ledgerv1.TransferResponse), "Idempotency-Key", "a")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.apiKey)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	exported := regexp.MustCompile(`(?m)^ledgerd_\w+`).FindAllString(string(body), -1)
	named := regexp.MustCompile(`ledgerd_\w+`).FindAllString(string(text), -1)
	if len(named) < 10 {
		t.Fatalf("the rules name %v", named)
	}
	cleaned := []string{"ledgerd_clean_overdue_seconds"} // exported when the cleaner has been round
	for _, name := range named {
		if !slices.Contains(exported, name) && !slices.Contains(cleaned, name) {
			t.Errorf("no metric is called %s", name)
		}
	}
	if n := strings.Count(string(text), "- alert:"); n != strings.Count(string(text), "summary:") || n != strings.Count(string(text), "severity:") {
		t.Error("an alert lacks its summary or its severity")
	}
}

func TestAlertsAreGoodRules(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: promtool is not here (apt-get install prometheus)")
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", alerts).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
