package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// attempt is one attempt to commit a batch of jobs. A rerun starts from scratch.
type attempt[T Tx] struct {
	engine       *Engine[T]
	id           int64 // number of the batch
	nonce        int64 // random; identifies the attempt in the batch's row
	jobs         []*job[T]
	tx           T
	participants []Participant
	assumptions  assumptions
	latch        latch
	keys         keys[T]
	at           Times
	rowIDs       int64 // used
	again        error // errIncomplete or errTooManyIDs: the batch cannot commit; nil
	direct       bool

	// sent: COMMIT is on its way, and has not been refused. flushed: Flush was called. durable: changes were committed,
	// and synchronous standbys have confirmed that.
	sent, flushed, durable bool
	witnessed              bool // a batch that wrote nothing has inserted its row, for the standbys

	waited time.Duration // total wait for other batches of this process
}

// assumptions say how the data that an attempt read is guarded until COMMIT. All answers and refusals depend on that
// data, so callers get them only after confirmAndWrite and COMMIT (a dry run: ROLLBACK).
//
//	rows    locked; or, in an optimistic batch, taken over from predecessors or read without locks; or, in a direct
//	        command (ADR 14), read as its strategy requires: its writing statement fails if they have changed
//	names   looked up after the rows; a miss may be outdated
//	time    the database's clock, read after the rows
type assumptions struct {
	optimistic   bool
	predecessors []*latch // batches of this process whose rows were taken over
}

// mode has the options of an attempt.
type mode struct {
	optimistic bool
	search     *search       // lock waits are brief; nil: no search
	seq        int64         // sequence number of the batch: the order of latches; 0: any
	directWait time.Duration // of a direct command: the longest wait for a lock; 0: a batch
}

// A batch numbers its rows from 1 to 16,383 in the low 14 bits of their ids.
const (
	idShift = 14
	maxIDs  = 1 << idShift
)

const maxResolve = 8 // rounds of Resolve

const (
	// statementTimeout applies in the database, roundTripTimeout also to a silent connection.
	statementTimeout = 10 * time.Second
	roundTripTimeout = statementTimeout + 2*time.Second
	idleTimeout      = 5 * time.Second
)

// runAttempt runs the batch once. Without an error every job has its outcome or is deferred, and the transaction has
// committed or, for a dry run, was rolled back. After an error there is no effect, unless sent is set: then the outcome
// is unknown.
func (e *Engine[T]) runAttempt(conn *pgx.Conn, id int64, jobs []*job[T], m mode) (a *attempt[T], err error) {
	a = &attempt[T]{engine: e, id: id, nonce: rand.Int64(), jobs: jobs,
		latch: latch{writer: new(RowWriter), seq: m.seq}}
	start, plans := time.Now(), planAgeOf(conn)
	defer func() {
		if m.directWait == 0 { // the duration of a direct command includes lock waits
			plans.observe(time.Since(start)-a.waited, len(jobs))
		}
		if r := recover(); r != nil {
			e.metrics.panics.Inc()
			e.log.Error("panic in a participant", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("commit: panic in a participant: %v", r)
		}
		if err != nil {
			abort(conn)
			// Keep our latch until the predecessors have ended, or later batches overtake them.
			e.latches.await(a.assumptions.predecessors)
		}
		e.latches.release(&a.latch, err == nil)
	}()
	if plans.due(start) {
		if err := discardPlans(conn); err != nil {
			return a, err
		}
	}
	p := NewPipe(context.Background())
	if err := a.load(p, conn, m); err != nil {
		return a, err
	}
	loaded := time.Now()
	a.apply()
	applied := time.Now()
	e.metrics.load.Observe(loaded.Sub(start).Seconds())
	e.metrics.apply.Observe(applied.Sub(loaded).Seconds())
	if a.again != nil {
		return a, a.again
	}
	if !jobs[0].DryRun {
		e.latches.publish(&a.latch, a.participants)
	}
	err = a.flush(p, conn)
	e.metrics.flush.Observe(time.Since(applied).Seconds())
	return a, err
}

// discardPlans has a round trip of its own: in the pipeline of BEGIN ISOLATION LEVEL it would count as a query before
// the isolation level is set.
func discardPlans(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, "discard plans")
	return err
}

// abort rolls back a failed transaction, or closes the connection if that fails.
func abort(conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' && !conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx)
	}
}

// load locks the rows, then reads names, keys and the time, in one round trip. Discovery and dependent rows need
// further round trips.
func (a *attempt[T]) load(p *Pipe, conn *pgx.Conn, m mode) error {
	a.direct = m.directWait > 0
	a.tx = a.engine.newTx(a.direct)
	for _, j := range a.jobs {
		j.reset()
		a.safely(j, func() error { j.Command.Need(a.tx); return nil })
	}
	a.participants = a.tx.Participants()
	lockTimeout := a.engine.lockTimeout(m.search != nil)
	if a.direct {
		lockTimeout = m.directWait
	}
	if err := a.discover(conn, lockTimeout); err != nil {
		return err
	}
	if !a.direct {
		a.acquire(m.optimistic && !a.jobs[0].DryRun)
	}
	a.begin(p, lockTimeout)
	for _, x := range a.participants {
		if o := optimistic(x); o != nil && a.assumptions.optimistic {
			o.Read(p)
		} else {
			x.Lock(p)
		}
	}
	for _, x := range a.participants {
		x.Lookup(p)
	}
	a.keys.lookup(p, a.jobs) // last: a call whose name another process has taken meanwhile gets the recorded answer
	p.Queue(func(d DB) (err error) { a.at.Now, err = q.ClockRead(p.ctx, d); return err })
	if err := p.Run(conn); err != nil {
		return err
	}
	return a.loadDependents(p, conn)
}

// discover finds the rows to lock. Its transaction ends before the batch waits for its latch.
func (a *attempt[T]) discover(conn *pgx.Conn, lockTimeout time.Duration) error {
	p := NewPipe(context.Background())
	a.begin(p, lockTimeout)
	begun := p.Len()
	for _, x := range a.participants {
		x.Discover(p)
	}
	if p.Len() == begun && p.err == nil {
		return nil
	}
	p.exec("commit", "COMMIT")
	return p.Run(conn)
}

const beginSQL = "begin isolation level read committed"

func (a *attempt[T]) begin(p *Pipe, lockTimeout time.Duration) {
	p.exec(beginSQL, "BEGIN")
	p.Queue(func(d DB) error { return q.SettingsApply(p.ctx, d, a.settings(lockTimeout)) })
	p.Queue(func(d DB) error { return q.BatchEnter(p.ctx, d) })
}

// acquire waits for the batch's latch, and takes over rows of its predecessors.
func (a *attempt[T]) acquire(optimistically bool) {
	for _, x := range a.participants {
		x.Latch(&a.latch.LatchKeys)
		optimistically = optimistically && x.CanOverlap()
	}
	a.assumptions.optimistic = optimistically
	start := time.Now()
	a.assumptions.predecessors = a.engine.latches.acquire(&a.latch, a.assumptions.optimistic)
	a.waited += time.Since(start)
	if len(a.assumptions.predecessors) > 0 {
		a.engine.metrics.overlaps.Inc()
	}
	for _, l := range a.assumptions.predecessors {
		for _, x := range a.participants {
			o := optimistic(x)
			if o == nil {
				continue
			}
			if other := l.participant(x); other != nil {
				o.TakeOver(other, l.writer)
			}
		}
	}
}

// loadDependents calls Start, then Resolve until no participant queues a statement.
func (a *attempt[T]) loadDependents(p *Pipe, conn *pgx.Conn) error {
	a.at.Now = a.at.Now.UTC()
	a.at.Recorded = a.at.Now
	for _, x := range a.participants {
		if l := x.Latest(); l.After(a.at.Recorded) {
			a.at.Recorded = l
		}
	}
	a.engine.health.clockLead.observe(a.at)
	for _, x := range a.participants {
		x.Start(a.at, a.newID)
	}
	for range maxResolve {
		for _, x := range a.participants {
			x.Resolve(p)
		}
		if p.Len() == 0 {
			return p.err
		}
		if err := p.Run(conn); err != nil {
			return err
		}
	}
	return fmt.Errorf("commit: participants still queue statements after %d rounds of Resolve", maxResolve)
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// settings returns the settings of the transaction. Its statements see only rows of the tenants of its jobs.
func (a *attempt[T]) settings(lockTimeout time.Duration) db.SettingsApplyParams {
	tenants := make([]int32, len(a.jobs))
	for i, j := range a.jobs {
		tenants[i] = j.Tenant
	}
	return db.SettingsApplyParams{Tenants: pg.TenantSet(tenants...), LockTimeout: ms(lockTimeout),
		StatementTimeout: ms(statementTimeout), IdleTimeout: ms(idleTimeout)}
}

func (a *attempt[T]) newID() int64 {
	a.rowIDs++
	if a.rowIDs >= maxIDs {
		panic(errTooManyIDs)
	}
	return a.id<<idShift | a.rowIDs
}

func (a *attempt[T]) mark() {
	for _, x := range a.participants {
		x.Mark()
	}
}

func (a *attempt[T]) undo() {
	for _, x := range a.participants {
		x.Undo()
	}
}

// flush writes the changes, the keys and the batch's own row, confirms the assumptions, and commits. This takes one
// round trip, or two if the batch waits for predecessors.
func (a *attempt[T]) flush(p *Pipe, conn *pgx.Conn) error {
	a.flushed = true
	for _, x := range a.participants {
		x.Flush(p)
	}
	a.keys.flush(p, a.at.Now)
	wrote := p.Len() > 0
	if err := a.awaitPredecessors(p, conn); err != nil {
		return err
	}
	wrote = a.confirmAndWrite(p) || wrote
	if a.jobs[0].DryRun {
		p.exec("rollback", "ROLLBACK")
		return p.Run(conn)
	}
	a.insertOwnRow(p, wrote)
	return a.commit(p, conn, wrote)
}

// awaitPredecessors waits for the predecessors of an optimistic attempt, and bounds its waits for locks. The queued
// inserts run while the predecessors commit.
func (a *attempt[T]) awaitPredecessors(p *Pipe, conn *pgx.Conn) error {
	if !a.assumptions.optimistic {
		return nil
	}
	if len(a.assumptions.predecessors) > 0 {
		if err := p.Run(conn); err != nil {
			return err
		}
		start := time.Now()
		committed := a.engine.latches.await(a.assumptions.predecessors)
		a.waited += time.Since(start)
		if a.assumptions.predecessors = nil; !committed {
			return ErrConflict
		}
	}
	p.Queue(func(d DB) error { return q.LockTimeoutApply(p.ctx, d, ms(a.engine.lockTimeout(true))) })
	return nil
}

// confirmAndWrite queues the statements that verify the assumptions of an optimistic attempt, in the transaction that
// COMMIT ends, and those that update shared rows, such as balances. It reports whether there are updates.
//
//	rows    locked: they cannot have changed. Optimistic: every shared row that the batch saw is locked and
//	        is as its last known writer wrote it; the predecessors have committed (awaitPredecessors)
//	names   a name that the batch takes is inserted: its unique constraint is the proof. A name that was
//	        looked up and not taken depends on rows: it is valid as long as these are unchanged
//	time    nothing to confirm
//
// Both Confirm and Write lock rows. So they alternate: the rows of a participant are locked before those of the next
// one, in the order of the registry.
func (a *attempt[T]) confirmAndWrite(p *Pipe) (writes bool) {
	for _, x := range a.participants {
		o := optimistic(x)
		if o == nil {
			continue
		}
		if a.assumptions.optimistic {
			o.Confirm(p)
		}
		confirmed := p.Len()
		o.Write(p)
		writes = writes || p.Len() > confirmed
	}
	return writes
}

// insertOwnRow queues the batch's own row. A batch without changes inserts one only if there are synchronous standbys:
// its commands may have read rows that the standby does not have yet, and a COMMIT with a write waits until the standby
// has all earlier commits too. Otherwise its COMMIT does not wait for the disk.
func (a *attempt[T]) insertOwnRow(p *Pipe, wrote bool) {
	row := db.BatchInsertParams{BatchID: a.id, Nonce: a.nonce, RecordedAt: a.at.Recorded, Commands: int32(len(a.jobs)),
		Instance: a.engine.instance}
	if !wrote {
		p.Queue(func(d DB) error {
			n, err := q.BatchWitness(p.ctx, d, db.BatchWitnessParams(row))
			a.witnessed = n > 0
			return err
		})
		p.Queue(func(d DB) error { return q.CommitRelax(p.ctx, d) })
		return
	}
	p.Queue(func(d DB) error {
		xmin, err := q.BatchInsert(p.ctx, d, row)
		a.latch.writer.xid = xmin.Uint32
		return err
	})
}

// commit sends the queued statements and COMMIT.
func (a *attempt[T]) commit(p *Pipe, conn *pgx.Conn, wrote bool) error {
	p.exec("commit", "COMMIT")
	pg.ClearWarning(conn)
	a.sent = true
	start := time.Now()
	if err := p.Run(conn); err != nil {
		var e *pgconn.PgError
		if errors.As(err, &e) && e.SeverityUnlocalized == "ERROR" {
			a.sent = false // the transaction was rolled back
		}
		return err
	}
	if pg.Warned(conn) {
		return errWarned // committed here, but perhaps not on the synchronous standby
	}
	if (wrote || a.witnessed) && !a.direct {
		a.engine.pace.observe(time.Since(start))
	}
	a.durable = wrote
	a.engine.markReady()
	return nil
}

// optimistic returns the participant as an Optimistic, or nil.
func optimistic(p Participant) Optimistic {
	o, _ := p.(Optimistic)
	return o
}

// notifyObservers passes the outcome of the transaction to the Observers, once. It must have been flushed.
func (a *attempt[T]) notifyObservers() {
	for _, x := range a.participants {
		if o, ok := x.(Observer); ok {
			a.notifyObserver(o)
		}
	}
}

// notifyObserver recovers a panic in Ended, so that callers are still answered.
func (a *attempt[T]) notifyObserver(o Observer) {
	defer func() {
		if r := recover(); r != nil {
			a.engine.metrics.panics.Inc()
			a.engine.log.Error("panic after a batch", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	o.Ended(a.durable)
}
