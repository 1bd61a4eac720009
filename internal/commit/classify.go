package commit

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// action is what a failed attempt asks for.
type action int

const (
	data   action = iota // somebody's data, or code: halves, until the culprit fails alone
	race                 // lost a race: the same batch again, some times
	lost                 // no connection: again, to the callers' deadlines
	locked               // somebody holds a lock: whoever needs it waits apart
	broken               // schema or disk: nobody can commit
)

var (
	errAgain    = errors.New("commit: the batch has to run again") // not a failure
	errLost     = errors.New("commit: no connection")
	errOtherTag = errors.New("commit: not the command tag that was due")
)

func internal(cause error) error { return fault.InternalError.New("internal error").Because(cause) }

// classify reads a failed attempt. Only SQLSTATE and constraint names are looked at, never texts.
// Whatever is not known is taken for somebody's data: so it can fail alone.
func (e *Engine[B]) classify(err error) action {
	var p *pgconn.PgError
	switch {
	case errors.Is(err, errOtherTag):
		return race
	case !errors.As(err, &p):
		if connectionLost(err) {
			return lost
		}
		return data
	case p.Code == "23505" && e.names[p.ConstraintName]:
		return race
	}
	if a, ok := states[p.Code]; ok {
		return a
	}
	if a, ok := stateClasses[p.Code[:min(2, len(p.Code))]]; ok || !errors.Is(err, errLost) {
		return a
	}
	return lost // said while connecting, perhaps by a pooler: nobody's data
}

// states goes before stateClasses.
var states = map[string]action{
	"LD001": race,   // a statement missed a row
	"LD003": race,   // a guess was wrong
	"0A000": race,   // a cached plan, after a migration
	"26000": race,   // a prepared statement that a pooler forgot
	"57014": race,   // cancelled, by statement_timeout or by hand
	"55P03": locked, // lock_timeout
	"25006": lost,   // read-only: the server was demoted
	"25P03": lost,   // idle_in_transaction_session_timeout
	"53300": lost,   // too many connections
}

var stateClasses = map[string]action{
	"40": race,                               // serialization failure, deadlock
	"08": lost,                               // connection
	"57": lost,                               // shut down by an operator
	"53": broken, "58": broken, "XX": broken, // disk, memory, corruption
	"42": broken, "3D": broken, "3F": broken, "28": broken, // schema, rights
}

func connectionLost(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.Is(err, errLost) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) || errors.As(err, &connect) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err)
}

// isDeadlock: rows are locked in one order everywhere, so a deadlock is a defect of ours.
func isDeadlock(err error) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && p.Code == "40P01"
}
