package inbox

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// RequeueCommand makes a dead message available again: failed, with zero attempts and no backoff.
type RequeueCommand struct {
	commit.Caller
	Key Key

	row *row
}

// Requeued is the answer of RequeueCommand and RequeueAllCommand.
type Requeued struct {
	Count int
	More  bool // more dead messages may follow
}

// Need names the message.
func (c *RequeueCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply returns fault MESSAGE_NOT_FOUND or MESSAGE_NOT_DEAD.
func (c *RequeueCommand) Apply(tx *Tx) (any, error) {
	m, ok := tx.live(c.row)
	if !ok {
		return nil, notFound(c.Key)
	}
	if m.State != Died {
		return nil, about(NotDead.New("message %s is %s: only a dead message can be requeued", m.ID, m.State), m)
	}
	tx.requeue(c.row, c.Caller)
	return Requeued{Count: 1}, nil
}

func (tx *Tx) requeue(r *row, c commit.Caller) {
	m := tx.Change(r)
	m.State, m.Attempts, m.RetryAt, m.RequeuedAt = Failed, 0, tx.Now, tx.Now
	m.FinishedAt, m.LastRequestID = m.LeaseExpiresAt, c.RequestID // requeued messages have neither time
}

// RequeueAllCommand requeues up to 1,000 dead messages of a group, oldest first.
type RequeueAllCommand struct {
	commit.Caller
	Group string
	Topic string // empty: any

	found *deadSet
}

// Need registers the search for dead messages.
func (c *RequeueAllCommand) Need(tx *Tx) { c.found = tx.wantDead(c.Tenant, c.Group, c.Topic) }

// Apply skips messages that are no longer dead.
func (c *RequeueAllCommand) Apply(tx *Tx) (any, error) {
	answer := Requeued{More: len(c.found.rows) == maxDead}
	for _, r := range c.found.rows {
		if m, ok := tx.live(r); ok && m.State == Died {
			tx.requeue(r, c.Caller)
			answer.Count++
		}
	}
	return answer, nil
}
