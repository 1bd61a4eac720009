package lock

import (
	"cmp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
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
type row = db.LockLockRow

// lock is a command's handle of a lock: its row and its wait queue.
type lock struct {
	*commit.Row[Key, row]
	waiters []*waiter // ordered by ticket; loaded if queued is set
	queued  bool
}

// waiter is a row of lock_waiters.
type waiter struct {
	ticket     int64
	aliveUntil time.Time
	tid        pgtype.TID
	fresh      *freshWaiter // set if this batch inserts the row
	gone       bool
	renewed    bool
}

type freshWaiter struct{ principal, holder, instance, requestID string }

// lockRows is embedded under this name, which other packages do not see.
type lockRows = commit.Rows[Key, row]

// Tx holds the locks of one batch's transaction.
type Tx struct {
	lockRows
	locks map[Key]*lock
	list  []*lock
	draws int32
	drawn []int64
	undo  []func()
}

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, row](compareKeys)

	_ commit.Participant = (*Tx)(nil)
)

// NewTx makes an empty Tx.
func NewTx() *Tx {
	return &Tx{lockRows: table.Rows(), locks: make(map[Key]*lock)}
}

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string { return []string{"lock_locks_pkey"} }

// lock declares a lock for this batch and, if queued, its wait queue.
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

// draw reserves one sequence number for a fence or a ticket; next returns it.
func (tx *Tx) draw() { tx.draws++ }

func (tx *Tx) next() int64 {
	n := tx.drawn[0] // Need drew one for every command
	tx.drawn = tx.drawn[1:]
	return n
}

// held reports whether the lock has a holder at the batch's time.
func (tx *Tx) held(l *lock) bool {
	return l.Exists && l.Value.State == stateHeld && l.Value.ExpiresAt.After(tx.Now)
}

// head is the first live waiter, or nil.
func (tx *Tx) head(l *lock) *waiter {
	for _, w := range l.waiters {
		if tx.alive(w) {
			return w
		}
	}
	return nil
}

func (tx *Tx) alive(w *waiter) bool { return !w.gone && w.aliveUntil.After(tx.Now) }

// ahead counts the live waiters before a ticket; with ticket 0, all live waiters.
func (tx *Tx) ahead(l *lock, ticket int64) (n int) {
	for _, w := range l.waiters {
		if tx.alive(w) && (ticket == 0 || w.ticket < ticket) {
			n++
		}
	}
	return n
}

// waiter returns the live waiter with this ticket, or nil.
func (tx *Tx) waiter(l *lock, ticket int64) *waiter {
	for _, w := range l.waiters {
		if w.ticket == ticket && tx.alive(w) {
			return w
		}
	}
	return nil
}

// queue appends a waiter.
func (tx *Tx) queue(l *lock, w *waiter) {
	l.waiters = append(l.waiters, w)
	tx.undo = append(tx.undo, func() { l.waiters = l.waiters[:len(l.waiters)-1] })
}

// change returns the waiter for modification and registers its undo.
func (tx *Tx) change(w *waiter) *waiter {
	old := *w
	tx.undo = append(tx.undo, func() { *w = old })
	return w
}

// Mark sets the savepoint for Undo.
func (tx *Tx) Mark() {
	tx.lockRows.Mark()
	tx.undo = tx.undo[:0]
}

// Undo reverts all changes since Mark, except that drawn numbers stay used.
func (tx *Tx) Undo() {
	for _, f := range slices.Backward(tx.undo) {
		f()
	}
	tx.undo = tx.undo[:0]
	tx.lockRows.Undo()
}

// Lock locks the existing rows. BatchEnter (see the queries) blocks inserts and deletes of absent ones.
func (tx *Tx) Lock(p *commit.Pipe) {
	p.Queue(func(d commit.DB) error { return q.BatchEnter(p.Context(), d) })
	rows := tx.Sorted()
	arg := db.LockLockParams{Tenants: make([]int32, len(rows)), Names: make([]string, len(rows))}
	for i, r := range rows {
		arg.Tenants[i], arg.Names[i] = r.Key.Tenant, r.Key.Name
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.LockLock(p.Context(), d, arg)
		for _, f := range found {
			tx.Load(rows[f.N-1], f)
		}
		return err
	})
}

// Lookup draws sequence numbers and reads the queues. Numbers must be drawn under the row locks, or fences
// would not follow the order of acquisitions.
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
			arg.Tenants = append(arg.Tenants, l.Key.Tenant)
			arg.Names = append(arg.Names, l.Key.Name)
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

func (tx *Tx) Flush(p *commit.Pipe) {
	tx.flushLocks(p)
	tx.flushWaiters(p)
}

func (tx *Tx) flushLocks(p *commit.Pipe) {
	if rows := tx.Fresh(); len(rows) > 0 {
		arg, _ := params(rows)
		p.Queue(func(d commit.DB) error { return q.LockInsert(p.Context(), d, arg) })
	}
	if rows := tx.Changed(); len(rows) > 0 {
		a, tids := params(rows)
		p.Queue(func(d commit.DB) error {
			return q.LockUpdate(p.Context(), d, db.LockUpdateParams{Tids: tids, States: a.States,
				Principals: a.Principals, Holders: a.Holders, Fences: a.Fences, Holds: a.Holds, LeaseMs: a.LeaseMs,
				AcquiredAt: a.AcquiredAt, ExpiresAt: a.ExpiresAt, FreedAt: a.FreedAt, RequestIds: a.RequestIds})
		})
	}
}

// params converts rows to statement parameters: arrays without nulls.
func params(rows []*commit.Row[Key, row]) (a db.LockInsertParams, tids []pgtype.TID) {
	pg.Reserve(&a, len(rows))
	for _, r := range rows {
		v := &r.Value
		tids = append(tids, v.Ctid)
		a.Tenants = append(a.Tenants, r.Key.Tenant)
		a.Names = append(a.Names, r.Key.Name)
		a.States = append(a.States, v.State)
		a.Principals = append(a.Principals, v.Principal)
		a.Holders = append(a.Holders, v.Holder)
		a.Fences = append(a.Fences, v.Fence)
		a.Holds = append(a.Holds, v.Holds)
		a.LeaseMs = append(a.LeaseMs, v.LeaseMs)
		a.AcquiredAt = append(a.AcquiredAt, v.AcquiredAt)
		a.ExpiresAt = append(a.ExpiresAt, v.ExpiresAt)
		a.FreedAt = append(a.FreedAt, pg.OrZero(v.FreedAt))
		a.RequestIds = append(a.RequestIds, v.RequestID)
	}
	return a, tids
}

func (tx *Tx) flushWaiters(p *commit.Pipe) {
	fresh := db.WaiterInsertParams{Now: tx.Now}
	var kept db.WaiterUpdateParams
	var gone []pgtype.TID
	for _, l := range tx.list {
		for _, w := range l.waiters {
			switch f := w.fresh; {
			case f != nil && !w.gone:
				fresh.Tenants = append(fresh.Tenants, l.Key.Tenant)
				fresh.Names = append(fresh.Names, l.Key.Name)
				fresh.Tickets = append(fresh.Tickets, w.ticket)
				fresh.Principals = append(fresh.Principals, f.principal)
				fresh.Holders = append(fresh.Holders, f.holder)
				fresh.Instances = append(fresh.Instances, f.instance)
				fresh.AliveUntil = append(fresh.AliveUntil, w.aliveUntil)
				fresh.RequestIds = append(fresh.RequestIds, f.requestID)
			case f != nil:
			case w.gone:
				gone = append(gone, w.tid)
			case w.renewed:
				kept.Tids = append(kept.Tids, w.tid)
				kept.AliveUntil = append(kept.AliveUntil, w.aliveUntil)
			}
		}
	}
	if len(fresh.Names) > 0 {
		p.Queue(func(d commit.DB) error { return q.WaiterInsert(p.Context(), d, fresh) })
	}
	if len(kept.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return q.WaiterUpdate(p.Context(), d, kept) })
	}
	if len(gone) > 0 {
		p.Queue(func(d commit.DB) error { return q.WaiterDelete(p.Context(), d, gone) })
	}
}
