package notify

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// CancelCommand keeps a message from being sent, or does away with a dead one. Its answer is a *Message.
type CancelCommand struct {
	commit.Caller
	ID int64

	row *queueRow
}

// Need names the message.
func (c *CancelCommand) Need(tx *Tx) { c.row = tx.change(Key{c.Tenant, c.ID}) }

// change is what is open of a message, to be changed; nil: it can no longer be asked for.
func (tx *Tx) change(k Key) *queueRow {
	if tx.started() {
		return tx.queue.Known(k)
	}
	return tx.queue.Want(k)
}

// Apply cancels it. Returns faults NOTIFY_NOT_FOUND, NOTIFY_BEING_SENT, and NOTIFY_NOT_CANCELLABLE.
func (c *CancelCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil {
		return nil, tx.unasked(Key{c.Tenant, c.ID})
	}
	m, err := tx.find(c.row)
	if err != nil {
		return nil, err
	}
	v := &c.row.Value
	switch {
	case m.State == Cancelled:
		return commit.Repeat{First: m}, nil
	case !m.open(), m.State == Unknown, v.unsure && m.State != Dead:
		return nil, about(NotCancellable.New("message %d is %s: it can no longer be cancelled", m.ID, m.State), m)
	case m.State == Dead:
	case m.State == Sending, v.holder != "" && (v.dueAt.After(tx.now) || v.onUnknown == Resend):
		// One that is sent again when nobody knows is not marked before an attempt: whoever held it last may have sent
		// it.
		f := about(BeingSent.New("message %d is being sent", m.ID), m)
		if wait := v.dueAt.Sub(tx.now); wait > 0 {
			f = f.After(wait)
		}
		return nil, f
	}
	v = tx.queue.Change(c.row)
	v.state, v.gone = Cancelled, true
	tx.events = append(tx.events, event{Key: m.Key, by: c.Caller, month: m.Month, kind: Cancelled})
	m.State = Cancelled
	return m, nil
}

// find is the message of a row as it is now. Returns fault NOTIFY_NOT_FOUND.
func (tx *Tx) find(r *queueRow) (*Message, error) {
	if m := tx.message(r.Key); m != nil {
		return m, nil
	}
	return nil, NotFound.New("there is no message %d", r.Key.ID)
}

// unasked is why a message that nobody asked for in time cannot be changed.
func (tx *Tx) unasked(k Key) error {
	for _, m := range tx.made {
		if m.Key == k {
			return about(BeingSent.New("message %d is being created by the same commit: try again", k.ID), &m.Message)
		}
	}
	return commit.ErrMoreRows
}

// about tells the state that a message is in.
func about(f *fault.Fault, m *Message) *fault.Fault {
	return f.With("message_id", m.ID).With("message_state", m.State)
}
