package inbox

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// ReceiveCommand receives and finishes a message in one. It stands in one Execute with what the message
// brings about, and commits with it. Its answer is a Message; a message that has had its effect is fault
// MESSAGE_DUPLICATE, so that nothing else of the Execute takes effect again.
type ReceiveCommand struct {
	commit.Caller
	Key      Key
	Delivery Delivery
	Result   string

	row *row
}

// Need names the message.
func (c *ReceiveCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply receives it. A message whose holder let his lease lapse is taken whatever its attempts: nothing
// of it can have taken effect here.
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

// refuse says why a message cannot be received now, if it cannot.
func refuse(m *Message, now time.Time) error {
	switch {
	case m.State == Succeeded:
		return about(Duplicate.New("message %s was already processed", m.ID), m).With("first_request_id",
			m.LastRequestID)
	case m.State == Died:
		return about(Dead.New("message %s is dead: %s", m.ID, m.Error), m)
	case m.State == Processing && m.LeaseUntil.After(now):
		return about(Busy.New("message %s is being processed by %s", m.ID, m.Holder), m).After(m.LeaseUntil.Sub(now))
	case m.State == Failed && m.RetryAt.After(now):
		return about(Later.New("message %s failed recently: try again after its backoff", m.ID),
			m).After(m.RetryAt.Sub(now))
	}
	return nil
}

// about adds how the message stands.
func about(f *fault.Fault, m *Message) *fault.Fault {
	f = f.With("message_state", m.State).With("attempts", m.Attempts)
	for name, t := range map[string]time.Time{"lease_expire_time": m.LeaseUntil, "retry_time": m.RetryAt,
		"finish_time": m.FinishedAt} {
		if !t.IsZero() {
			f = f.With(name, t.Format(time.RFC3339Nano))
		}
	}
	return f
}
