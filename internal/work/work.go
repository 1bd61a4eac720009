package work

import (
	"cmp"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
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

// Lapsed is never stored: it is Running with an expired lease, which the next Begin takes over. With ParkLapsed
// set, such work counts as Parked.
const (
	Running State = "running"
	Lapsed  State = "lapsed"
	Done    State = "done"
	Refused State = "refused"
	Parked  State = "parked"
	Free    State = "free"
)

// work is a row of work_records.
type work struct {
	fingerprint    []byte
	bound          bool // the key accepts only that fingerprint
	state          State
	fence          int64
	attempt        int32
	lease          time.Duration
	leaseExpiresAt time.Time // zero: no holder
	parkLapsed     bool
	life           time.Duration
	principal      string
	requestID      string
	firstRequestID string
	createdAt      time.Time
	begunAt        time.Time
	settledAt      time.Time // zero: running
	settledBy      string
	settledRequest string
	answer         *Answer // recorded in this batch; else nil
	answerHash     []byte
	expiresAt      time.Time // zero: never
	tid            pgtype.TID
}

// expired reports whether the life is over, even if the row still exists.
func (w *work) expired(now time.Time) bool { return !w.expiresAt.IsZero() && !w.expiresAt.After(now) }

// stateAt is the effective state at a time.
func (w *work) stateAt(now time.Time) State {
	return stateAt(w.state, w.leaseExpiresAt, w.parkLapsed, now)
}

func stateAt(stored State, leaseExpiresAt time.Time, parkLapsed bool, now time.Time) State {
	switch {
	case stored != Running || leaseExpiresAt.After(now):
		return stored
	case parkLapsed:
		return Parked
	}
	return Lapsed
}

// run assigns the work to a holder.
func (w *work) run(now time.Time, fence int64, p *BeginParams, c *commit.Caller) {
	w.state, w.fence = Running, fence
	w.attempt++
	w.fingerprint, w.bound = p.Fingerprint, true
	w.lease, w.life, w.parkLapsed = p.Lease, p.Life, p.ParkLapsed
	w.principal, w.requestID = c.Principal, c.RequestID
	w.begunAt, w.settledAt, w.settledBy, w.settledRequest = now, time.Time{}, "", ""
	w.answer, w.answerHash = nil, nil
	w.extend(now, p.Lease)
}

// extend renews the lease, and the row's life with it.
func (w *work) extend(now time.Time, lease time.Duration) {
	w.lease, w.leaseExpiresAt = lease, now.Add(lease)
	switch end := w.begunAt.Add(w.life); {
	case w.parkLapsed:
		w.expiresAt = time.Time{}
	case end.Before(w.leaseExpiresAt):
		w.expiresAt = w.leaseExpiresAt
	default:
		w.expiresAt = end
	}
}

// settle ends the attempt and restarts the row's life. Parked work has no end of life.
func (w *work) settle(now time.Time, s State, a *Answer, c *commit.Caller) {
	w.state, w.leaseExpiresAt = s, time.Time{}
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
