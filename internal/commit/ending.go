package commit

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// ending is how an attempt ended. The switch in writer.run handles every ending. runDirect handles success and the
// endings that concern the rows of its command, and leaves all others to writer.run.
type ending int

const (
	done       ending = iota // every job has its outcome: durable, nothing to write, or answered OUTCOME_UNKNOWN
	incomplete               // a command asked for rows that it had not named
	overfull                 // more row ids than one batch has
	conflicted               // an optimistic assumption did not hold
	raced                    // another transaction took a name; or a snapshot, a plan or a statement was lost
	collided                 // the batch number or a row id was used before
	blocked                  // another transaction held a lock for longer than the lock timeout
	lost                     // the connection failed; nothing was committed
	rejected                 // the database refuses the data of some command, or our code has a defect
	broken                   // schema, rights or disk: no batch can commit
	endings
)

var endingNames = [endings]string{"done", "incomplete", "overfull", "conflicted", "raced", "collided", "blocked",
	"lost", "rejected", "broken"}

func (e ending) String() string { return endingNames[e] }

var (
	errIncomplete = errors.New("commit: a command needs more rows")
	errTooManyIDs = errors.New("commit: one batch gives out at most 16,383 ids")
	errLost       = errors.New("commit: no connection")
	errOtherTag   = errors.New("commit: unexpected command tag")
)

func internal(cause error) error { return fault.InternalError.New("internal error").Because(cause) }

// classify maps the result of an attempt to an ending. An optimistic attempt that failed for a reason that locks could
// have prevented is conflicted.
func (a *attempt[T]) classify(err error) ending {
	end := a.engine.classify(err)
	if a.waited > idleTimeout/2 && hasState(err, "25P03") {
		end = raced // we waited too long for another batch of this process
	}
	if !a.assumptions.optimistic || a.sent {
		return end
	}
	switch end {
	// collided: most likely another process wrote an entry with the same version.
	case raced, blocked, rejected, collided:
		return conflicted
	}
	return end
}

// causedByOtherProcess reports whether another process caused the conflict: it changed or holds a row that this batch
// had not locked. A name that another process took is no such conflict.
func (e *Engine[T]) causedByOtherProcess(err error) bool {
	var p *pgconn.PgError
	if !errors.As(err, &p) {
		return false
	}
	end := e.classify(err)
	return end == collided || end == blocked || p.Code == "LD001" || p.Code[:min(2, len(p.Code))] == "40"
}

// aboutRows reports whether an attempt raced with other transactions, and did not merely lose a plan or a statement.
func (e *Engine[T]) aboutRows(err error) bool {
	return errors.Is(err, ErrConflict) || e.nameTaken(err) || e.causedByOtherProcess(err)
}

// classify maps the error of an attempt to an ending, by SQLSTATE and constraint name, never by text. An unknown error
// counts as an error of data, so that bisection fails only the command that causes it.
func (e *Engine[T]) classify(err error) ending {
	var p *pgconn.PgError
	switch {
	case err == nil:
		return done
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
	if errors.Is(err, errLost) { // an error of the connect, perhaps sent by a pooler
		return lost
	}
	return rejected
}

// states takes precedence over stateClasses.
var states = map[string]ending{
	"LD001": raced,    // a statement missed a row
	"LD006": raced,    // the epoch was not recorded: after a failover, until a server has noticed it
	"0A000": raced,    // a cached plan, after a migration
	"26000": raced,    // a prepared statement was lost by a pooler
	"42P05": raced,    // a prepared statement exists already, from another client of a pooler
	"57014": raced,    // cancelled, by statement_timeout or by hand
	"55P03": blocked,  // lock_timeout
	"25006": lost,     // read-only: the server was demoted
	"25P03": lost,     // idle_in_transaction_session_timeout
	"53200": rejected, // out of memory or lock table full, perhaps because of one command
	"53300": lost,     // too many connections
}

// stateClasses has no entry for XX (corruption, internal errors): the commands that run into a corrupt row fail alone.
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

// nameTaken reports whether another process took a name first.
func (e *Engine[T]) nameTaken(err error) bool {
	p, ok := errors.AsType[*pgconn.PgError](err)
	return ok && p.Code == "23505" && e.names[p.ConstraintName]
}

func hasState(err error, code string) bool {
	p, ok := errors.AsType[*pgconn.PgError](err)
	return ok && p.Code == code
}

// isDeadlock reports a deadlock. Rows are locked in one order everywhere, so every deadlock is a defect.
func isDeadlock(err error) bool { return hasState(err, "40P01") }

// isCanceled reports whether a statement was cancelled, by statement_timeout or by an operator. The cause is not
// another transaction: lock_timeout ends waits for its locks.
func isCanceled(err error) bool { return hasState(err, "57014") }
