package inbox

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// FailCommand ends an attempt with a failure. Its answer is a Message.
type FailCommand struct {
	commit.Caller
	Key Key
	// Fence is the attempt's fence. 0 reports a failure without a Begin: the command records a new attempt and
	// fails it.
	Fence       int64
	FailureText string
	Permanent   bool
	Delivery    Delivery // used without a fence

	row *row
}

// Need names the message.
func (c *FailCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply schedules the next attempt, or makes the message dead. Failing an attempt twice is a repeat.
func (c *FailCommand) Apply(tx *Tx) (any, error) {
	if c.Fence == 0 {
		return c.unbegun(tx)
	}
	if m, ok := tx.ended(c.row, c.Fence, Failed, Died); ok {
		return commit.Repeat{First: *m}, nil
	}
	m, err := tx.held(c.row, c.Fence)
	if err != nil {
		return nil, err
	}
	m.fail(tx.Now, c.Caller, c.FailureText, c.Permanent)
	return *m, nil
}

// unbegun records a failed attempt of a message that no consumer holds. A message that has ended stays
// unchanged. So does one in backoff: two consumers may report the same failure.
func (c *FailCommand) unbegun(tx *Tx) (any, error) {
	if err := tx.compare(c.row, &c.Delivery); err != nil {
		return nil, err
	}
	if m, ok := tx.live(c.row); ok {
		if m.State == Processing && m.LeaseExpiresAt.After(tx.Now) {
			return nil, refuse(m, tx.Now)
		}
		if refuse(m, tx.Now) != nil {
			return commit.Repeat{First: *m}, nil
		}
	}
	m := tx.attempt(c.row, c.Caller, &c.Delivery)
	m.Holder = c.Principal
	m.fail(tx.Now, c.Caller, c.FailureText, c.Permanent)
	return *m, nil
}
