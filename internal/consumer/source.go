package consumer

import (
	"context"
	"time"
)

// Delivery is one message from a broker, possibly redelivered.
type Delivery struct {
	Topic  string
	Header map[string]string // names as sent
	Body   []byte
	// ID is the sender's message id, in the broker's own field; empty: none.
	ID string
	// Position is the message's stable position in the broker; empty: none.
	Position string
	// Lane: messages of one lane take effect in order. Empty: any order.
	Lane string
	// Handle belongs to the source.
	Handle any
}

// Source is a connection to a broker. Acknowledge and Later are safe for concurrent use.
type Source interface {
	// Receive waits for messages. It returns further messages of a lane only after all earlier ones of that
	// lane were acknowledged.
	Receive(ctx context.Context) ([]Delivery, error)
	// Acknowledge tells the broker that a message is settled. After an error the message is redelivered.
	Acknowledge(d Delivery) error
	// Later requests redelivery after about the wait. It is never called for messages of a lane.
	Later(d Delivery, wait time.Duration) error
	// Close ends the connection. Unacknowledged messages will be redelivered.
	Close()
}

// Open connects to a broker.
type Open func(ctx context.Context, s *Settings) (Source, error)
