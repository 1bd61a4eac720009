package commit

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// evidence is what an attempt rests on: all that its commands were shown, and with it every answer and
// every refusal that they give. A caller gets these only after confirm and COMMIT (a dry run: ROLLBACK).
//
//	rows    locked, or (optimistic) taken over from predecessors and read without locks
//	names   looked up after the rows; a miss may be untrue by now
//	time    the database's clock, read after the rows
type evidence struct {
	optimistic   bool
	predecessors []*latch // batches of this process whose rows were taken over
}

// confirm queues what makes sure of the evidence, in the transaction that COMMIT ends:
//
//	rows    locked: they cannot have changed. Optimistic: the predecessors have committed, and every
//	        row that the batch saw is locked, sorted, and is as its last known writer wrote it
//	names   a name that the batch takes is inserted: its unique constraint is the proof. A name that was
//	        looked up and not taken hangs on rows: it counts only while these are as they were
//	time    nothing to confirm
func (a *attempt[T]) confirm(p *Pipe, conn *pgx.Conn) error {
	if !a.evidence.optimistic {
		return nil
	}
	if len(a.evidence.predecessors) > 0 {
		if err := p.Run(conn); err != nil { // what is new is written while they commit
			return err
		}
		if !a.awaitPredecessors() {
			return ErrConflict
		}
	}
	p.Queue(func(d DB) error { return q.LockTimeoutApply(p.ctx, d, ms(a.engine.lockTimeout(true))) })
	for _, x := range a.participants {
		if o := optimistic(x); o != nil {
			o.Confirm(p)
		}
	}
	return nil
}

// awaitPredecessors waits until the batches whose rows were taken over have ended.
func (a *attempt[T]) awaitPredecessors() (committed bool) {
	start := time.Now()
	committed = a.engine.latches.await(a.evidence.predecessors)
	a.waited += time.Since(start)
	a.evidence.predecessors = nil
	return committed
}

// ending is how an attempt ended. The switch in Engine.run says what follows from each.
type ending int

const (
	committed  ending = iota // every job has its outcome: durable, nothing to write, or answered OUTCOME_UNKNOWN
	incomplete               // a command asked for rows that it had not named
	overfull                 // more row ids than one batch has
	conflicted               // optimistic evidence did not hold
	raced                    // another transaction took a name, or a snapshot, a plan or a statement was lost
	collided                 // a number of the batch was given out before
	blocked                  // another transaction held a lock for longer than the lock time-out
	lost                     // the connection failed; nothing was committed
	rejected                 // the database refuses the data of some command, or code of ours is wrong
	broken                   // schema, rights or disk: no batch can commit
	endings
)

var endingNames = [endings]string{"committed", "incomplete", "overfull", "conflicted", "raced", "collided", "blocked",
	"lost", "rejected", "broken"}

func (e ending) String() string { return endingNames[e] }

var (
	errIncomplete = errors.New("commit: a command needs more rows")
	errTooManyIDs = errors.New("commit: one batch gives out at most 16,383 ids")
	errLost       = errors.New("commit: no connection")
	errOtherTag   = errors.New("commit: unexpected command tag")
)

func internal(cause error) error { return fault.InternalError.New("internal error").Because(cause) }

// end reads how an attempt ended. An optimistic attempt that failed for a reason that locks could prevent is
// conflicted.
func (a *attempt[T]) end(err error) ending {
	end := a.engine.classify(err)
	if a.waited > idleTimeout/2 && hasState(err, "25P03") {
		end = raced // our own wait for another batch of this process: the database is well
	}
	if !a.evidence.optimistic || a.sent {
		return end
	}
	switch end {
	// collided: most likely an entry that another process wrote under the same version.
	case raced, blocked, rejected, collided:
		return conflicted
	}
	return end
}

// byAnother reports that another process caused the conflict: it changed a row that was not locked, or holds one. A
// name that it took says nothing about rows.
func (e *Engine[T]) byAnother(err error) bool {
	var p *pgconn.PgError
	if !errors.As(err, &p) {
		return false
	}
	end := e.classify(err)
	return end == collided || end == blocked || p.Code == "LD001" || p.Code[:min(2, len(p.Code))] == "40"
}

// classify reads a failed attempt. Only SQLSTATE and constraint names are looked at, never texts. An error
// that is not known is taken for one of data: so its command can fail alone.
func (e *Engine[T]) classify(err error) ending {
	var p *pgconn.PgError
	switch {
	case err == nil:
		return committed
	case errors.Is(err, errIncomplete):
		return incomplete
	case errors.Is(err, errTooManyIDs):
		return overfull
	case errors.Is(err, errOtherTag), errors.Is(err, ErrConflict):
		return raced
	case !errors.As(err, &p):
		if connectionLost(err) {
			return lost
		}
		return rejected
	case e.nameTaken(err):
		return raced
	case p.Code == "23505":
		return collided
	}
	if end, ok := states[p.Code]; ok {
		return end
	}
	if end, ok := stateClasses[p.Code[:min(2, len(p.Code))]]; ok {
		return end
	}
	if errors.Is(err, errLost) { // said while connecting, perhaps by a pooler
		return lost
	}
	return rejected
}

// states goes before stateClasses.
var states = map[string]ending{
	"LD001": raced,    // a statement missed a row
	"0A000": raced,    // a cached plan, after a migration
	"26000": raced,    // a prepared statement that a pooler forgot
	"42P05": raced,    // a prepared statement that a pooler had from another client
	"57014": raced,    // cancelled, by statement_timeout or by hand
	"55P03": blocked,  // lock_timeout
	"25006": lost,     // read-only: the server was demoted
	"25P03": lost,     // idle_in_transaction_session_timeout
	"53200": rejected, // out of memory, or of room for locks: perhaps of one command
	"53300": lost,     // too many connections
}

// stateClasses leaves XX (corruption, internal errors) to the commands that run into it: one rotten
// row must not stop all others.
var stateClasses = map[string]ending{
	"40": raced,                // serialization failure, deadlock
	"08": lost,                 // connection
	"57": lost,                 // shut down by an operator
	"53": broken, "58": broken, // disk, memory
	"42": broken, "3D": broken, "3F": broken, "28": broken, // schema, rights
}

func connectionLost(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.Is(err, errLost) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) || errors.As(err, &connect) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err)
}

// nameTaken reports that another process took a name first, which says nothing about rows.
func (e *Engine[T]) nameTaken(err error) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && p.Code == "23505" && e.names[p.ConstraintName]
}

func hasState(err error, code string) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && p.Code == code
}

// isDeadlock: rows are locked in one order everywhere, so a deadlock is a defect of ours.
func isDeadlock(err error) bool { return hasState(err, "40P01") }

// isCanceled reports that a statement was ended by statement_timeout or by hand. Another transaction is not the cause:
// a wait for its locks ends by lock_timeout.
func isCanceled(err error) bool { return hasState(err, "57014") }

// backoff disables optimistic batches after a conflict with another process: for a second, and for twice
// as long each time that the next conflict follows at once, up to a minute.
type backoff struct {
	mu    sync.Mutex
	until time.Time
	pause time.Duration
}

const (
	leastBackoff    = time.Second
	greatestBackoff = time.Minute
)

func (b *backoff) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().After(b.until)
}

// start begins a pause, unless one goes on.
func (b *backoff) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Before(b.until) {
		return
	}
	if now.Before(b.until.Add(b.pause)) {
		b.pause = min(2*b.pause, greatestBackoff)
	} else {
		b.pause = leastBackoff
	}
	b.until = now.Add(b.pause)
}
