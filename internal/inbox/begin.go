package inbox

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Verdict is the instruction to the consumer of a delivery.
type Verdict uint8

const (
	Run       Verdict = iota + 1
	Done              // acknowledge
	BusyUntil         // another consumer is processing the message: redeliver later
	Buried            // dead: acknowledge
	LaterThan         // in backoff: redeliver later
)

// Begun is the answer of BeginCommand.
type Begun struct {
	Verdict Verdict
	Until   time.Time // set with BusyUntil and LaterThan
	Message Message
}

// BeginCommand acquires a message for processing outside this server. Its answer is a Begun. Only a Run is
// recorded under a request key, because every other verdict is temporary. A Run is temporary too: a caller that
// gets a recorded Run begins again with its fence in Held.
type BeginCommand struct {
	commit.Caller
	Key      Key
	Delivery Delivery
	Holder   string
	Lease    time.Duration
	// Held is the fence from an earlier answer to the same call, or 0. If that attempt is still current, the
	// command returns the same answer again.
	Held int64
	// OrFail turns BusyUntil and LaterThan into the faults MESSAGE_BUSY and MESSAGE_LATER, so that guards
	// before the command, such as spent tokens, are undone.
	OrFail bool

	row *row
}

// Need names the message.
func (c *BeginCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply begins an attempt if the message is available. A message whose leases expired too often becomes dead.
func (c *BeginCommand) Apply(tx *Tx) (any, error) {
	if err := tx.compare(c.row, &c.Delivery); err != nil {
		return nil, err
	}
	if m, ok := tx.live(c.row); ok {
		switch {
		case m.State == Succeeded:
			return present(Begun{Verdict: Done, Message: *m})
		case m.State == Died:
			return present(Begun{Verdict: Buried, Message: *m})
		case m.State == Processing && m.LeaseExpiresAt.After(tx.Now) && m.Fence == c.Held:
			return present(Begun{Verdict: Run, Message: *m})
		case c.OrFail && refuse(m, tx.Now) != nil:
			return nil, refuse(m, tx.Now)
		case m.State == Processing && m.LeaseExpiresAt.After(tx.Now):
			return present(Begun{BusyUntil, m.LeaseExpiresAt, *m})
		case m.State == Failed && m.RetryAt.After(tx.Now):
			return present(Begun{LaterThan, m.RetryAt, *m})
		case m.State == Processing && m.Attempts >= c.Delivery.MaxAttempts:
			m = tx.Change(c.row)
			m.MaxAttempts = c.Delivery.MaxAttempts
			m.fail(tx.Now, c.Caller, "the lease of the last attempt expired", false)
			return present(Begun{Verdict: Buried, Message: *m})
		}
	}
	m := tx.attempt(c.row, c.Caller, &c.Delivery)
	m.State, m.Holder, m.LeaseExpiresAt = Processing, c.Holder, tx.Now.Add(c.Lease)
	return Begun{Verdict: Run, Message: *m}, nil
}

// held returns the message of the running attempt with this fence. Returns fault MESSAGE_NOT_FOUND, or
// MESSAGE_LEASE_LOST if the fence is not current. An expired lease remains valid until another consumer begins
// the message; refusing the holder would only repeat the work.
func (tx *Tx) held(r *row, fence int64) (*Message, error) {
	m, ok := tx.live(r)
	switch {
	case !ok:
		return nil, notFound(r.Key)
	case m.State != Processing || m.Fence != fence:
		return nil, about(LeaseLost.New("message %s is not being processed under fence %d", m.ID, fence),
			m).With("fence", m.Fence)
	}
	return tx.Change(r), nil
}

// ended reports whether the attempt with this fence has already ended in one of the states.
func (tx *Tx) ended(r *row, fence int64, states ...string) (*Message, bool) {
	m, ok := tx.live(r)
	for _, s := range states {
		if ok && m.State == s && m.Fence == fence {
			return m, true
		}
	}
	return nil, false
}

// present answers a Begin that began no attempt with the state of the message, which is not recorded.
func present(b Begun) (any, error) { return commit.Repeat{First: b, PresentState: true}, nil }

// CompleteCommand ends an attempt successfully. Its answer is a Message.
type CompleteCommand struct {
	commit.Caller
	Key    Key
	Fence  int64
	Result string

	row *row
}

// Need names the message.
func (c *CompleteCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply completes the message. Completing an attempt twice is a repeat.
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

// ExtendCommand extends a lease. Its answer is a Message.
type ExtendCommand struct {
	commit.Caller
	Key   Key
	Fence int64
	Lease time.Duration

	row *row
}

// Need names the message.
func (c *ExtendCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

func (c *ExtendCommand) Apply(tx *Tx) (any, error) {
	m, err := tx.held(c.row, c.Fence)
	if err != nil {
		return nil, err
	}
	m.LeaseExpiresAt, m.LastRequestID = tx.Now.Add(c.Lease), c.RequestID
	return *m, nil
}
