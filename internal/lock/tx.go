package lock

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
)

// Key names a lock.
type Key struct {
	Tenant int32
	Name   string
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
}

const (
	stateHeld = "held"
	stateFree = "free"
)

// row is a row of lock_locks.
type row struct {
	tid        pgtype.TID
	state      string
	principal  string
	holder     string
	fence      int64
	holds      int32
	leaseMS    int32
	acquiredAt time.Time
	expiresAt  time.Time
	freedAt    time.Time
	requestID  string
}

// lock is a command's handle of a lock: its row, and who waits for it.
type lock struct {
	*commit.Row[Key, row]
	waiters []*waiter // in the order of their tickets; loaded if queued
	queued  bool
}

// waiter is a row of lock_waiters.
type waiter struct {
	ticket     int64
	aliveUntil time.Time
	tid        pgtype.TID
	fresh      *freshWaiter // of one who came in this batch
	gone       bool
	kept       bool
}

type freshWaiter struct{ principal, holder, instance, requestID string }

// lockRows is embedded under a name of its own: as Rows it would hide the method.
type lockRows = commit.Rows[Key, row]

// Tx are the locks of one batch's transaction.
type Tx struct {
	lockRows
	locks map[Key]*lock
	list  []*lock
	draws int32
	drawn []int64
	undo  []func()
}

var (
	q        db.Queries
	lockSeed = maphash.MakeSeed()

	_ commit.Participant = (*Tx)(nil)
)

// NewTx makes an empty one.
func NewTx() *Tx {
	return &Tx{lockRows: commit.NewRows[Key, row](lockSeed), locks: make(map[Key]*lock)}
}

// NameConstraints are the unique constraints over what callers choose.
func NameConstraints() []string { return []string{"lock_locks_pkey"} }

// lock names a lock to work with, and with it, if queued, those who wait for it.
func (tx *Tx) lock(k Key, queued bool) *lock {
	l := tx.locks[k]
	if l == nil {
		l = &lock{Row: tx.Want(k)}
		tx.locks[k] = l
		tx.list = append(tx.list, l)
	}
	l.queued = l.queued || queued
	return l
}

// draw asks for a number for a fence or a ticket; next gives it out.
func (tx *Tx) draw() { tx.draws++ }

func (tx *Tx) next() int64 {
	n := tx.drawn[0] // Need drew one for every command
	tx.drawn = tx.drawn[1:]
	return n
}

// held tells whether somebody holds the lock at the batch's time.
func (tx *Tx) held(l *lock) bool {
	return l.Exists && l.Value.state == stateHeld && l.Value.expiresAt.After(tx.Now)
}

// head is the first who waits, or nil.
func (tx *Tx) head(l *lock) *waiter {
	for _, w := range l.waiters {
		if tx.alive(w) {
			return w
		}
	}
	return nil
}

func (tx *Tx) alive(w *waiter) bool { return !w.gone && w.aliveUntil.After(tx.Now) }

// ahead counts the living before a ticket; 0: all.
func (tx *Tx) ahead(l *lock, ticket int64) (n int) {
	for _, w := range l.waiters {
		if tx.alive(w) && (ticket == 0 || w.ticket < ticket) {
			n++
		}
	}
	return n
}

// waiter finds a ticket, unless it is gone.
func (tx *Tx) waiter(l *lock, ticket int64) *waiter {
	for _, w := range l.waiters {
		if w.ticket == ticket && tx.alive(w) {
			return w
		}
	}
	return nil
}

// queue puts somebody at the end.
func (tx *Tx) queue(l *lock, w *waiter) {
	l.waiters = append(l.waiters, w)
	tx.undo = append(tx.undo, func() { l.waiters = l.waiters[:len(l.waiters)-1] })
}

// change lets a waiter be changed, or go.
func (tx *Tx) change(w *waiter) *waiter {
	old := *w
	tx.undo = append(tx.undo, func() { *w = old })
	return w
}

// Mark is where the next Undo goes back to.
func (tx *Tx) Mark() {
	tx.lockRows.Mark()
	tx.undo = tx.undo[:0]
}

// Undo takes back what was changed since Mark. Numbers given out stay so.
func (tx *Tx) Undo() {
	for _, f := range slices.Backward(tx.undo) {
		f()
	}
	tx.undo = tx.undo[:0]
	tx.lockRows.Undo()
}

// Lock locks the rows that are there. Those that are not are kept from coming and going: see BatchEnter.
func (tx *Tx) Lock(p *commit.Pipe) {
	p.Queue(func(d commit.DB) error { return q.BatchEnter(p.Context(), d) })
	rows := tx.Sorted(compareKeys)
	arg := db.LockLockParams{Tenants: make([]int32, len(rows)), Names: make([]string, len(rows))}
	for i, r := range rows {
		arg.Tenants[i], arg.Names[i] = r.Key.Tenant, r.Key.Name
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.LockLock(p.Context(), d, arg)
		for _, f := range found {
			v := row{tid: f.Ctid, state: f.State, principal: f.Principal, holder: f.Holder, fence: f.Fence,
				holds:   f.Holds,
				leaseMS: f.LeaseMs, acquiredAt: f.AcquiredAt, expiresAt: f.ExpiresAt, requestID: f.RequestID}
			if f.FreedAt != nil {
				v.freedAt = *f.FreedAt
			}
			tx.Load(rows[f.N-1], v)
		}
		return err
	})
}

// Lookup draws numbers, which only counts now that the locks are held, and reads the queues.
func (tx *Tx) Lookup(p *commit.Pipe) {
	if tx.draws > 0 {
		p.Queue(func(d commit.DB) (err error) {
			tx.drawn, err = q.FenceDraw(p.Context(), d, tx.draws)
			return err
		})
	}
	var arg db.WaiterLookupParams
	var locks []*lock
	for _, l := range tx.list {
		if l.queued {
			locks = append(locks, l)
			arg.Tenants, arg.Names = append(arg.Tenants, l.Key.Tenant), append(arg.Names, l.Key.Name)
		}
	}
	if len(locks) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.WaiterLookup(p.Context(), d, arg)
		for _, f := range found {
			l := locks[f.N-1]
			l.waiters = append(l.waiters, &waiter{ticket: f.Ticket, aliveUntil: f.AliveUntil, tid: f.Ctid})
		}
		return err
	})
}

// Flush writes what changed.
func (tx *Tx) Flush(p *commit.Pipe) {
	tx.flushLocks(p)
	tx.flushWaiters(p)
}

func (tx *Tx) flushLocks(p *commit.Pipe) {
	var fresh db.LockInsertParams
	for _, r := range tx.Fresh(compareKeys) {
		v := &r.Value
		fresh.Tenants, fresh.Names = append(fresh.Tenants, r.Key.Tenant), append(fresh.Names, r.Key.Name)
		fresh.States, fresh.Principals = append(fresh.States, v.state), append(fresh.Principals, v.principal)
		fresh.Holders, fresh.Fences = append(fresh.Holders, v.holder), append(fresh.Fences, v.fence)
		fresh.Holds, fresh.LeaseMs = append(fresh.Holds, v.holds), append(fresh.LeaseMs, v.leaseMS)
		fresh.AcquiredAt, fresh.ExpiresAt = append(fresh.AcquiredAt, v.acquiredAt), append(fresh.ExpiresAt, v.expiresAt)
		fresh.FreedAt, fresh.RequestIds = append(fresh.FreedAt, v.freedAt), append(fresh.RequestIds, v.requestID)
	}
	if len(fresh.Names) > 0 {
		p.Queue(func(d commit.DB) error { return q.LockInsert(p.Context(), d, fresh) })
	}
	var old db.LockUpdateParams
	for _, r := range tx.Changed(compareKeys) {
		v := &r.Value
		old.Tids, old.States = append(old.Tids, v.tid), append(old.States, v.state)
		old.Principals, old.Holders = append(old.Principals, v.principal), append(old.Holders, v.holder)
		old.Fences, old.Holds = append(old.Fences, v.fence), append(old.Holds, v.holds)
		old.LeaseMs, old.AcquiredAt = append(old.LeaseMs, v.leaseMS), append(old.AcquiredAt, v.acquiredAt)
		old.ExpiresAt, old.FreedAt = append(old.ExpiresAt, v.expiresAt), append(old.FreedAt, v.freedAt)
		old.RequestIds = append(old.RequestIds, v.requestID)
	}
	if len(old.Tids) > 0 {
		p.Queue(func(d commit.DB) error {
			_, err := q.LockUpdate(p.Context(), d, old)
			return err
		})
	}
}

func (tx *Tx) flushWaiters(p *commit.Pipe) {
	fresh := db.WaiterInsertParams{Now: tx.Now}
	var kept db.WaiterUpdateParams
	var gone []pgtype.TID
	for _, l := range tx.list {
		for _, w := range l.waiters {
			switch f := w.fresh; {
			case f != nil && !w.gone:
				fresh.Tenants, fresh.Names = append(fresh.Tenants, l.Key.Tenant), append(fresh.Names, l.Key.Name)
				fresh.Tickets, fresh.AliveUntil = append(fresh.Tickets, w.ticket),
					append(fresh.AliveUntil, w.aliveUntil)
				fresh.Principals, fresh.Holders = append(fresh.Principals, f.principal), append(fresh.Holders, f.holder)
				fresh.Instances, fresh.RequestIds = append(fresh.Instances, f.instance),
					append(fresh.RequestIds, f.requestID)
			case f != nil:
			case w.gone:
				gone = append(gone, w.tid)
			case w.kept:
				kept.Tids, kept.AliveUntil = append(kept.Tids, w.tid), append(kept.AliveUntil, w.aliveUntil)
			}
		}
	}
	if len(fresh.Names) > 0 {
		p.Queue(func(d commit.DB) error { return q.WaiterInsert(p.Context(), d, fresh) })
	}
	if len(kept.Tids) > 0 {
		p.Queue(func(d commit.DB) error {
			_, err := q.WaiterUpdate(p.Context(), d, kept)
			return err
		})
	}
	if len(gone) > 0 {
		p.Queue(func(d commit.DB) error {
			_, err := q.WaiterDelete(p.Context(), d, gone)
			return err
		})
	}
}
