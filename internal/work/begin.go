package work

import (
	"bytes"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// BeginParams describe the work to begin and its lease.
type BeginParams struct {
	Scope       string
	Key         string
	Fingerprint []byte
	Lease       time.Duration // whole milliseconds
	Life        time.Duration // whole milliseconds
	ParkLapsed  bool
}

// Begun is the answer to a Begin. State Running with Mine is the caller's own attempt; without Mine another caller
// holds the work. Done and Refused work has an answer, to be read under Fence. Parked work waits to be resolved.
type Begun struct {
	State          State
	Mine           bool
	Fence          int64
	Attempt        int32
	LeaseExpiresAt time.Time // of Running
	TakenOver      bool      // from a holder whose lease had expired
	SettledAt      time.Time // zero: parked because the lease expired
	FirstRequestID string
	Now            time.Time // time of the batch
}

// BeginCommand requests the right to do a piece of work. Its answer is a Begun.
type BeginCommand struct {
	commit.Caller
	BeginParams
	// Held is the fence from an earlier answer to the same call, or 0. If that attempt is still current, the
	// command returns the same answer again.
	Held int64

	row *row
}

// Need names the row, and counts one fence for Lookup to draw once the row is locked.
func (c *BeginCommand) Need(tx *Tx) {
	c.row = tx.Want(Key{c.Tenant, c.Scope, c.Key})
	tx.begins++
}

// Apply first checks that the key belongs to the same work, then decides by the row's state.
func (c *BeginCommand) Apply(tx *Tx) (any, error) {
	w := &c.row.Value
	fresh := !c.row.Exists || w.expired(tx.Now)
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
			return commit.Repeat{First: w.begun(tx.Now, state, true), PresentState: true}, nil
		}
	}
	return commit.Repeat{First: w.begun(tx.Now, state, false), PresentState: true}, nil
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
	begun.TakenOver = lapsed
	return begun, nil
}

func (w *work) begun(now time.Time, s State, mine bool) Begun {
	return Begun{State: s, Mine: mine, Fence: w.fence, Attempt: w.attempt, LeaseExpiresAt: w.leaseExpiresAt,
		SettledAt: w.settledAt, FirstRequestID: w.firstRequestID, Now: now}
}
