package consumer

import (
	"context"
	"time"
)

// Delivery is one message as a broker hands it over, perhaps not for the first time.
type Delivery struct {
	Topic  string
	Header map[string]string // names as they were sent
	Body   []byte
	// ID is what its sender named it, in the broker's own way; empty: he did not.
	ID string
	// Position is where it stands, the same whenever it is delivered; empty: the broker knows none.
	Position string
	// Lane: messages of one lane take effect in the order in which they come. Empty: in any order.
	Lane string
	// Handle is the source's own.
	Handle any
}

// Source is a connection to a broker. Acknowledge and Later may be called by many goroutines at once.
type Source interface {
	// Receive waits for messages. Messages of a lane come again only when all that it gave of the lane
	// have been acknowledged.
	Receive(ctx context.Context) ([]Delivery, error)
	// Acknowledge lets the broker forget a message. An error is no loss: it will come again.
	Acknowledge(d Delivery) error
	// Later has the broker deliver a message again, after about so long. Never called for messages of a lane.
	Later(d Delivery, wait time.Duration) error
	// Close ends the connection. What was not acknowledged will be delivered again.
	Close()
}

// Open connects to a broker.
type Open func(ctx context.Context, s *Settings) (Source, error)
