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
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// batch is one attempt at committing jobs. A rerun starts from scratch.
type batch[B Books] struct {
	engine *Engine[B]
	id     int64
	jobs   []*job[B]
	books  B
	tables []Table
	keys   *keys[B]
	now    time.Time
	rows   int64 // ids given out
	dry    bool
	sent   bool // COMMIT went out: an error that is not the database's word leaves the outcome open
}

// idShift leaves room for 16,384 row ids a batch.
const (
	idShift  = 14
	maxIDs   = 1 << idShift
	maxLoads = 8
	maxMore  = 3
)

// settings of every batch's transaction.
type settings struct{ params db.SettingsApplyParams }

const (
	statementTimeout = 30 * time.Second
	idleTimeout      = 5 * time.Second
	batchTimeout     = 60 * time.Second
)

func newSettings(lock time.Duration) settings {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return settings{db.SettingsApplyParams{LockTimeout: ms(lock), StatementTimeout: ms(statementTimeout), IdleTimeout: ms(idleTimeout)}}
}

// attempt runs the batch once. On success every job has its outcome, and the transaction committed,
// or had nothing to write. On an error nothing was kept, unless sent tells that it may have been.
func (e *Engine[B]) attempt(ctx context.Context, conn *pgx.Conn, id int64, jobs []*job[B]) (b *batch[B], err error) {
	b = &batch[B]{engine: e, id: id, jobs: jobs, books: e.newBooks(), dry: jobs[0].DryRun}
	b.tables = b.books.Tables()
	b.keys = newKeys(jobs)
	pg.ClearWarning(conn)
	defer func() {
		if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
			undo, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, e := conn.Exec(undo, "rollback"); e != nil {
				_ = conn.Close(undo)
			}
		}
	}()
	p := NewPipe(ctx)
	start := time.Now()
	if err := b.load(p, conn); err != nil {
		return b, err
	}
	loaded := time.Now()
	e.metrics.stage("load", loaded.Sub(start))
	again := b.apply()
	applied := time.Now()
	e.metrics.stage("apply", applied.Sub(loaded))
	if again {
		return b, ErrMoreRows
	}
	err = b.flush(p, conn)
	e.metrics.stage("flush", time.Since(applied))
	return b, err
}

// load locks the rows, then looks up keys, names and the time, in one round trip; what hangs on what
// was found takes another.
func (b *batch[B]) load(p *Pipe, conn *pgx.Conn) error {
	for _, j := range b.jobs {
		j.out, j.err, j.answer, j.recorded = Outcome{}, nil, nil, false
		b.safely(j, func() error { j.Command.Need(b.books); return nil })
	}
	for _, t := range b.tables {
		t.Discover(p)
	}
	if err := p.Run(conn); err != nil {
		return err
	}
	p.exec("begin isolation level read committed", "BEGIN")
	p.Queue(func(d DB) error { return q.SettingsApply(p.ctx, d, b.engine.settings.params) })
	for _, t := range b.tables {
		t.Lock(p)
	}
	var clock time.Time
	p.Queue(func(d DB) (err error) { clock, err = q.ClockRead(p.ctx, d); return err })
	b.keys.lookup(p)
	for _, t := range b.tables {
		t.Lookup(p)
	}
	if err := p.Run(conn); err != nil {
		return err
	}
	b.now = clock.UTC()
	for _, t := range b.tables {
		if l := t.Latest(); l.After(b.now) {
			b.now = l
		}
	}
	for _, t := range b.tables {
		t.Start(b.now, b.newID)
	}
	for range maxLoads {
		for _, t := range b.tables {
			t.Resolve(p)
		}
		if p.Len() == 0 {
			return p.err
		}
		if err := p.Run(conn); err != nil {
			return err
		}
	}
	return errors.New("commit: the tables never stop loading")
}

var errTooManyIDs = errors.New("commit: one batch gives out at most 16,383 ids")

func (b *batch[B]) newID() int64 {
	b.rows++
	if b.rows >= maxIDs {
		panic(errTooManyIDs)
	}
	return b.id<<idShift | b.rows
}

// apply runs the commands in order of arrival. It tells whether one of them needs more rows.
func (b *batch[B]) apply() (again bool) {
	for _, j := range b.jobs {
		if j.err != nil {
			continue // Need failed
		}
		if j.Key != nil && !j.DryRun {
			if r := b.keys.live(j, b.now); r != nil {
				j.out, j.err = b.engine.replay(j, r)
				continue
			}
		}
		if g, ok := j.Command.(Guarded[B]); ok {
			b.mark()
			if b.safely(j, func() error { return g.Guard(b.books) }); j.err != nil {
				b.undo()
				b.record(j)
				continue
			}
		}
		b.mark()
		b.safely(j, func() (err error) { j.out.Answer, err = j.Command.Apply(b.books); return err })
		if errors.Is(j.err, ErrMoreRows) {
			if j.more++; j.more <= maxMore {
				b.undo()
				again = true
				continue
			}
			j.err = fault.RowsLocked.New("the rows that the call works with kept changing")
		}
		if j.err != nil {
			b.undo()
			j.out = Outcome{}
		}
		b.record(j)
	}
	return again
}

// record decides what is kept under the key of a job that has run.
func (b *batch[B]) record(j *job[B]) {
	if r, ok := j.out.Answer.(Repeat); ok && j.err == nil {
		j.out.Answer, j.out.Existed = r.First, true
		return
	}
	if j.Key == nil || j.DryRun {
		return
	}
	if j.err != nil {
		if f := fault.Of(j.err); f != nil && f.Reason.Class == fault.Refusal {
			kept := *f
			kept.RequestID = j.RequestID
			j.err, j.answer, j.recorded = &kept, kept.Encode(), true
		}
		return
	}
	b.safely(j, func() (err error) { j.answer, err = j.Encode(j.out.Answer); return err })
	if j.err != nil {
		b.undo()
		j.out = Outcome{}
		return
	}
	j.recorded = true
}

// safely runs one job's code: a panic fails that job alone.
func (b *batch[B]) safely(j *job[B], run func() error) {
	defer func() {
		if r := recover(); r != nil {
			if r == errTooManyIDs {
				j.err = TooManyRows.New("the call writes more rows than one commit may")
				return
			}
			b.engine.metrics.panics.Inc()
			b.engine.log.Error("panic in a command", "command", fmt.Sprintf("%T", j.Command), "panic", r,
				"request_id", j.RequestID, "stack", string(debug.Stack()))
			j.err = fault.InternalError.New("internal error").Because(fmt.Errorf("panic: %v", r))
		}
	}()
	if err := run(); err != nil {
		j.err = err
	}
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

var errWarned = errors.New("commit: the database warned at COMMIT")

// flush writes what changed, the keys, the batch's own row, and commits, in one round trip.
func (b *batch[B]) flush(p *Pipe, conn *pgx.Conn) error {
	for _, t := range b.tables {
		t.Flush(p)
	}
	b.keys.flush(p, b.now)
	if p.Len() == 0 && p.err == nil || b.dry {
		p.exec("rollback", "ROLLBACK")
		return p.Run(conn)
	}
	p.Queue(func(d DB) error {
		return q.BatchInsert(p.ctx, d, db.BatchInsertParams{
			BatchID: b.id, CommittedAt: b.now, Commands: int32(len(b.jobs)), Instance: b.engine.instance})
	})
	p.exec("commit", "COMMIT")
	b.sent = true
	if err := p.Run(conn); err != nil {
		var e *pgconn.PgError
		if errors.As(err, &e) && e.Severity == "ERROR" {
			b.sent = false // the transaction is over, and nothing was kept
		}
		return err
	}
	if pg.Warned(conn) {
		return errWarned // committed here, but perhaps not where it has to be to last
	}
	return nil
}
