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

	"github.com/prometheus/client_golang/prometheus"

	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
)

const alerts = "../../deploy/alerts.yml"

// An alert on a metric that nobody exports never fires.
func TestAlertsAreOnMetricsThatAreThere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	for _, series := range []string{ // increase() does not see a series begin with 1
		`ledgerd_ids_leases_total{outcome="lost"}`, `ledgerd_ids_leases_total{outcome="exhausted"}`, `ledgerd_lock_fence_refusals_total{call="renew"}`,
		`ledgerd_work_outcomes_total{call="complete",outcome="fence_lost"}`, `ledgerd_work_outcomes_total{call="begin",outcome="parked"}`,
	} {
		if !strings.Contains(metricsOf(t, c), "\n"+series+" 0\n") {
			t.Errorf("%s is not there from the beginning", series)
		}
	}
	c.prepare("a") // what is counted by name is exported when there is one
	generate(c, &idv1.GenerateRequest{})
	ok(c, "Transfer", payment("a", "1"), new(ledgerv1.TransferResponse), "Idempotency-Key", "a")
	text, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	exported := regexp.MustCompile(`(?m)^ledgerd_\w+`).FindAllString(metricsOf(t, c), -1)
	var others described // exported where there are consumers, and senders
	consumer.NewMetrics(&others)
	deliver.NewMetrics(&others)
	named := regexp.MustCompile(`ledgerd_\w+`).FindAllString(string(text), -1)
	if len(named) < 10 {
		t.Fatalf("the rules name %v", named)
	}
	cleaned := []string{"ledgerd_clean_overdue_seconds"} // exported when the cleaner has been round
	for _, name := range named {
		if !slices.Contains(exported, name) && !slices.Contains(cleaned, name) && !strings.Contains(string(others), `"`+name+`"`) {
			t.Errorf("no metric is called %s", name)
		}
	}
	if n := strings.Count(string(text), "- alert:"); n != strings.Count(string(text), "summary:") ||
		n != strings.Count(string(text), "severity:") {
		t.Error("an alert lacks its summary or its severity")
	}
}

func metricsOf(t *testing.T, c *caller) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base+"/metrics", nil)
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
	return string(body)
}

// described is a registry that only notes what the metrics are called.
type described string

func (d *described) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d *described) Register(c prometheus.Collector) error {
	names := make(chan *prometheus.Desc)
	go func() {
		defer close(names)
		c.Describe(names)
	}()
	for name := range names {
		*d += described(name.String())
	}
	return nil
}

func (d *described) Unregister(prometheus.Collector) bool { return false }

func TestAlertsAreGoodRules(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: promtool is not here (apt-get install prometheus)")
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", alerts).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
