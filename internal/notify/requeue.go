package notify

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// RequeueCommand requeues a dead or unknown message. Its answer is a Requeued.
type RequeueCommand struct {
	commit.Caller
	ID          int64
	GiveUpAfter time.Duration

	row *queueRow
}

// Requeued is the number of requeued messages.
type Requeued struct {
	Count int
	More  bool // maxDead was reached: call again
}

func (c *RequeueCommand) Need(tx *Tx) { c.row = tx.openRow(Key{c.Tenant, c.ID}) }

// Apply requeues the message. Returns faults NOTIFY_NOT_FOUND, NOTIFY_NOT_PARKED and NOTIFY_CONTENT_GONE.
func (c *RequeueCommand) Apply(tx *Tx) (any, error) {
	if c.row == nil {
		return nil, tx.notRequested(Key{c.Tenant, c.ID})
	}
	m, err := tx.find(c.row)
	if err != nil {
		return nil, err
	}
	if m.State != Dead && m.State != Unknown || m.OnUnknown == Never {
		f := NotParked.New("message %d is %s: only a dead or unknown message can be requeued, "+
			"unless its on_unknown is never", m.ID, m.State)
		return nil, withState(f, m).With("on_unknown", m.OnUnknown)
	}
	if !m.ContentsUntil.After(tx.Now) {
		return nil, withState(ContentGone.New("the content of message %d was deleted", m.ID), m)
	}
	tx.requeue(c.row, m, c.Caller, c.GiveUpAfter)
	return Requeued{Count: 1}, nil
}

// requeue requeues a message. It gives up no later than its content is deleted.
func (tx *Tx) requeue(r *queueRow, m *Message, by commit.Caller, giveUpAfter time.Duration) {
	v := tx.queue.Change(r)
	v.state, v.requeued, v.unsure, v.dueAt = Queued, true, false, tx.Now
	v.giveUpAt = tx.Now.Add(cmp.Or(min(giveUpAfter, MaxGiveUpAfter), DefaultGiveUpAfter))
	if v.giveUpAt.After(m.ContentsUntil) {
		v.giveUpAt = m.ContentsUntil
	}
	tx.note(event{Key: m.Key, by: by, month: m.Month, kind: requeued})
}

// RequeueAllCommand requeues the dead messages that match a filter. Its answer is a Requeued.
type RequeueAllCommand struct {
	commit.Caller
	Channel     send.Channel // empty: any
	FailureCode string       // empty: any
	GiveUpAfter time.Duration

	found *deadSet
}

// deadSet is a filter and the rows that match it.
type deadSet struct {
	tenant      int32
	channel     send.Channel
	failureCode string
	rows        []*queueRow
}

// maxDead limits one command. It equals the constant in DeadFind.
const maxDead = 1000

// Need requests the matching rows. They are locked later and may have changed by then.
func (c *RequeueAllCommand) Need(tx *Tx) {
	c.found = &deadSet{tenant: c.Tenant, channel: c.Channel, failureCode: c.FailureCode}
	tx.dead = append(tx.dead, c.found)
}

// Apply requeues the messages that are still dead and still have their content.
func (c *RequeueAllCommand) Apply(tx *Tx) (any, error) {
	answer := Requeued{More: len(c.found.rows) == maxDead}
	for _, r := range c.found.rows {
		m, err := tx.find(r)
		if err == nil && m.State == Dead && m.OnUnknown != Never && m.ContentsUntil.After(tx.Now) {
			tx.requeue(r, m, c.Caller, c.GiveUpAfter)
			answer.Count++
		}
	}
	return answer, nil
}
