package machine

import (
	"time"
)

// Name identifies a machine.
type Name struct {
	Tenant  int32
	Machine string
}

// Version is a stored version of a machine.
type Version struct {
	Name
	Number     int32
	Definition *Definition // read-only
	Principal  string
	RequestID  string
	CreatedAt  time.Time
}

// Key identifies an instance.
type Key struct {
	Tenant       int32
	Machine, Key string
}

// Instance is a resource in one state of a machine, such as an order.
type Instance struct {
	Key
	ID       int64
	Version  int32 // of the machine; never changes
	State    string
	CameFrom string // state before the last move; empty: it has not moved
	// Revision counts the moves, and the creation as the first.
	Revision int64
	Cause    string        // of the last move
	Owner    string        // empty: none
	OwnTimer time.Duration // length of its first state's timer, if the creator gave one
	TimerAt  time.Time     // when the timer of its state fires; zero: the state has none
	TimerTo  string
	// ChangedAt is when the instance entered its state. If a timer moved it, that is the timer's time until the move is
	// recorded, and the time of recording afterwards.
	CreatedAt, ChangedAt time.Time
}

// Causes that the service writes. Callers may not use them.
const (
	CauseCreation = "creation"
	CauseTimer    = "timer"
)

// Limits of texts, in bytes.
const (
	MaxCause  = 128
	MaxReason = 512
)

// due reports whether the timer has fired, recorded or not.
func (i *Instance) due(now time.Time) bool { return !i.TimerAt.IsZero() && !i.TimerAt.After(now) }

// move changes the state.
func (i *Instance) move(to, cause string, at time.Time) {
	i.CameFrom, i.State, i.Cause, i.ChangedAt = i.State, to, cause, at
	i.Revision++
	i.TimerAt, i.TimerTo = time.Time{}, ""
}

// At returns the instance as it counts at a time: moved by its timer, if that has fired.
func (i Instance) At(now time.Time) Instance {
	if i.due(now) {
		i.move(i.TimerTo, CauseTimer, i.TimerAt)
	}
	return i
}
