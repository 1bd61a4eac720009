package work

import (
	"bytes"
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Held identifies the attempt that a holder reports on.
type Held struct {
	Scope string
	Key   string
	Fence int64
}

func (h *Held) need(tx *Tx, tenant int32) *row { return tx.Want(Key{tenant, h.Scope, h.Key}) }

// of returns the work if the fence is the newest.
func (h *Held) of(tx *Tx, r *row) (*work, error) {
	w := &r.Value
	if !r.Exists || w.expired(tx.Now) {
		return nil, h.lost("gone")
	}
	if w.fence != h.Fence {
		return nil, h.lost(w.stateAt(tx.Now)).With("newest_fence", w.fence)
	}
	return w, nil
}

func (h *Held) lost(s State) *fault.Fault {
	return fault.FenceLost.New("fence %d of work %s %q is no longer current", h.Fence, h.Scope, h.Key).
		With("scope", h.Scope).With("key", h.Key).With("fence", h.Fence).With("state", s)
}

// ExtendCommand renews a lease. Its answer is the current Begun. An expired lease may be renewed as long as no
// other caller took the work over.
type ExtendCommand struct {
	commit.Caller
	Held
	Lease time.Duration // 0: unchanged

	row *row
}

func (c *ExtendCommand) Need(tx *Tx) { c.row = c.need(tx, c.Tenant) }

func (c *ExtendCommand) Apply(tx *Tx) (any, error) {
	w, err := c.of(tx, c.row)
	if err != nil {
		return nil, err
	}
	if w.state != Running {
		return nil, c.lost(w.state)
	}
	w = tx.Change(c.row)
	w.extend(tx.Now, cmp.Or(c.Lease, w.lease))
	return w.begun(tx.Now, Running, true), nil
}

// Settled is the state of a piece of work after a Complete, an Abandon or a Resolve.
type Settled struct {
	State     State
	SettledAt time.Time
	ExpiresAt time.Time // zero: never
}

func (w *work) settled() Settled {
	return Settled{State: w.state, SettledAt: w.settledAt, ExpiresAt: w.expiresAt}
}

// CompleteCommand ends an attempt with an answer: Done, Refused, or Parked if the outcome is unknown. Its
// answer is a Settled. It succeeds after the lease expired as long as no other caller took the work over. The
// holder may also settle work that it had parked.
type CompleteCommand struct {
	commit.Caller
	Held
	State  State
	Answer *Answer

	row *row
}

func (c *CompleteCommand) Need(tx *Tx) { c.row = c.need(tx, c.Tenant) }

func (c *CompleteCommand) Apply(tx *Tx) (any, error) {
	w, err := c.of(tx, c.row)
	if err != nil {
		return nil, err
	}
	switch {
	case w.state == c.State && bytes.Equal(w.answerHash, c.Answer.hash(c.State)):
		return commit.Repeat{First: w.settled()}, nil
	case w.state == Done || w.state == Refused:
		return nil, c.differs(w)
	case w.state == Free:
		return nil, c.lost(Free)
	}
	w = tx.Change(c.row)
	w.settle(tx.Now, c.State, c.Answer, &c.Caller)
	return w.settled(), nil
}

func (h *Held) differs(w *work) *fault.Fault {
	return AnswerDiffers.New("work %s %q has already ended with another answer", h.Scope, h.Key).
		With("scope", h.Scope).With("key", h.Key).With("fence", h.Fence).With("state", w.state)
}

// AbandonCommand ends an attempt that had no effect; the next Begin runs immediately. Its answer is a Settled.
// Forget allows the next Begin to have another fingerprint.
type AbandonCommand struct {
	commit.Caller
	Held
	Forget bool

	row *row
}

func (c *AbandonCommand) Need(tx *Tx) { c.row = c.need(tx, c.Tenant) }

func (c *AbandonCommand) Apply(tx *Tx) (any, error) {
	w, err := c.of(tx, c.row)
	if err != nil {
		return nil, err
	}
	switch w.state {
	case Free:
		if !w.bound || !c.Forget {
			return commit.Repeat{First: w.settled()}, nil
		}
	case Done, Refused:
		return nil, c.lost(w.state)
	}
	w = tx.Change(c.row)
	w.settle(tx.Now, Free, nil, &c.Caller)
	if c.Forget {
		w.fingerprint, w.bound = nil, false
	}
	return w.settled(), nil
}

// ResolveCommand settles work that is parked or whose lease expired, on behalf of an operator or a reconciling
// program. Its answer is a Settled.
type ResolveCommand struct {
	commit.Caller
	Held
	State  State   // Done, Refused or Free
	Answer *Answer // nil for Free

	row *row
}

func (c *ResolveCommand) Need(tx *Tx) { c.row = c.need(tx, c.Tenant) }

// Apply settles the work if the attempt is still the one that the caller examined.
func (c *ResolveCommand) Apply(tx *Tx) (any, error) {
	if !c.row.Exists || c.row.Value.expired(tx.Now) {
		return nil, notFound(c.Scope, c.Key)
	}
	w, err := c.of(tx, c.row)
	if err != nil {
		return nil, err
	}
	if w.state == c.State && (c.State == Free || bytes.Equal(w.answerHash, c.Answer.hash(c.State))) {
		return commit.Repeat{First: w.settled()}, nil
	}
	if s := w.stateAt(tx.Now); s != Parked && s != Lapsed {
		return nil, NotParked.New("work %s %q is %s, so there is nothing to resolve", c.Scope, c.Key, s).
			With("scope", c.Scope).With("key", c.Key).With("fence", w.fence).With("state", s)
	}
	w = tx.Change(c.row)
	w.settle(tx.Now, c.State, c.Answer, &c.Caller)
	return w.settled(), nil
}
