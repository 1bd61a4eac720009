package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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

// Pipe gathers statements and sends them in one round trip. A statement is a call of one generated query. The function
// passed to Queue runs twice: first on a DB that only queues the statement and returns an error, then on a DB that
// reads its result. So the function must return the query's error at once, and must have no effect before.
type Pipe struct {
	ctx   context.Context
	batch pgx.Batch
	reads []func(DB) error
	err   error
}

// NewPipe returns an empty pipe. The context bounds all its round trips; each also has a timeout of its own.
func NewPipe(ctx context.Context) *Pipe { return &Pipe{ctx: ctx} }

// Context returns the context for generated queries.
func (p *Pipe) Context() context.Context { return p.ctx }

var errQueued = errors.New("commit: statement queued")

// Queue adds one statement.
func (p *Pipe) Queue(call func(db DB) error) {
	before := p.batch.Len()
	err := call((*queueingDB)(&p.batch))
	if !errors.Is(err, errQueued) || p.batch.Len() != before+1 {
		p.err = fmt.Errorf("commit: a queued call must run exactly one query: %w", err)
		return
	}
	p.reads = append(p.reads, call)
}

// Refuse makes the next Run fail with err, unless it fails already.
func (p *Pipe) Refuse(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Len returns the number of queued statements.
func (p *Pipe) Len() int { return p.batch.Len() }

// exec adds a statement without rows. Its command tag must be tag ("": any).
func (p *Pipe) exec(sql, tag string) {
	p.Queue(func(db DB) error {
		got, err := db.Exec(p.ctx, sql)
		if err == nil && tag != "" && got.String() != tag {
			return fmt.Errorf("%w: %s was answered with %q", errOtherTag, tag, got)
		}
		return err
	})
}

// Run sends the queued statements, reads all results, and leaves the pipe empty. The first failing statement ends it:
// the database skips all later ones. A pipe that begins a transaction with statements that are new on the connection
// takes further round trips.
func (p *Pipe) Run(conn *pgx.Conn) error {
	if p.err != nil {
		return p.err
	}
	if p.batch.Len() == 0 {
		return nil
	}
	// Only a deadline detects a silent connection: a proxy may acknowledge at the TCP level.
	ctx, cancel := context.WithTimeout(p.ctx, roundTripTimeout)
	defer cancel()
	queries, first := p.batch.QueuedQueries, 0
	prepared := preparedOn(conn)
	if queries[0].SQL == beginSQL && slices.ContainsFunc(queries, prepared.lacks) {
		first = 2 // BEGIN and the settings
	}
	err := send(ctx, conn, queries[:first], p.reads)
	if err == nil {
		err = send(ctx, conn, queries[first:], p.reads[first:])
	}
	for _, query := range queries {
		prepared[query.SQL] = err == nil // after an error pgx prepares all of them anew
	}
	p.batch = pgx.Batch{}
	p.reads = p.reads[:0]
	return err
}

// send sends statements in one round trip, and reads their results.
func send(ctx context.Context, conn *pgx.Conn, queries []*pgx.QueuedQuery, reads []func(DB) error) (err error) {
	if len(queries) == 0 {
		return nil
	}
	results := conn.SendBatch(ctx, &pgx.Batch{QueuedQueries: queries})
	for _, read := range reads[:len(queries)] {
		if err = read(reader{results}); err != nil {
			break
		}
	}
	return cmp.Or(err, results.Close())
}

// prepared has the statements that a connection has run. pgx prepares others in a round trip before that of the
// statements. Before BEGIN there is no lock_timeout, and the preparation would wait for a locked table.
type prepared map[string]bool

func preparedOn(conn *pgx.Conn) prepared {
	const name = "ledgerd.prepared"
	data := conn.PgConn().CustomData()
	if data[name] == nil {
		data[name] = prepared{}
	}
	return data[name].(prepared)
}

func (p prepared) lacks(query *pgx.QueuedQuery) bool { return !p[query.SQL] }

// queueingDB queues statements instead of running them.
type queueingDB pgx.Batch

func (s *queueingDB) queue(sql string, args []any) { (*pgx.Batch)(s).Queue(sql, args...) }

func (s *queueingDB) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	s.queue(sql, args)
	return pgconn.CommandTag{}, errQueued
}

func (s *queueingDB) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.queue(sql, args)
	return nil, errQueued
}

func (s *queueingDB) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	s.queue(sql, args)
	return queuedRow{}
}

type queuedRow struct{}

func (queuedRow) Scan(...any) error { return errQueued }

// reader reads the next result of the round trip.
type reader struct{ results pgx.BatchResults }

func (r reader) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return r.results.Exec()
}

func (r reader) Query(context.Context, string, ...any) (pgx.Rows, error) { return r.results.Query() }

func (r reader) QueryRow(context.Context, string, ...any) pgx.Row { return r.results.QueryRow() }

// planAge decides when the prepared plans of a connection are discarded. A plan made while a table is nearly empty may
// use any index that begins with the tenant, and Postgres keeps it as the table grows. ANALYZE would replace the
// plan, but autovacuum runs it a minute later at best. So plans are discarded after 16 batches, then after 32, 64 and
// so on, after a minute, and after a slow batch. A plan made on some hundred rows stays good.
type planAge struct {
	made    time.Time
	batches int // since made
	limit   int // batches until the plans are discarded
	slow    bool
}

const (
	planAgeName = "ledgerd.plans"
	planLimit   = 16
	planLife    = time.Minute
	planPause   = time.Second // between two discards because of slow batches

	// A batch above these limits counts as slow. A lookup with a wrong plan takes milliseconds a row.
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

// observe records the duration of a batch.
func (a *planAge) observe(took time.Duration, commands int) {
	a.slow = a.slow || took > slowBatch+time.Duration(commands)*slowCommand
}

// due counts a batch, and reports whether the plans must be discarded before it.
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
