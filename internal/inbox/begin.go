package inbox

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Verdict is what to do with a delivery.
type Verdict uint8

// The verdicts.
const (
	Run       Verdict = iota + 1
	Done              // acknowledge
	BusyUntil         // somebody works on it: come again
	Buried            // dead: acknowledge
	LaterThan         // its wait is not over: come again
)

// Begun is the answer of BeginCommand.
type Begun struct {
	Verdict Verdict
	Until   time.Time // with BusyUntil and LaterThan
	Message Message
}

// BeginCommand takes a message for work that is done elsewhere. Its answer is Begun; only a Run is
// recorded under a request key, since every other verdict is true for a while only. So is a Run: who gets a
// recorded one asks again with the fence in Held.
type BeginCommand struct {
	commit.Caller
	Key      Key
	Delivery Delivery
	Holder   string
	Lease    time.Duration
	// Held is the fence that an earlier answer to the same call gave, 0 for none: if it still holds, the answer
	// is the same again.
	Held int64
	// OrFail makes faults of BusyUntil and LaterThan, MESSAGE_BUSY and MESSAGE_LATER: what stood before the
	// command is given back then.
	OrFail bool

	row *row
}

// Need names the message.
func (c *BeginCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply takes it, if it may be taken. One whose holders let their lease lapse too often is dead.
func (c *BeginCommand) Apply(tx *Tx) (any, error) {
	if err := tx.compare(c.row, &c.Delivery); err != nil {
		return nil, err
	}
	if m, ok := tx.live(c.row); ok {
		switch {
		case m.State == Succeeded:
			return commit.Repeat{First: Begun{Verdict: Done, Message: *m}}, nil
		case m.State == Died:
			return commit.Repeat{First: Begun{Verdict: Buried, Message: *m}}, nil
		case m.State == Processing && m.LeaseUntil.After(tx.Now) && m.Fence == c.Held:
			return commit.Repeat{First: Begun{Verdict: Run, Message: *m}}, nil
		case c.OrFail && refuse(m, tx.Now) != nil:
			return nil, refuse(m, tx.Now)
		case m.State == Processing && m.LeaseUntil.After(tx.Now):
			return commit.Repeat{First: Begun{BusyUntil, m.LeaseUntil, *m}}, nil
		case m.State == Failed && m.RetryAt.After(tx.Now):
			return commit.Repeat{First: Begun{LaterThan, m.RetryAt, *m}}, nil
		case m.State == Processing && m.Attempts >= c.Delivery.MaxAttempts:
			m = tx.Change(c.row)
			m.MaxAttempts = c.Delivery.MaxAttempts
			m.fail(tx.Now, c.Caller, "the lease of the last attempt lapsed", false)
			return commit.Repeat{First: Begun{Verdict: Buried, Message: *m}}, nil
		}
	}
	m := tx.attempt(c.row, c.Caller, &c.Delivery)
	m.State, m.Holder, m.LeaseUntil = Processing, c.Holder, tx.Now.Add(c.Lease)
	return Begun{Verdict: Run, Message: *m}, nil
}

// held finds the message of an attempt under way. Returns fault MESSAGE_NOT_FOUND, or MESSAGE_LEASE_LOST
// when the fence is not that of the attempt. A lease that is over is still its holder's as long as nobody
// has taken the message: to refuse him would have the work done twice.
func (tx *Tx) held(r *row, fence int64) (*Message, error) {
	m, ok := tx.live(r)
	switch {
	case !ok:
		return nil, NotFound.New("there is no message %s", r.Key.ID)
	case m.State != Processing || m.Fence != fence:
		return nil, about(LeaseLost.New("message %s is not being processed under fence %d", m.ID, fence),
			m).With("fence", m.Fence)
	}
	return tx.Change(r), nil
}

// ended tells whether the attempt of a fence ended in one of the states before.
func (tx *Tx) ended(r *row, fence int64, states ...string) (*Message, bool) {
	m, ok := tx.live(r)
	for _, s := range states {
		if ok && m.State == s && m.Fence == fence {
			return m, true
		}
	}
	return nil, false
}

// CompleteCommand ends an attempt well. Its answer is a Message.
type CompleteCommand struct {
	commit.Caller
	Key    Key
	Fence  int64
	Result string

	row *row
}

// Need names the message.
func (c *CompleteCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply completes it. To complete an attempt again is done already.
func (c *CompleteCommand) Apply(tx *Tx) (any, error) {
	if m, ok := tx.ended(c.row, c.Fence, Succeeded); ok {
		return commit.Repeat{First: *m}, nil
	}
	m, err := tx.held(c.row, c.Fence)
	if err != nil {
		return nil, err
	}
	m.succeed(tx.Now, c.Caller, c.Result)
	return *m, nil
}

// ExtendCommand lengthens a lease. Its answer is a Message.
type ExtendCommand struct {
	commit.Caller
	Key   Key
	Fence int64
	Lease time.Duration

	row *row
}

// Need names the message.
func (c *ExtendCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply lets the lease end so long from now.
func (c *ExtendCommand) Apply(tx *Tx) (any, error) {
	m, err := tx.held(c.row, c.Fence)
	if err != nil {
		return nil, err
	}
	m.LeaseUntil, m.LastRequestID = tx.Now.Add(c.Lease), c.RequestID
	return *m, nil
}
