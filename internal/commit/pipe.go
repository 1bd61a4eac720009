package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what generated queries run on.
type DB interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

// Pipe gathers statements and sends them in one round trip. A statement is a call of one generated
// query: Queue's function runs twice, first on a DB that only writes the statement down and fails
// the call with an error, then on one that reads its result. So it must return the query's error at
// once, and touch nothing before.
type Pipe struct {
	ctx   context.Context
	batch pgx.Batch
	reads []func(DB) error
	err   error
}

// NewPipe makes an empty pipe. The context bounds all its round trips; each has its own bound too.
func NewPipe(ctx context.Context) *Pipe { return &Pipe{ctx: ctx} }

// Context is what generated queries are to be called with.
func (p *Pipe) Context() context.Context { return p.ctx }

var errWrittenDown = errors.New("commit: statement written down")

// Queue adds one statement.
func (p *Pipe) Queue(call func(db DB) error) {
	before := p.batch.Len()
	err := call((*scribe)(&p.batch))
	if !errors.Is(err, errWrittenDown) || p.batch.Len() != before+1 {
		p.err = fmt.Errorf("commit: a queued call must run exactly one query: %w", err)
		return
	}
	p.reads = append(p.reads, call)
}

// Refuse makes the next Run fail with err, if it is the first.
func (p *Pipe) Refuse(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Len is how many statements wait.
func (p *Pipe) Len() int { return p.batch.Len() }

// exec adds a statement without result, of which the command tag must be tag ("": any).
func (p *Pipe) exec(sql, tag string) {
	p.Queue(func(db DB) error {
		got, err := db.Exec(p.ctx, sql)
		if err == nil && tag != "" && got.String() != tag {
			return fmt.Errorf("%w: %s was answered with %q", errOtherTag, tag, got)
		}
		return err
	})
}

// Run sends what waits, reads all results, and leaves the pipe empty. The first failing statement
// ends it: the database skips those behind it.
func (p *Pipe) Run(conn *pgx.Conn) error {
	if p.err != nil {
		return p.err
	}
	if p.batch.Len() == 0 {
		return nil
	}
	reads := p.reads
	// A connection may have gone silent, and only a deadline tells: TCP acknowledges through a proxy.
	ctx, cancel := context.WithTimeout(p.ctx, roundTripTimeout)
	defer cancel()
	results := conn.SendBatch(ctx, &p.batch)
	var err error
	for _, read := range reads {
		if err = read(reader{results}); err != nil {
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	p.batch = pgx.Batch{}
	p.reads = p.reads[:0]
	return err
}

// scribe writes statements down.
type scribe pgx.Batch

func (s *scribe) note(sql string, args []any) { (*pgx.Batch)(s).Queue(sql, args...) }

func (s *scribe) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	s.note(sql, args)
	return pgconn.CommandTag{}, errWrittenDown
}

func (s *scribe) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.note(sql, args)
	return nil, errWrittenDown
}

func (s *scribe) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	s.note(sql, args)
	return writtenDown{}
}

type writtenDown struct{}

func (writtenDown) Scan(...any) error { return errWrittenDown }

// reader reads the next result of the round trip.
type reader struct{ results pgx.BatchResults }

func (r reader) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return r.results.Exec()
}

func (r reader) Query(context.Context, string, ...any) (pgx.Rows, error) { return r.results.Query() }

func (r reader) QueryRow(context.Context, string, ...any) pgx.Row { return r.results.QueryRow() }

// planAge decides when the prepared plans of a connection are thrown away. Postgres keeps a plan that was made when a
// table was nearly empty, and every index that begins with the tenant looked as good as any; it stays wrong as the
// table grows. ANALYZE would end it, but is a minute away at best. So plans go when as many batches again have run,
// after a minute, and when a batch was slow: one made on some hundred rows stays right.
type planAge struct {
	made    time.Time
	batches int // since then
	limit   int // batches that plans last
	slow    bool
}

const (
	planAgeName = "ledgerd.plans"
	planLimit   = 16
	planLife    = time.Minute
	planPause   = time.Second // between two throws because of slow batches

	// Above these a batch counts as slow. A look-up with the wrong plan takes milliseconds a row.
	slowBatch   = 50 * time.Millisecond
	slowCommand = 200 * time.Microsecond
)

func planAgeOf(conn *pgx.Conn) *planAge {
	data := conn.PgConn().CustomData()
	a, ok := data[planAgeName].(*planAge)
	if !ok {
		a = &planAge{made: time.Now(), limit: planLimit}
		data[planAgeName] = a
	}
	return a
}

// note records how long a batch took.
func (a *planAge) note(took time.Duration, commands int) {
	a.slow = a.slow || took > slowBatch+time.Duration(commands)*slowCommand
}

// due counts a batch in, and tells whether the plans are to be thrown away before it.
func (a *planAge) due(now time.Time) bool {
	age := now.Sub(a.made)
	many := a.batches >= a.limit
	if !many && age < planLife && !(a.slow && age >= planPause) {
		a.batches++
		return false
	}
	if many {
		a.limit *= 2
	}
	a.made, a.batches, a.slow = now, 1, false
	return true
}
