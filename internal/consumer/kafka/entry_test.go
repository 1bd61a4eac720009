package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/consumer/kafka"
)

func TestAllAuthenticationMechanisms(t *testing.T) {
	t.Parallel()
	address := startGate(t, map[string]string{"PLAIN": "p", "SCRAM-SHA-256": "s256", "SCRAM-SHA-512": "s512"})
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SASL(plain.Auth{User: "me", Pass: "p"}.AsMechanism()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.ProduceSync(t.Context(),
		&kgo.Record{Topic: topic, Partition: 0, Value: []byte("body"),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for how, password := range map[string]string{consumer.Plain: "p", consumer.ScramSHA256: "s256",
		consumer.ScramSHA512: "s512"} {
		s := &consumer.Settings{Name: how, URL: address, Topics: []string{topic}, Group: how, SASL: how, Username: "me",
			Password: password}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		source, err := kafka.Open(ctx, s)
		if err != nil {
			t.Errorf("%s: %v", how, err)
			continue
		}
		got, err := source.Receive(ctx)
		if err != nil || len(got) != 1 || string(got[0].Body) != "body" || got[0].Header["h"] != "v" ||
			got[0].Position != "events-0-0" || got[0].Lane != "events-0" {
			t.Errorf("%s: %+v, %v", how, got, err)
		}
		source.Close()
		s.Password = "wrong"
		if source, err := kafka.Open(ctx, s); err == nil {
			t.Errorf("%s: a wrong password was accepted", how)
			source.Close()
		}
	}
}
