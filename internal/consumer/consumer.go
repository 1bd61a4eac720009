package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// Consumer runs one entry of the consumer file.
type Consumer struct {
	Settings *Settings
	Open     Open
	Tenant   int32
	Messages *rpc.Messages
	Reader   *inbox.Reader
	Metrics  *Metrics
	Log      *slog.Logger
}

// Metrics of consumers.
type Metrics struct {
	messages  *prometheus.CounterVec
	connected *prometheus.GaugeVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ledgerd", Name: "consumer_messages_total",
			Help: "Deliveries by consumer and outcome: done, duplicate, failed, dead, later."},
			[]string{"consumer", "outcome"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ledgerd", Name: "consumer_connected",
			Help: "1 while the consumer is connected to its broker."}, []string{"consumer"}),
	}
	reg.MustRegister(m.messages, m.connected)
	return m
}

const (
	// reconnectAfter is the wait before the first reconnect; it doubles up to reconnectMost.
	reconnectAfter = 200 * time.Millisecond
	reconnectMost  = 30 * time.Second
	// requeuedEvery is the poll interval for messages that an operator requeued.
	requeuedEvery = 2 * time.Second
	requeuedCount = 100
)

// Run consumes until ctx ends, then waits for the running attempts. It reconnects when the connection is lost.
func (c *Consumer) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.runRequeued(ctx) })
	// Export a zero from the start, so that rate() sees the first one.
	c.Metrics.messages.WithLabelValues(c.Settings.Name, "dead")
	connected := c.Metrics.connected.WithLabelValues(c.Settings.Name)
	for wait := reconnectAfter; ; wait = min(2*wait, reconnectMost) {
		source, err := c.Open(ctx, c.Settings)
		if err == nil {
			c.Log.Info("consuming", "consumer", c.Settings.Name)
			connected.Set(1)
			wait = reconnectAfter
			err = c.serve(ctx, source)
			connected.Set(0)
		}
		if ctx.Err() != nil {
			return
		}
		c.Log.Warn("the connection to the broker was lost", "consumer", c.Settings.Name, "again_in", wait, "error", err)
		if !sleep(ctx, wait) {
			return
		}
	}
}

// serve processes messages from a source until the source fails. Lanes run while further messages are received.
// Messages without a lane finish before the next Receive, so that they share few commits.
func (c *Consumer) serve(ctx context.Context, source Source) error {
	ctx, cancel := context.WithCancel(ctx)
	var lanes sync.WaitGroup
	defer func() {
		cancel()
		lanes.Wait()
		source.Close()
	}()
	for {
		batch, err := source.Receive(ctx)
		if err != nil {
			return err
		}
		inLane := map[string][]Delivery{}
		var loose sync.WaitGroup
		for _, d := range batch {
			if d.Lane != "" {
				inLane[d.Lane] = append(inLane[d.Lane], d)
				continue
			}
			loose.Go(func() { c.loose(ctx, source, d) })
		}
		for _, list := range inLane {
			lanes.Go(func() { c.lane(ctx, source, list) })
		}
		loose.Wait()
	}
}

// loose attempts a message without a lane once. A message that must wait goes back to the broker.
func (c *Consumer) loose(ctx context.Context, source Source, d Delivery) {
	settled, wait := c.attempt(ctx, &d)
	var err error
	if settled {
		err = source.Acknowledge(d)
	} else {
		err = source.Later(d, wait)
	}
	if err != nil {
		c.Log.Warn("could not settle a message with the broker, which will deliver it again", "consumer",
			c.Settings.Name, "error", err)
	}
}

// lane processes the messages of a lane in order, each until it took effect or is dead.
func (c *Consumer) lane(ctx context.Context, source Source, list []Delivery) {
	for _, d := range list {
		for {
			if ctx.Err() != nil {
				return
			}
			settled, wait := c.attempt(ctx, &d)
			if settled {
				break
			}
			if !sleep(ctx, wait) {
				return
			}
		}
		if err := source.Acknowledge(d); err != nil {
			c.Log.Warn("could not settle a message with the broker, which will deliver it again", "consumer",
				c.Settings.Name, "error", err)
		}
	}
}

// runRequeued runs requeued messages from their stored content: the broker does not redeliver them.
func (c *Consumer) runRequeued(ctx context.Context) {
	for sleep(ctx, requeuedEvery) {
		found, err := c.Reader.RequeuedDue(ctx, c.Tenant, c.Settings.Group, requeuedCount)
		if err != nil && !errors.Is(err, context.Canceled) {
			c.Log.Warn("could not read requeued messages", "consumer", c.Settings.Name, "error", err)
		}
		for _, m := range found {
			if ctx.Err() != nil {
				return
			}
			in := c.incoming(m.Key, m.Topic, m.Content)
			c.try(ctx, in, "")
		}
	}
}

func (c *Consumer) incoming(k inbox.Key, topic string, body []byte) *rpc.Incoming {
	s := c.Settings
	return &rpc.Incoming{Identity: access.Identity{Tenant: c.Tenant, Principal: "consumer:" + s.Name,
		Role: access.Write},
		Request: s.Request, Key: k, Delivery: inbox.Delivery{Topic: topic, Content: body, ContentLife: s.ContentLife,
			Life: s.Life, MaxAttempts: s.MaxAttempts, Backoff: s.Backoff, MaxBackoff: s.MaxBackoff}}
}

// sleep waits and reports whether the wait completed.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
