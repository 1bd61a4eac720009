package notify

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// CancelCommand cancels a message that waits to be sent or is dead. Its answer is a *Message.
type CancelCommand struct {
	commit.Caller
	ID int64

	row *queueRow
}

func (c *CancelCommand) Need(tx *Tx) { c.row = tx.openRow(Key{c.Tenant, c.ID}) }

// openRow returns the notify_queue row of a message, to be locked and changed. It returns nil if the batch has started
// without requesting the row.
func (tx *Tx) openRow(k Key) *queueRow {
	if tx.started() {
		return tx.queue.Wanted(k)
	}
	return tx.queue.Want(k)
}

// Apply cancels the message. Returns faults NOTIFY_NOT_FOUND, NOTIFY_BEING_SENT and NOTIFY_NOT_CANCELLABLE.
func (c *CancelCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil {
		return c.revoke(tx)
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
		return nil, withState(NotCancellable.New("message %d is %s: it can no longer be cancelled", m.ID, m.State), m)
	case m.State == Dead:
	case m.State == Sending, v.holder != "" && (v.dueAt.After(tx.Now) || v.onUnknown == Resend):
		// A message with on_unknown = resend is not marked as sending before an attempt, so its last holder may have
		// sent it even though the lease expired.
		f := withState(BeingSent.New("message %d is being sent", m.ID), m)
		if wait := v.dueAt.Sub(tx.Now); wait > 0 {
			f = f.After(wait)
		}
		return nil, f
	}
	v = tx.queue.Change(c.row)
	v.state, v.gone = Cancelled, true
	tx.note(event{Key: m.Key, by: c.Caller, month: m.Month, kind: Cancelled})
	m.State = Cancelled
	return m, nil
}

// revoke cancels a message that this batch has accepted, unless it is due already: then it is being sent when the batch
// commits.
func (c *CancelCommand) revoke(tx *Tx) (any, error) {
	k := Key{c.Tenant, c.ID}
	m := tx.byKey[k]
	if m == nil || !m.DueAt.After(tx.Now) {
		return nil, tx.notRequested(k)
	}
	if m.revoked {
		return commit.Repeat{First: tx.present(&m.Message)}, nil
	}
	m.revoked = true
	tx.revoked = append(tx.revoked, m)
	tx.note(event{Key: k, by: c.Caller, month: m.Month, kind: Cancelled})
	return tx.present(&m.Message), nil
}

// present returns a message that this batch has accepted, with its current state. m may be nil.
func (tx *Tx) present(m *Message) *Message {
	if m == nil {
		return nil
	}
	if c := tx.byKey[m.Key]; c == nil || !c.revoked {
		return m
	}
	now := *m
	now.State = Cancelled
	return &now
}

// Named reports whether a CancelCommand can cancel a message now: its row was requested, or this batch accepted it.
func (tx *Tx) Named(k Key) bool { return tx.queue.Wanted(k) != nil || tx.byKey[k] != nil }

func notFound(id int64) error {
	return NotFound.New("there is no message %d", id).With("message_id", id).
		WithField("message_id", "must be the id of a message that exists")
}

// find returns the message of a row in its present state. Returns fault NOTIFY_NOT_FOUND.
func (tx *Tx) find(r *queueRow) (*Message, error) {
	if m := tx.message(r.Key); m != nil {
		return m, nil
	}
	return nil, notFound(r.Key.ID)
}

// notRequested returns the error for a message whose row was not requested before the batch started.
func (tx *Tx) notRequested(k Key) error {
	if m := tx.byKey[k]; m != nil {
		return withState(BeingSent.New("message %d is being created by the same commit: try again", k.ID), &m.Message)
	}
	return commit.ErrMoreRows
}

// withState adds the message's state to a fault.
func withState(f *fault.Fault, m *Message) *fault.Fault {
	return f.With("message_id", m.ID).With("message_state", m.State)
}
