package inbox

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// ReceiveCommand receives and completes a message in one step. In an Execute it commits together with the
// effects of the message. Its answer is a Message. For a message that already took effect it fails with
// MESSAGE_DUPLICATE, so that the rest of the Execute is not applied twice.
type ReceiveCommand struct {
	commit.Caller
	Key      Key
	Delivery Delivery
	Result   string

	row *row
}

// Need names the message.
func (c *ReceiveCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply receives the message. If a holder's lease expired, the number of attempts is ignored: no attempt
// elsewhere can have had an effect here.
func (c *ReceiveCommand) Apply(tx *Tx) (any, error) {
	if err := tx.compare(c.row, &c.Delivery); err != nil {
		return nil, err
	}
	if m, ok := tx.live(c.row); ok {
		if err := refuse(m, tx.Now); err != nil {
			return nil, err
		}
	}
	m := tx.attempt(c.row, c.Caller, &c.Delivery)
	m.Holder = c.Principal
	m.succeed(tx.Now, c.Caller, c.Result)
	return *m, nil
}

// refuse returns the reason why a message cannot be received now, or nil.
func refuse(m *Message, now time.Time) error {
	switch {
	case m.State == Succeeded:
		return about(Duplicate.New("message %s was already processed", m.ID), m).With("first_request_id",
			m.LastRequestID)
	case m.State == Died:
		return about(Dead.New("message %s is dead: %s", m.ID, m.FailureText), m)
	case m.State == Processing && m.LeaseExpiresAt.After(now):
		return about(Busy.New("message %s is being processed by %s", m.ID, m.Holder), m).
			After(m.LeaseExpiresAt.Sub(now))
	case m.State == Failed && m.RetryAt.After(now):
		return about(Later.New("message %s failed recently: try again after its backoff", m.ID),
			m).After(m.RetryAt.Sub(now))
	}
	return nil
}

// notFound returns fault MESSAGE_NOT_FOUND for a key.
func notFound(k Key) *fault.Fault {
	f := NotFound.New("there is no message %s", k.ID).With("consumer_group", k.Group).With("message_id", k.ID).
		WithField("key.message_id", "must be the id of a message of the consumer group")
	if k.Part != "" {
		f = f.With("part", k.Part)
	}
	return f
}

// about adds the message's state to a fault.
func about(f *fault.Fault, m *Message) *fault.Fault {
	f = f.With("message_state", m.State).With("attempts", m.Attempts)
	for name, t := range map[string]time.Time{"lease_expire_time": m.LeaseExpiresAt, "retry_time": m.RetryAt,
		"finish_time": m.FinishedAt} {
		if !t.IsZero() {
			f = f.With(name, t.Format(time.RFC3339Nano))
		}
	}
	return f
}
