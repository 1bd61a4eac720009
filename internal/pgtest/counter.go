package pgtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Counter is the sum of a counter over all its labels, or over the values of its first label that are listed
// after a slash: "ledgerd_commit_attempts_total/raced,blocked".
func Counter(t testing.TB, reg prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	name, values, some := strings.Cut(name, "/")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if !some || slices.Contains(strings.Split(values, ","), m.GetLabel()[0].GetValue()) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// FailedAttempts counts the failed attempts to commit a batch.
const FailedAttempts = "ledgerd_commit_attempts_total/raced,collided,blocked,lost,rejected,broken,overfull"
