package commit

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// action is what a failed attempt asks for.
type action int

const (
	rerun  action = iota // lost a race: the same batch again, some times
	lost                 // no connection: again, to the callers' deadlines
	split                // some row's data: halves, until the culprit fails alone
	park                 // somebody holds a lock: whoever needs it waits apart
	broken               // schema or disk: nobody can commit
)

// classify reads a failed attempt. Only SQLSTATE and constraint names are looked at, never texts.
func (e *Engine[B]) classify(err error) action {
	if errors.Is(err, ErrMoreRows) {
		return rerun
	}
	var p *pgconn.PgError
	if !errors.As(err, &p) {
		return lost
	}
	switch {
	case p.Code == "23505" && e.names[p.ConstraintName]:
		return rerun
	case p.Code == "55P03":
		return park
	case p.Code == "40P01":
		e.metrics.deadlocks.Inc()
		e.log.Error("deadlock between batches", "detail", p.Detail)
		return rerun
	case p.Code == "LD001", p.Code == "40001":
		return rerun
	case p.Code == "25006", p.Code == "25P02", p.Code == "25P03", p.Code == "53300",
		strings.HasPrefix(p.Code, "57P0"), strings.HasPrefix(p.Code, "08"):
		return lost
	case strings.HasPrefix(p.Code, "53"), strings.HasPrefix(p.Code, "42"), strings.HasPrefix(p.Code, "58"),
		strings.HasPrefix(p.Code, "XX"), strings.HasPrefix(p.Code, "3D"), strings.HasPrefix(p.Code, "28"):
		return broken
	}
	return split
}
