// Package kafka consumes from Kafka topics, as a member of a consumer group.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/ledgerd/ledgerd/internal/consumer"
)

const (
	// commitEvery is the interval of offset commits. Messages whose offsets a dead process had not committed
	// are redelivered, and deduplicated by the inbox.
	commitEvery = 500 * time.Millisecond
	closeTime   = 5 * time.Second
	// A dead member's partitions move to another member after sessionTimeout; if it dies during a rebalance,
	// the rebalance waits at most rebalanceTimeout. We give up partitions immediately when asked to.
	sessionTimeout   = 6 * time.Second
	rebalanceTimeout = 10 * time.Second
	fetchBytes       = 1 << 20 // per partition
	// fetchWait bounds a fetch without new messages. A broker handles one fetch at a time, so an idle partition
	// can delay the messages of its other partitions by this long.
	fetchWait = 100 * time.Millisecond
)

type source struct {
	client *kgo.Client

	mu sync.Mutex
	// open are batches that are not fully acknowledged; fetching of their partitions is paused.
	open map[partition]*given
}

// given is the batch of one partition from one Receive.
type given struct{ left int }

// record is a message with its batch.
type record struct {
	*kgo.Record
	with *given
}

type partition struct {
	topic  string
	number int32
}

// Open joins the group. A group without committed offsets begins with the oldest messages.
func Open(ctx context.Context, s *consumer.Settings) (consumer.Source, error) {
	o := &source{open: map[partition]*given{}}
	client, err := kgo.NewClient(append(entry(s),
		kgo.SeedBrokers(strings.Split(s.URL, ",")...),
		kgo.ClientID("ledgerd "+s.Name),
		kgo.ConsumerGroup(s.Group),
		kgo.ConsumeTopics(s.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitEvery),
		kgo.FetchMaxPartitionBytes(fetchBytes),
		kgo.FetchMaxWait(fetchWait),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.HeartbeatInterval(time.Second),
		kgo.OnPartitionsRevoked(o.revoked),
		kgo.OnPartitionsLost(o.lost),
	)...)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	o.client = client
	ping, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Ping(ping); err != nil {
		client.Close()
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return o, nil
}

// entry returns the authentication options.
func entry(s *consumer.Settings) (options []kgo.Opt) {
	if s.TLS {
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	switch who := (scram.Auth{User: s.Username, Pass: s.Password}); s.SASL {
	case consumer.Plain:
		options = append(options, kgo.SASL(plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism()))
	case consumer.ScramSHA256:
		options = append(options, kgo.SASL(who.AsSha256Mechanism()))
	case consumer.ScramSHA512:
		options = append(options, kgo.SASL(who.AsSha512Mechanism()))
	}
	return options
}

// revoked commits our offsets before another member takes the partitions over.
func (s *source) revoked(ctx context.Context, client *kgo.Client, gone map[string][]int32) {
	_ = client.CommitMarkedOffsets(ctx) // on failure the next owner repeats some messages
	s.lost(ctx, client, gone)
}

func (s *source) lost(_ context.Context, client *kgo.Client, gone map[string][]int32) {
	s.mu.Lock()
	for topic, numbers := range gone {
		for _, n := range numbers {
			delete(s.open, partition{topic, n})
		}
	}
	s.mu.Unlock()
	client.ResumeFetchPartitions(gone)
}

// Receive fetches messages, in order per partition.
func (s *source) Receive(ctx context.Context) ([]consumer.Delivery, error) {
	for {
		fetches := s.client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var list []consumer.Delivery
		s.mu.Lock()
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) == 0 {
				return
			}
			at := partition{p.Topic, p.Partition}
			s.client.PauseFetchPartitions(map[string][]int32{p.Topic: {p.Partition}})
			with := &given{left: len(p.Records)}
			s.open[at] = with
			for _, r := range p.Records {
				list = append(list, delivery(record{r, with}))
			}
		})
		s.mu.Unlock()
		if len(list) > 0 {
			return list, nil
		}
		for _, e := range fetches.Errors() {
			return nil, fmt.Errorf("topic %s, partition %d: %w", e.Topic, e.Partition, e.Err)
		}
		if fetches.IsClientClosed() {
			return nil, errors.New("the client was closed")
		}
	}
}

func delivery(r record) consumer.Delivery {
	lane := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
	d := consumer.Delivery{Topic: r.Topic, Header: make(map[string]string, len(r.Headers)), Body: r.Value, Lane: lane,
		Position: fmt.Sprintf("%s-%d", lane, r.Offset), Handle: r}
	for _, h := range r.Headers {
		d.Header[h.Key] = string(h.Value)
	}
	return d
}

// Acknowledge marks the offset for the next commit, and resumes the partition when its batch is done.
func (s *source) Acknowledge(d consumer.Delivery) error {
	r := d.Handle.(record)
	at := partition{r.Topic, r.Partition}
	s.client.MarkCommitRecords(r.Record)
	s.mu.Lock()
	defer s.mu.Unlock()
	// After a rebalance the open batch may be a later one.
	if r.with.left--; r.with.left == 0 && s.open[at] == r.with {
		delete(s.open, at)
		s.client.ResumeFetchPartitions(map[string][]int32{r.Topic: {r.Partition}})
	}
	return nil
}

// Later is unsupported: all Kafka messages have lanes.
func (s *source) Later(consumer.Delivery, time.Duration) error {
	return errors.New("kafka: a message cannot be postponed: its partition is ordered")
}

// Close commits our offsets and leaves the group.
func (s *source) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = s.client.CommitMarkedOffsets(ctx) // on failure messages since the last commit are redelivered
	s.client.CloseAllowingRebalance()
}
