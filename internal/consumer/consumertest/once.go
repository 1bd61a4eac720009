package consumertest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// once is a source of one message, for setting up: it is no broker, and stands for none.
type once struct {
	body  string
	given bool
	done  chan struct{}
	end   sync.Once
}

func (o *once) Receive(ctx context.Context) ([]consumer.Delivery, error) {
	if o.given {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o.given = true
	return []consumer.Delivery{{ID: "setup", Topic: "setup", Body: []byte(o.body)}}, nil
}

func (o *once) Acknowledge(consumer.Delivery) error {
	o.end.Do(func() { close(o.done) })
	return nil
}

func (o *once) Later(consumer.Delivery, time.Duration) error { return nil }
func (o *once) Close()                                       {}

func (w *World) consumeFrom(t *testing.T, s *consumer.Settings, o *once) {
	t.Helper()
	pool, err := pg.Open(t.Context(), w.DB.AppDSN, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	engine := flow.NewEngine(pool, "setup", nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	c := &consumer.Consumer{Settings: s, Tenant: w.Tenant,
		Messages: &rpc.Messages{Mutations: &rpc.Mutations{Engine: engine, KeyLife: time.Hour}},
		Reader:   inbox.NewReader(pool), Metrics: consumer.NewMetrics(prometheus.NewRegistry()),
		Log:  slog.New(slog.DiscardHandler),
		Open: func(context.Context, *consumer.Settings) (consumer.Source, error) { return o, nil }}
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	select {
	case <-o.done:
	case <-ctx.Done():
		t.Error("the world was not made")
	}
	cancel()
	running.Wait()
	drain, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	if err := engine.Drain(drain); err != nil {
		t.Fatal(err)
	}
	if state := w.Text("select coalesce(max(state || coalesce(': ' || error, '')), 'nothing') from inbox_messages where message_id = 'setup'"); state != "succeeded" {
		t.Fatalf("the world was not made: %s", state)
	}
}
