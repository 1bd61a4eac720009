package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/consumer"
)

// increase() in an alert does not see a series that begins with 1.
func TestDeathsAreCountedFromZeroOn(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	ctx, end := context.WithCancel(t.Context())
	end()
	c := &consumer.Consumer{Settings: &consumer.Settings{Name: "mine"}, Metrics: consumer.NewMetrics(reg),
		Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, *consumer.Settings) (consumer.Source, error) {
			return nil, errors.New("no broker")
		}}
	c.Run(ctx)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got = append(got, f.GetName()+" "+m.String())
		}
	}
	if all := strings.Join(got, "\n"); !strings.Contains(all, "ledgerd_consumer_messages_total") ||
		!strings.Contains(all, `"dead"`) ||
		!strings.Contains(all, "ledgerd_consumer_connected") {
		t.Errorf("%s", all)
	}
}
