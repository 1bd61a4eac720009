package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// batch is one attempt at committing jobs. A rerun starts from scratch.
type batch[B Books] struct {
	engine *Engine[B]
	id     int64
	jobs   []*job[B]
	books  B
	tables []Table
	keys   keys[B]
	now    time.Time
	stay   stay    // on the roster
	before []*stay // whose rows were taken over
	ids    int64   // given out
	again  bool    // a job asks for another attempt
	full   bool    // a job asked for more ids than there are
	sent   bool    // COMMIT went out, and the database has not said that it failed

	flushed, committed bool // tables have flushed; it surely committed, to last

	overlap bool // see Overlapping
	sure    bool // see Guessing
	guessed bool
	// reckoned: nobody asked the database for the time, see clock.
	reckoned bool
	outrun   bool          // one of before has failed
	waited   time.Duration // for other batches of this process
}

// idShift leaves room for 16,384 row ids a batch.
const (
	idShift  = 14
	maxIDs   = 1 << idShift
	maxLoads = 8
)

const (
	statementTimeout = 30 * time.Second
	idleTimeout      = 5 * time.Second
)

var errPanic = errors.New("commit: panic in a table")

// attempt runs the batch once. On success every job has its outcome, and the transaction committed,
// or had nothing to write. On an error nothing was kept, unless sent tells that it may have been.
func (e *Engine[B]) attempt(conn *pgx.Conn, id int64, jobs []*job[B], m manner) (b *batch[B], err error) {
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	b = &batch[B]{engine: e, id: id, jobs: jobs, stay: stay{writer: new(Writer), turn: m.turn}, overlap: m.overlap && !jobs[0].DryRun, sure: m.sure}
	start, plans := time.Now(), planAgeOf(conn)
	defer func() {
		plans.note(time.Since(start)-b.waited, len(jobs))
		if r := recover(); r != nil {
			e.metrics.panics.Inc()
			e.log.Error("panic in a table", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
		if err != nil {
			err = b.leftBehind(b.wrongGuess(err))
			abort(conn)
			e.roster.wait(b.before) // it stands for them on the roster: gone before them, it would let others pass them
		}
		e.roster.leave(&b.stay, err == nil)
	}()
	p := NewPipe(ctx)
	if plans.due(start) {
		p.exec("discard plans", "DISCARD PLANS")
	}
	if err := b.load(p, conn, m.lockTimeout); err != nil {
		return b, err
	}
	loaded := time.Now()
	b.apply()
	applied := time.Now()
	e.metrics.load.Observe(loaded.Sub(start).Seconds())
	e.metrics.apply.Observe(applied.Sub(loaded).Seconds())
	switch {
	case b.full:
		return b, errTooManyIDs
	case b.again:
		return b, errAgain
	case !jobs[0].DryRun:
		e.roster.apply(&b.stay, b.tables)
	}
	err = b.flush(p, conn)
	e.metrics.flush.Observe(time.Since(applied).Seconds())
	return b, err
}

// abort ends a failed transaction, or else the connection.
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

// load locks the rows, then looks up keys, names and the time, in one round trip; what has to be
// discovered before, and what hangs on what was found, takes others. A batch that has nothing to lock and
// nothing to look up takes none: what it begins with is sent with what it writes.
func (b *batch[B]) load(p *Pipe, conn *pgx.Conn, lockTimeout time.Duration) error {
	b.books = b.engine.newBooks()
	for _, j := range b.jobs {
		j.reset()
		if j.err == nil || j.counts {
			b.safely(j, func() error { j.Command.Need(b.books); return j.err })
		}
	}
	b.tables = b.books.Tables()
	p.exec("begin isolation level read committed", "BEGIN")
	for _, t := range b.tables {
		o := overlapping(t)
		b.overlap = b.overlap && o != nil && o.CanOverlap()
	}
	p.Queue(func(d DB) error { return q.SettingsApply(p.ctx, d, settings(lockTimeout)) })
	begun := p.Len()
	for _, t := range b.tables {
		t.Discover(p)
	}
	if p.Len() > begun {
		if err := p.Run(conn); err != nil {
			return err
		}
		begun = 0
	}
	b.enter()
	b.guess()
	for _, t := range b.tables {
		if b.overlap {
			overlapping(t).Read(p)
		} else {
			t.Lock(p)
		}
	}
	if b.keys.lookup(p, b.jobs, b.engine.memory, b.sure) {
		b.guessed = true
	}
	for _, t := range b.tables {
		t.Lookup(p)
	}
	if p.Len() == begun && b.reckon() {
		return b.resolve(p, conn)
	}
	p.Queue(func(d DB) (err error) { b.now, err = q.ClockRead(p.ctx, d); return err })
	if err := p.Run(conn); err != nil {
		return err
	}
	return b.resolve(p, conn)
}

// enter waits for the batches that this one cannot pass, and takes over the rows of those that it
// overlaps.
func (b *batch[B]) enter() {
	for _, t := range b.tables {
		b.stay.rows = t.Rows(b.stay.rows)
		if o := overlapping(t); o != nil {
			b.stay.names = o.Names(b.stay.names)
		}
	}
	start := time.Now()
	b.before = b.engine.roster.enter(&b.stay, b.overlap)
	b.waited += time.Since(start)
	if len(b.before) > 0 {
		b.engine.metrics.overlaps.Inc()
	}
	for _, s := range b.before {
		for _, t := range b.tables {
			if other := s.table(t); other != nil {
				overlapping(t).TakeOver(other, s.writer)
			}
		}
	}
}

// await waits until the batches that this one overlaps have committed.
func (b *batch[B]) await() error {
	start := time.Now()
	b.outrun = !b.engine.roster.wait(b.before)
	b.waited += time.Since(start)
	if b.outrun {
		return ErrLeftBehind
	}
	b.before = nil
	return nil
}

// resolve gives the tables the time, and lets them read on until they have all.
func (b *batch[B]) resolve(p *Pipe, conn *pgx.Conn) error {
	b.now = b.now.UTC()
	for _, t := range b.tables {
		if l := t.Latest(); l.After(b.now) {
			b.now = l
		}
	}
	for _, t := range b.tables {
		t.Start(b.now, b.newID)
	}
	for range maxLoads {
		before := p.Len()
		for _, t := range b.tables {
			t.Resolve(p)
		}
		if p.Len() == before {
			return p.err
		}
		if err := p.Run(conn); err != nil {
			return err
		}
	}
	return errors.New("commit: the tables never stop loading")
}

func settings(lockTimeout time.Duration) db.SettingsApplyParams {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return db.SettingsApplyParams{LockTimeout: ms(lockTimeout), StatementTimeout: ms(statementTimeout), IdleTimeout: ms(idleTimeout)}
}

var errTooManyIDs = errors.New("commit: one batch gives out at most 16,383 ids")

func (b *batch[B]) newID() int64 {
	b.ids++
	if b.ids >= maxIDs {
		panic(errTooManyIDs)
	}
	return b.id<<idShift | b.ids
}

func (b *batch[B]) mark() {
	for _, t := range b.tables {
		t.Mark()
	}
}

func (b *batch[B]) undo() {
	for _, t := range b.tables {
		t.Undo()
	}
}

// flush writes what changed, the keys, the batch's own row, and commits, in one round trip; in two
// when it has to wait for the batches that it overlaps. While a commit is in doubt a batch that only
// read commits too: what it read may not last.
func (b *batch[B]) flush(p *Pipe, conn *pgx.Conn) error {
	health := &b.engine.health
	b.flushed = true
	begun := p.Len() // above 0: load has sent nothing
	for _, t := range b.tables {
		t.Flush(p)
	}
	b.keys.flush(p, b.now, b.engine.memory)
	wrote := p.Len() > begun
	if len(b.before) > 0 {
		if err := p.Run(conn); err != nil {
			return err
		}
		if err := b.await(); err != nil {
			return err
		}
	}
	flushed := p.Len()
	for _, t := range b.tables {
		if o := overlapping(t); o != nil {
			o.Write(p)
		}
	}
	wrote = wrote || p.Len() > flushed
	if b.overlap {
		for _, t := range b.tables {
			overlapping(t).Confirm(p)
		}
	}
	b.keys.confirm(p)
	if b.jobs[0].DryRun || !wrote && !health.doubted.Load() {
		p.exec("rollback", "ROLLBACK")
		return p.Run(conn)
	}
	p.Queue(func(d DB) error {
		row, err := q.BatchInsert(p.ctx, d, db.BatchInsertParams{BatchID: b.id, Reckoned: b.reckoned, CommittedAt: b.now,
			Commands: int32(len(b.jobs)), Instance: b.engine.instance})
		if err == nil {
			b.stay.writer.xid = row.Xmin.Uint32
			b.engine.clock.set(row.Now)
		}
		return err
	})
	p.exec("commit", "COMMIT")
	pg.ClearWarning(conn)
	b.sent = true
	if err := p.Run(conn); err != nil {
		var e *pgconn.PgError
		if errors.As(err, &e) && e.SeverityUnlocalized == "ERROR" {
			b.sent = false // the transaction is over, and nothing was kept
		}
		return err
	}
	if pg.Warned(conn) {
		return errWarned // committed here, but perhaps not where it has to be to last
	}
	b.committed = true
	b.engine.mend()
	if health.doubted.Load() {
		health.doubted.Store(false) // a standby that has this batch has all before it
	}
	return nil
}
