package work

import (
	"cmp"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Key names a piece of work.
type Key struct {
	Tenant int32
	Scope  string
	Name   string
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Name, b.Name))
}

// State of a piece of work.
type State string

// The states. Lapsed is never stored: it is Running past its lease, which the next Begin takes over. Where
// that is not wanted, such work is Parked.
const (
	Running State = "running"
	Lapsed  State = "lapsed"
	Done    State = "done"
	Refused State = "refused"
	Parked  State = "parked"
	Free    State = "free"
)

// work is a row.
type work struct {
	fingerprint    []byte
	bound          bool // to that fingerprint
	state          State
	fence          int64
	attempt        int32
	lease          time.Duration
	leaseUntil     time.Time // zero: nobody holds it
	parkLapsed     bool
	life           time.Duration
	principal      string
	requestID      string
	firstRequestID string
	createdAt      time.Time
	begunAt        time.Time
	settledAt      time.Time // zero: it runs
	settledBy      string
	settledRequest string
	answer         *Answer // of this batch; nil otherwise, and when there is none
	answerHash     []byte
	expiresAt      time.Time // zero: never
	tid            pgtype.TID
}

// gone: its life is over, whether or not the row is still there.
func (w *work) gone(now time.Time) bool { return !w.expiresAt.IsZero() && !w.expiresAt.After(now) }

// stateAt is its state as it counts at a time.
func (w *work) stateAt(now time.Time) State { return stateAt(w.state, w.leaseUntil, w.parkLapsed, now) }

func stateAt(stored State, leaseUntil time.Time, parkLapsed bool, now time.Time) State {
	switch {
	case stored != Running || leaseUntil.After(now):
		return stored
	case parkLapsed:
		return Parked
	}
	return Lapsed
}

// run gives the work to a holder.
func (w *work) run(now time.Time, fence int64, p *BeginParams, c *Caller) {
	w.state, w.fence = Running, fence
	w.attempt++
	w.fingerprint, w.bound = p.Fingerprint, true
	w.lease, w.life, w.parkLapsed = p.Lease, p.Life, p.ParkLapsed
	w.principal, w.requestID = c.Principal, c.RequestID
	w.begunAt, w.settledAt, w.settledBy, w.settledRequest = now, time.Time{}, "", ""
	w.answer, w.answerHash = nil, nil
	w.extend(now, p.Lease)
}

// extend moves the end of the lease. Who holds it keeps the row alive.
func (w *work) extend(now time.Time, lease time.Duration) {
	w.lease, w.leaseUntil = lease, now.Add(lease)
	switch end := w.begunAt.Add(w.life); {
	case w.parkLapsed:
		w.expiresAt = time.Time{}
	case end.Before(w.leaseUntil):
		w.expiresAt = w.leaseUntil
	default:
		w.expiresAt = end
	}
}

// settle ends the attempt. Its life begins anew, but for parked work, which waits for ever.
func (w *work) settle(now time.Time, s State, a *Answer, c *Caller) {
	w.state, w.leaseUntil = s, time.Time{}
	w.answer, w.answerHash = a, nil
	if a != nil {
		w.answerHash = a.hash(s)
	}
	w.settledAt, w.settledBy, w.settledRequest = now, c.Principal, c.RequestID
	w.expiresAt = now.Add(w.life)
	if s == Parked {
		w.expiresAt = time.Time{}
	}
}
