package nats_test

import (
	"context"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/consumer/consumertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// start starts a real server with JetStream, in this process, and makes a stream.
func start(t *testing.T) consumertest.Broker {
	t.Helper()
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS does not start")
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}})
	if err != nil {
		t.Fatal(err)
	}
	return consumertest.Broker{
		Settings: []string{"broker: nats", "url: " + s.ClientURL(), "stream: EVENTS", "subject: events.>"},
		Send: func(id, body string) {
			m := &nats.Msg{Subject: "events.pay", Data: []byte(body), Header: nats.Header{}}
			if id != "" {
				m.Header.Set(consumertest.IDHeader, id)
			}
			if _, err := js.PublishMsg(context.Background(), m); err != nil {
				t.Error(err)
			}
		},
		Left: func() int {
			c, err := stream.Consumer(context.Background(), "billing")
			if err != nil {
				t.Error(err)
				return -1
			}
			info, err := c.Info(context.Background())
			if err != nil {
				t.Error(err)
				return -1
			}
			return int(info.NumPending) + info.NumAckPending
		},
	}
}

func TestMessagesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	consumertest.EffectsOnce(t, start)
}

func TestAKilledConsumerLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	consumertest.Killed(t, start, 1500, 8)
}
