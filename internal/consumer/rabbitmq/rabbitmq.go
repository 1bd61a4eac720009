// Package rabbitmq consumes from a RabbitMQ queue.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/ledgerd/ledgerd/internal/consumer"
)

const (
	// prefetch is the limit of unacknowledged messages, including those that wait.
	prefetch = 512
	batch    = 256
	// waitMost is the longest in-process wait of a message: RabbitMQ has no delays, and closes a channel that
	// keeps a message for half an hour. Afterwards the message is redelivered and continues its own wait.
	waitMost = time.Minute
)

type source struct {
	conn       *amqp.Connection
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery

	mu      sync.Mutex
	closed  bool
	waiting map[*time.Timer]bool
}

// Open connects and consumes from the queue, which must exist.
func Open(_ context.Context, s *consumer.Settings) (consumer.Source, error) {
	config := amqp.Config{Heartbeat: 10 * time.Second, Locale: "en_US", Dial: amqp.DefaultDial(5 * time.Second),
		Properties: amqp.NewConnectionProperties()}
	config.Properties.SetClientConnectionName("ledgerd " + s.Name)
	conn, err := amqp.DialConfig(s.URL, config)
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	o := &source{conn: conn, waiting: map[*time.Timer]bool{}}
	if o.channel, err = conn.Channel(); err == nil {
		if err = o.channel.Qos(prefetch, 0, false); err == nil {
			o.deliveries, err = o.channel.Consume(s.Queue, "", false, false, false, false, nil)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("queue %s: %w", s.Queue, err)
	}
	return o, nil
}

var errGone = errors.New("the channel was closed")

// Receive waits for a message and takes the further ones available.
func (s *source) Receive(ctx context.Context) (list []consumer.Delivery, err error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m, ok := <-s.deliveries:
		if !ok {
			return nil, errGone
		}
		list = append(list, delivery(m))
	}
	for len(list) < batch {
		select {
		case m, ok := <-s.deliveries:
			if !ok {
				return nil, errGone
			}
			list = append(list, delivery(m))
		default:
			return list, nil
		}
	}
	return list, nil
}

func delivery(m amqp.Delivery) consumer.Delivery {
	d := consumer.Delivery{Topic: m.RoutingKey, Header: make(map[string]string, len(m.Headers)), Body: m.Body,
		ID: m.MessageId, Handle: m}
	for name, value := range m.Headers {
		switch v := value.(type) {
		case string:
			d.Header[name] = v
		case []byte:
			d.Header[name] = string(v)
		case int64, int32, int16, int8, int:
			d.Header[name] = fmt.Sprint(v)
		}
	}
	return d
}

func (s *source) Acknowledge(d consumer.Delivery) error {
	m := d.Handle.(amqp.Delivery)
	return m.Ack(false)
}

// Later keeps the message in this process until its wait is over, and then returns it to the queue.
func (s *source) Later(d consumer.Delivery, wait time.Duration) error {
	m := d.Handle.(amqp.Delivery)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil // closing the channel returns it to the queue
	}
	var t *time.Timer
	t = time.AfterFunc(min(wait, waitMost), func() {
		s.mu.Lock()
		delete(s.waiting, t)
		s.mu.Unlock()
		_ = m.Nack(false, true) // fails only if the channel is closed, which returns the message too
	})
	s.waiting[t] = true
	return nil
}

func (s *source) Close() {
	s.mu.Lock()
	s.closed = true
	for t := range s.waiting {
		t.Stop()
	}
	s.mu.Unlock()
	_ = s.conn.CloseDeadline(time.Now().Add(2 * time.Second))
}
