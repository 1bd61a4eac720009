package work

import (
	"bytes"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Caller is on whose behalf a command runs.
type Caller = commit.Caller

// BeginParams say which work is to begin, and how.
type BeginParams struct {
	Scope       string
	Key         string
	Fingerprint []byte
	Lease       time.Duration // whole milliseconds
	Life        time.Duration // whole milliseconds
	ParkLapsed  bool
}

// Begun is how a Begin ended. State tells: Running with Mine is the caller's own attempt, without Mine
// somebody else's; Done and Refused have an answer to be read under Fence; Parked waits for somebody.
type Begun struct {
	State          State
	Mine           bool
	Fence          int64
	Attempt        int32
	LeaseUntil     time.Time // of Running
	TookOver       bool      // from a holder whose lease had lapsed
	SettledAt      time.Time // zero: parked by the end of its lease
	FirstRequestID string
	Now            time.Time // of the batch
}

// BeginCommand asks for the right to do a piece of work. Its answer is a Begun.
type BeginCommand struct {
	Caller
	BeginParams
	// Held is the fence that an earlier answer to the same call gave, 0 for none: if it still holds, the
	// answer is the same again.
	Held int64

	row *row
}

// Need names the row, and a fence.
func (c *BeginCommand) Need(tx *Tx) {
	c.row = tx.Want(Key{c.Tenant, c.Scope, c.Key})
	tx.begins++
}

// Apply looks at what is there: first whether it is the same work at all, then who has it.
func (c *BeginCommand) Apply(tx *Tx) (any, error) {
	w := &c.row.Value
	fresh := !c.row.Exists || w.gone(tx.Now)
	if !fresh && w.bound && !bytes.Equal(w.fingerprint, c.Fingerprint) {
		return nil, WorkKeyReused.New("the key was already used to begin work with another fingerprint").
			With("scope", c.Scope).With("key", c.Key).With("first_request_id", w.firstRequestID)
	}
	state := Free
	if !fresh {
		state = w.stateAt(tx.Now)
	}
	switch state {
	case Free, Lapsed:
		return c.run(tx, fresh, state == Lapsed)
	case Running:
		if w.fence == c.Held {
			return commit.Repeat{First: w.begun(tx.Now, state, true)}, nil
		}
	}
	return commit.Repeat{First: w.begun(tx.Now, state, false)}, nil
}

func (c *BeginCommand) run(tx *Tx, fresh, lapsed bool) (any, error) {
	fence, ok := tx.fence()
	if !ok {
		return nil, commit.ErrMoreRows
	}
	w := tx.Change(c.row)
	if fresh {
		*w = work{tid: w.tid, firstRequestID: c.RequestID, createdAt: tx.Now}
	}
	w.run(tx.Now, fence, &c.BeginParams, &c.Caller)
	begun := w.begun(tx.Now, Running, true)
	begun.TookOver = lapsed
	return begun, nil
}

func (w *work) begun(now time.Time, s State, mine bool) Begun {
	return Begun{State: s, Mine: mine, Fence: w.fence, Attempt: w.attempt, LeaseUntil: w.leaseUntil,
		SettledAt:      w.settledAt,
		FirstRequestID: w.firstRequestID, Now: now}
}
