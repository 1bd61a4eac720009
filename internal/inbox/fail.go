package inbox

import (
	"github.com/ledgerd/ledgerd/internal/commit"
)

// FailCommand ends an attempt that did not go well. Its answer is a Message.
type FailCommand struct {
	commit.Caller
	Key Key
	// Fence is that of the attempt; 0: nobody began it, and this makes and ends one.
	Fence     int64
	Error     string
	Permanent bool
	Delivery  Delivery // without a fence

	row *row
}

// Need names the message.
func (c *FailCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply lets the message wait for its next attempt, or die. To fail an attempt again is done already.
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
	m.fail(tx.Now, c.Caller, c.Error, c.Permanent)
	return *m, nil
}

// unbegun counts a failed attempt of a message that nobody holds. What has ended, or waits after a failed
// attempt that two consumers saw, stays as it is.
func (c *FailCommand) unbegun(tx *Tx) (any, error) {
	if err := tx.compare(c.row, &c.Delivery); err != nil {
		return nil, err
	}
	if m, ok := tx.live(c.row); ok {
		if m.State == Processing && m.LeaseUntil.After(tx.Now) {
			return nil, refuse(m, tx.Now)
		}
		if refuse(m, tx.Now) != nil {
			return commit.Repeat{First: *m}, nil
		}
	}
	m := tx.attempt(c.row, c.Caller, &c.Delivery)
	m.Holder = c.Principal
	m.fail(tx.Now, c.Caller, c.Error, c.Permanent)
	return *m, nil
}
