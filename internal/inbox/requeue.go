package inbox

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// RequeueCommand brings a dead message back: failed, with no attempts, to be taken at once.
type RequeueCommand struct {
	commit.Caller
	Key Key

	row *row
}

// Requeued is the answer of both commands.
type Requeued struct {
	Count int
	More  bool // there may be more
}

// Need names the message.
func (c *RequeueCommand) Need(b *Book) { c.row = b.Want(c.Key) }

// Apply returns fault MESSAGE_NOT_FOUND or MESSAGE_NOT_DEAD.
func (c *RequeueCommand) Apply(b *Book) (any, error) {
	m, ok := b.live(c.row)
	if !ok {
		return nil, NotFound.New("there is no message %s", c.Key.ID)
	}
	if m.State != Died {
		return nil, about(NotDead.New("message %s is %s", m.ID, m.State), m)
	}
	b.requeue(c.row, c.Caller)
	return Requeued{Count: 1}, nil
}

func (b *Book) requeue(r *row, c commit.Caller) {
	m := b.Change(r)
	m.State, m.Attempts, m.RetryAt, m.RequeuedAt = Failed, 0, b.Now, b.Now
	m.FinishedAt, m.LastRequestID = m.LeaseUntil, c.RequestID // neither has a time
}

// RequeueAllCommand brings dead messages of a group back, oldest first, up to 1,000.
type RequeueAllCommand struct {
	commit.Caller
	Group string
	Topic string // empty: any

	found *deadSet
}

// Need has them found.
func (c *RequeueAllCommand) Need(b *Book) { c.found = b.wantDead(c.Tenant, c.Group, c.Topic) }

// Apply passes over those that somebody was faster with.
func (c *RequeueAllCommand) Apply(b *Book) (any, error) {
	answer := Requeued{More: len(c.found.rows) == maxDead}
	for _, r := range c.found.rows {
		if m, ok := b.live(r); ok && m.State == Died {
			b.requeue(r, c.Caller)
			answer.Count++
		}
	}
	return answer, nil
}
