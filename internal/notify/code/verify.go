package code

import (
	"crypto/hmac"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// VerifyCommand tries a code. Its answer is a Verified. A wrong try stays counted even if the surrounding command
// fails, because the failure could reveal that the code was right or wrong.
type VerifyCommand struct {
	commit.Caller
	Type      string
	Channel   send.Channel
	Recipient string
	Code      string
	// Required makes a wrong code an error, which fails the whole command.
	Required bool
	// MissNonce is a nonce (NewNonce) for the row that counts tries when no code was sent.
	MissNonce Nonce

	target
	counted bool
}

// Verified is the result of a try.
type Verified struct {
	Valid     bool
	TriesLeft int32 // of this code; 0: the code is void
}

var _ commit.Counted[*Tx] = (*VerifyCommand)(nil)

func (c *VerifyCommand) Need(tx *Tx) {
	c.target = tx.want(c.Tenant, c.Type, c.Channel, c.Recipient, 0)
}

// Count counts a wrong try, and reports whether it did. Tries are also counted if no code was sent, so that answers do
// not reveal whether one was. After the daily limit no try is counted.
func (c *VerifyCommand) Count(tx *Tx) bool {
	if c.counted = c.err == nil && !c.wrong.Value.triesSpent(tx.Now) && !c.right(tx); c.counted {
		c.count(tx)
	}
	return c.counted
}

// right compares hashes in all cases, so that the timing reveals nothing.
func (c *VerifyCommand) right(tx *Tx) bool {
	v := &c.row.Value
	sum := hashOf(tx.keysOf(c.Tenant), c.Type, recipient.Same(c.Channel, c.to), v.nonce, c.Code)
	same := hmac.Equal(sum[:], v.hash[:])
	return c.row.Exists && same && c.Code != "" && v.state == open && !v.unsent && v.tries < v.maxTries &&
		tx.Now.Before(v.expiresAt)
}

func (c *VerifyCommand) count(tx *Tx) {
	tx.record("wrong", c.Channel, c.to)
	v := c.row.Value
	switch {
	case !c.row.Exists || !tx.Now.Before(v.expiresAt) && !tx.Now.Before(v.triedAt.Add(triesLife)):
		*tx.Change(c.row) = row{channel: string(c.Channel), hint: recipient.Mask(c.Channel, c.to), state: none,
			nonce: c.MissNonce, tries: 1, maxTries: MaxTries, triedAt: tx.Now,
			sentAt: v.sentAt, expiresAt: tx.Now, principal: c.Principal, requestID: c.RequestID,
			tid: v.tid, messageID: v.messageID, unsent: v.unsent}
	case v.tries < v.maxTries:
		r := tx.Change(c.row)
		r.tries, r.triedAt = r.tries+1, tx.Now
	default:
		return // the code is void: there is nothing to guess
	}
	w := c.wrong.Value
	*tx.Change(c.wrong) = row{channel: string(c.Channel), hint: recipient.Mask(c.Channel, c.to), state: none,
		maxTries: MaxTries,
		sentAt:   append(w.lately(tx.Now), tx.Now), expiresAt: tx.Now, principal: c.Principal, requestID: c.RequestID,
		tid: w.tid}
}

// Apply uses the code. Returns faults CODE_TRIES_SPENT, CODE_WRONG (if Required), SECRET_NOT_CONFIGURED and
// FIELD_INVALID.
func (c *VerifyCommand) Apply(tx *Tx) (any, error) {
	if c.err != nil {
		return nil, c.err
	}
	if !c.counted {
		if err := c.checkTries(tx, c.Channel); err != nil {
			return nil, err
		}
		if !c.right(tx) { // used or voided by an earlier command of the batch since Count
			c.counted = true
			c.count(tx)
		}
	}
	v := &c.row.Value
	left := max(0, v.maxTries-v.tries)
	if c.counted {
		if c.Required {
			return nil, Wrong.New("the code is wrong").With("tries_left", left)
		}
		return Verified{TriesLeft: left}, nil
	}
	tx.Change(c.row).state = used
	tx.record("verified", c.Channel, c.to)
	return Verified{Valid: true, TriesLeft: left}, nil
}
