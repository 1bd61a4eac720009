package machine

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// FireCommand records the move of an instance whose timer has fired, and does nothing for others. Its answer reports
// whether it did.
type FireCommand struct {
	commit.Caller
	Key Key

	row *row
}

// Need names the instance.
func (c *FireCommand) Need(tx *Tx) { c.row = tx.Want(c.Key) }

// Apply records the move.
func (c *FireCommand) Apply(tx *Tx) (any, error) {
	if !c.row.Exists {
		return false, nil
	}
	before := c.row.Value.Revision
	v, err := tx.current(c.row, c.Caller)
	if err != nil {
		return nil, err
	}
	return v.Revision > before, nil
}

// StateOf returns an instance that a command of the batch has named, moved by its timer if that has fired.
func (tx *Tx) StateOf(k Key, c commit.Caller) (Instance, error) {
	r := tx.Wanted(k)
	if r == nil {
		return Instance{}, commit.ErrMoreRows
	}
	if !r.Exists {
		return Instance{}, instanceNotFound(k)
	}
	v, err := tx.current(r, c)
	if err != nil {
		return Instance{}, err
	}
	return v.Instance, nil
}

// Targets returns the states with this effect on order parts to which the batch's definition lets an instance move, by
// the given actors, sorted. Moves back are left out: entering a state again that way ends no parts.
func (tx *Tx) Targets(k Key, parts Parts, by ...Actor) (states []string) {
	v := &tx.Wanted(k).Value
	return v.def.targets(v.State, parts, by...)
}

// Reachable returns the states that an instance can enter from a state, directly or through others, according to the
// batch's definition, sorted.
func (tx *Tx) Reachable(k Key, from string) []string { return tx.Wanted(k).Value.def.reachable(from) }

// Allows reports whether the batch's definition lets an instance move to a state, by the given actors.
func (tx *Tx) Allows(k Key, to string, by ...Actor) bool {
	v := &tx.Wanted(k).Value
	m, ok := v.def.moves[pair{v.State, to}]
	return ok && slices.ContainsFunc(by, m.by) && (!m.back || to == v.CameFrom)
}

// NeedsInputs reports whether the batch's definition requires inputs, or a reason, for the move to a state.
func (tx *Tx) NeedsInputs(k Key, to string) bool {
	v := &tx.Wanted(k).Value
	return len(v.def.moves[pair{v.State, to}].Require) > 0
}

// PartsOf returns what a state of a named instance's definition does to the parts of an order.
func (tx *Tx) PartsOf(k Key, state string) Parts { return tx.Wanted(k).Value.def.states[state].Parts }

// Cancels reports whether a state of a named instance's definition cancels the parts of an order.
func (tx *Tx) Cancels(k Key, state string) bool { return tx.PartsOf(k, state) == CancelParts }

// Cancelled returns the states of a named instance's definition that cancel the parts of an order, sorted.
func (tx *Tx) Cancelled(k Key) (states []string) {
	for name, s := range tx.Wanted(k).Value.def.states {
		if s.Parts == CancelParts {
			states = append(states, name)
		}
	}
	slices.Sort(states)
	return states
}

// Due is an instance whose timer has fired.
type Due struct {
	Key
	ID int64
	At time.Time
}

// DueInstances finds instances whose timer has fired, oldest first, after the given one. A FireCommand for each records
// the move. Correctness does not depend on promptness: every command and read counts such an instance as moved.
func DueInstances(ctx context.Context, pool *pgxpool.Pool, after Due, limit int32) ([]Due, error) {
	rows, err := q.InstanceDuePage(pg.ForAllTenants(ctx), pg.Planned{DB: pool},
		db.InstanceDuePageParams{After: after.At, AfterID: after.ID, Batch: limit})
	due := make([]Due, len(rows))
	for i, r := range rows {
		due[i] = Due{Key{r.TenantID, r.Machine, r.Key}, r.InstanceID, pg.OrZero(r.TimerAt)}
	}
	return due, err
}
