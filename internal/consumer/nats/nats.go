// Package nats consumes from NATS JetStream.
package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/consumer"
)

const (
	// batch is the size of a fetch. inFlight bounds unacknowledged messages, including those that wait for
	// their next attempt.
	batch    = 256
	inFlight = 4096
	// fetchFor is how long a fetch waits for a message, and so may delay shutdown.
	fetchFor = time.Second
	// ackWait is the server's timeout for acknowledgements before it redelivers.
	ackWait = 15 * time.Second
)

type source struct {
	conn     *nats.Conn
	stream   string
	consumer jetstream.Consumer
}

// Open connects and creates the durable consumer if necessary. Its name is the group, with illegal characters replaced.
func Open(ctx context.Context, s *consumer.Settings) (consumer.Source, error) {
	conn, err := nats.Connect(s.URL, nats.Name("ledgerd "+s.Name), nats.Timeout(5*time.Second), nats.MaxReconnects(-1),
		nats.ReconnectWait(500*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	js, err := jetstream.New(conn)
	if err == nil {
		durable := jetstream.ConsumerConfig{Durable: durableName(s.Group), AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: ackWait, MaxDeliver: -1, MaxAckPending: inFlight, FilterSubject: s.Subject}
		var c jetstream.Consumer
		if c, err = js.CreateOrUpdateConsumer(ctx, s.Stream, durable); err == nil {
			return &source{conn, s.Stream, c}, nil
		}
	}
	conn.Close()
	return nil, fmt.Errorf("stream %s: %w", s.Stream, err)
}

// durableName replaces characters that are illegal in a durable's name.
func durableName(group string) string {
	name := []byte(group)
	for i, b := range name {
		if b <= ' ' || b > '~' || b == '.' || b == '*' || b == '>' || b == '/' || b == '\\' {
			name[i] = '_'
		}
	}
	return string(name)
}

// Receive takes the available messages, or waits for one. A fetch is never cancelled: messages in flight would
// be redelivered only after ackWait.
func (s *source) Receive(ctx context.Context) ([]consumer.Delivery, error) {
	for ctx.Err() == nil {
		fetched, err := s.consumer.FetchNoWait(batch)
		list, err := s.deliveries(fetched, err)
		if err != nil || len(list) > 0 {
			return list, err
		}
		fetched, err = s.consumer.Fetch(1, jetstream.FetchMaxWait(fetchFor))
		if list, err = s.deliveries(fetched, err); err != nil || len(list) > 0 {
			return list, err
		}
	}
	return nil, ctx.Err()
}

// deliveries converts all messages of a fetch.
func (s *source) deliveries(fetched jetstream.MessageBatch, err error) (list []consumer.Delivery, _ error) {
	if err != nil {
		return nil, err
	}
	for m := range fetched.Messages() {
		d, err := s.delivery(m)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	if len(list) > 0 {
		return list, nil // a persistent error recurs
	}
	return nil, fetched.Error()
}

func (s *source) delivery(m jetstream.Msg) (d consumer.Delivery, err error) {
	meta, err := m.Metadata()
	if err != nil {
		return d, err
	}
	d = consumer.Delivery{Topic: m.Subject(), Header: make(map[string]string, len(m.Headers())), Body: m.Data(),
		ID: m.Headers().Get(nats.MsgIdHdr), Position: fmt.Sprintf("%s-%d", s.stream, meta.Sequence.Stream), Handle: m}
	for name := range m.Headers() {
		d.Header[name] = m.Headers().Get(name)
	}
	return d, nil
}

func (s *source) Acknowledge(d consumer.Delivery) error { return d.Handle.(jetstream.Msg).Ack() }

// Later requests redelivery after the wait.
func (s *source) Later(d consumer.Delivery, wait time.Duration) error {
	return d.Handle.(jetstream.Msg).NakWithDelay(wait)
}

// Close flushes pending acknowledgements.
func (s *source) Close() {
	_ = s.conn.FlushTimeout(time.Second)
	s.conn.Close()
}
