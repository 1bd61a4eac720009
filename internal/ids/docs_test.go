package ids_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/ids"
)

// TestDocsNameTheMetrics compares the metrics in docs/ids.md with the registered ones: an alert on an
// unknown metric never fires.
func TestDocsNameTheMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/ids.md")
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	registry := prometheus.NewRegistry()
	g := b.generator(ids.Options{Metrics: ids.NewMetrics(registry)})
	b.next(g, 1)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, f := range families {
		there = append(there, f.GetName())
	}
	named := regexp.MustCompile(`\bledgerd_ids_[a-z_]+`).FindAllString(string(page), -1)
	slices.Sort(named)
	if named = slices.Compact(named); !slices.Equal(named, there) {
		t.Errorf("docs/ids.md names %v, registered are %v", named, there)
	}
}
