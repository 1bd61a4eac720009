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
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

const alerts = "../../deploy/alerts.yml"

// An alert on a metric that is not exported never fires.
func TestAlertsUseExistingMetrics(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	for _, series := range []string{ // increase() misses the first event of a series that begins with 1
		`ledgerd_ids_leases_total{outcome="lost"}`, `ledgerd_ids_leases_total{outcome="exhausted"}`,
		`ledgerd_lock_fences_lost_total{call="renew"}`,
		`ledgerd_work_outcomes_total{call="complete",outcome="fence_lost"}`,
		`ledgerd_work_outcomes_total{call="begin",outcome="parked"}`,
	} {
		if !strings.Contains(metricsOf(t, c), "\n"+series+" 0\n") {
			t.Errorf("%s is not exported at start", series)
		}
	}
	fund(c, "a") // series with labels are exported after the first event
	c.OK("Notify.SendCode", &notifyv1.SendCodeRequest{Channel: notifyv1.Channel_CHANNEL_SMS,
		Recipient: "+8613812345678", Type: "login"}, new(notifyv1.SendCodeResponse))
	c.OK("Id.Generate", &idv1.GenerateRequest{}, new(idv1.GenerateResponse))
	c.OK("Transfer", payment("a", "1"), new(ledgerv1.TransferResponse), "Idempotency-Key", "a")
	text, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	exported := regexp.MustCompile(`(?m)^ledgerd_\w+`).FindAllString(metricsOf(t, c), -1)
	var others described // exported by servers with consumers and senders
	consumer.NewMetrics(&others)
	deliver.NewMetrics(&others)
	if _, err := (&gateway.File{}).Build(&gateway.Env{Registerer: &others}); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`ledgerd_\w+`).FindAllString(string(text), -1)
	if len(named) < 10 {
		t.Fatalf("the rules name %v", named)
	}
	// exported after the first run of a background task
	cleaned := []string{"ledgerd_clean_overdue_seconds", "ledgerd_payment_calls_due_seconds"}
	for _, name := range named {
		if !slices.Contains(exported, name) && !slices.Contains(cleaned, name) &&
			!strings.Contains(string(others), `"`+name+`"`) {
			t.Errorf("there is no metric %s", name)
		}
	}
	if n := strings.Count(string(text), "- alert:"); n != strings.Count(string(text), "summary:") ||
		n != strings.Count(string(text), "severity:") {
		t.Error("an alert lacks its summary or its severity")
	}
}

func metricsOf(t *testing.T, c *servertest.Caller) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+watcher(c))
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

// described is a registry that records only the names of metrics.
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

func TestAlertRulesAreValid(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: promtool is not installed (apt-get install prometheus)")
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", alerts).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
