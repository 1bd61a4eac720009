package notify

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// RequeueCommand brings a message back that is dead or unknown. Its answer is a Requeued.
type RequeueCommand struct {
	commit.Caller
	ID          int64
	GiveUpAfter time.Duration

	row *queueRow
}

// Requeued tells how many messages were brought back.
type Requeued struct {
	Count int
	More  bool // there may be others
}

// Need names the message.
func (c *RequeueCommand) Need(tx *Tx) { c.row = tx.change(Key{c.Tenant, c.ID}) }

// Apply brings it back. Returns faults NOTIFY_NOT_FOUND, NOTIFY_NOT_PARKED, and NOTIFY_CONTENT_GONE.
func (c *RequeueCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil {
		return nil, tx.unasked(Key{c.Tenant, c.ID})
	}
	m, err := tx.find(c.row)
	if err != nil {
		return nil, err
	}
	if m.State != Dead && m.State != Unknown || m.OnUnknown == Never {
		return nil, about(NotParked.New("message %d is %s: only a dead or unknown message can be requeued, unless its on_unknown is never", m.ID, m.State), m).With("on_unknown", m.OnUnknown)
	}
	if !m.ContentsUntil.After(tx.now) {
		return nil, about(ContentGone.New("the content of message %d was deleted", m.ID), m)
	}
	tx.requeue(c.row, m, c.Caller, c.GiveUpAfter)
	return Requeued{Count: 1}, nil
}

// requeue brings a message back, to be tried for as long as it still says something.
func (tx *Tx) requeue(r *queueRow, m *Message, by commit.Caller, giveUpAfter time.Duration) {
	v := tx.queue.Change(r)
	v.state, v.requeued, v.unsure, v.dueAt = Queued, true, false, tx.now
	v.giveUpAt = tx.now.Add(cmp.Or(min(giveUpAfter, MostGiveUpAfter), DefaultGiveUpAfter))
	if v.giveUpAt.After(m.ContentsUntil) {
		v.giveUpAt = m.ContentsUntil
	}
	tx.events = append(tx.events, event{Key: m.Key, by: by, month: m.Month, kind: requeued})
}

// RequeueAllCommand brings dead messages back. Its answer is a Requeued.
type RequeueAllCommand struct {
	commit.Caller
	Channel     send.Channel // empty: of any
	Code        string       // empty: any
	GiveUpAfter time.Duration

	found *deadSet
}

// deadSet is what a filter finds.
type deadSet struct {
	tenant  int32
	channel send.Channel
	code    string
	rows    []*queueRow
}

// mostDead is how many one command brings back: the constant in DeadFind.
const mostDead = 1000

// Need looks for them. They are locked then, and may have changed meanwhile.
func (c *RequeueAllCommand) Need(tx *Tx) {
	c.found = &deadSet{tenant: c.Tenant, channel: c.Channel, code: c.Code}
	tx.dead = append(tx.dead, c.found)
}

// Apply brings back those that still are dead and have something to say.
func (c *RequeueAllCommand) Apply(tx *Tx) (any, error) {
	answer := Requeued{More: len(c.found.rows) == mostDead}
	for _, r := range c.found.rows {
		m, err := tx.find(r)
		if err == nil && m.State == Dead && m.OnUnknown != Never && m.ContentsUntil.After(tx.now) {
			tx.requeue(r, m, c.Caller, c.GiveUpAfter)
			answer.Count++
		}
	}
	return answer, nil
}
