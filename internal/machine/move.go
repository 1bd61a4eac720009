package machine

import (
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// MoveParams describe a move.
type MoveParams struct {
	Machine, Key string
	To           string
	From         string // the state that the instance must be in; empty: any
	Revision     int64  // the revision that it must have; 0: any
	Cause        string // name of what causes the move
	Reason       string
	Inputs       map[string]string
	Flow         bool      // a flow of ledgerd makes the move, for its caller
	TimerAt      time.Time // overrides the timer of the entered state; zero: now plus the timer's length
	Owner        string    // the instance's owner from now on; empty: stays
}

// MoveCommand moves an instance. If the instance is in the state already, for the same cause, the answer is a
// commit.Repeat. Its answer is an Instance.
type MoveCommand struct {
	commit.Caller
	MoveParams

	row *row
}

// Need names the instance.
func (c *MoveCommand) Need(tx *Tx) { c.row = tx.Want(Key{c.Tenant, c.Machine, c.Key}) }

// Apply moves the instance. Returns faults INSTANCE_NOT_FOUND, STATE_TAKEN, STATE_CHANGED, MOVE_NOT_ALLOWED,
// MOVE_NOT_YOURS, MOVE_INPUT_MISSING, MOVE_TOO_EARLY, and FIELD_INVALID for a state that the machine does not have.
func (c *MoveCommand) Apply(tx *Tx) (any, error) {
	if !c.row.Exists {
		return nil, instanceNotFound(c.row.Key)
	}
	v, err := tx.current(c.row, c.Caller)
	if err != nil {
		return nil, err
	}
	if v.State == c.To {
		if v.Cause != c.Cause {
			return nil, v.fault(StateTaken, "instance %s is %s already, because of %s", c.Key, v.def.label(c.To),
				v.Cause)
		}
		return commit.Repeat{First: v.Instance}, nil
	}
	if c.From != "" && v.def.states[c.From] == nil {
		return nil, v.notAState("from", c.From)
	}
	if c.From != "" && c.From != v.State || c.Revision != 0 && c.Revision != v.Revision {
		return nil, v.fault(StateChanged, "instance %s is %s at revision %d now", c.Key, v.def.label(v.State),
			v.Revision)
	}
	m, err := c.allowed(v)
	if err != nil {
		return nil, err
	}
	if err := c.checkRestrictions(v, m, tx.Now); err != nil {
		return nil, err
	}
	actor := ByCaller
	if m.by(ByFlow) {
		actor = ByFlow
	}
	tx.enter(c.row, step{to: c.To, actor: actor, cause: c.Cause, reason: c.Reason, inputs: c.Inputs,
		caller: c.Caller, publish: m.Publish, timerAt: c.TimerAt, owner: c.Owner})
	return v.Instance, nil
}

// allowed returns the move, or a fault if the machine does not have it.
func (c *MoveCommand) allowed(v *stored) (move, error) {
	if v.def.states[c.To] == nil {
		return move{}, v.notAState("to", c.To)
	}
	m, ok := v.def.moves[pair{v.State, c.To}]
	if ok && (!m.back || c.To == v.CameFrom) {
		return m, nil
	}
	var targets []string
	for p, m := range v.def.moves {
		if p.from == v.State && (!m.back || p.to == v.CameFrom) && (m.by(ByCaller) || c.Flow && m.by(ByFlow)) {
			targets = append(targets, p.to)
		}
	}
	slices.Sort(targets)
	return move{}, v.fault(NotAllowed, "instance %s cannot move from %s to %s", c.Key, v.def.label(v.State),
		v.def.label(c.To)).With("allowed", strings.Join(targets, ","))
}

func (v *stored) notAState(field, state string) error {
	return fault.FieldInvalid.New("%s: version %d of machine %s has no state %s", field, v.Version, v.Machine, state).
		WithField(field, "is not a state of the machine")
}

// checkRestrictions checks the restrictions of a move on its caller.
func (c *MoveCommand) checkRestrictions(v *stored, m move, now time.Time) error {
	mayMove := m.by(ByCaller) || c.Flow && m.by(ByFlow)
	if !mayMove || len(m.Principals) > 0 && !slices.Contains(m.Principals, c.Principal) {
		return v.fault(NotYours, "%s may not move instance %s from %s to %s", c.Principal, c.Key, v.def.label(v.State),
			v.def.label(c.To))
	}
	var missing *fault.Fault
	for _, name := range m.Require {
		path, given := "inputs."+name, c.Inputs[name]
		if name == ReasonInput {
			path, given = name, c.Reason
		}
		if given != "" {
			continue
		}
		if missing == nil {
			missing = v.fault(InputMissing, "%s: the move from %s to %s requires it", path, v.def.label(v.State),
				v.def.label(c.To))
		}
		missing = missing.WithField(path, "is required by this move")
	}
	if m.back && c.From == "" && c.Revision == 0 {
		if missing == nil {
			missing = v.fault(InputMissing, "from: the move from %s back to %s requires it, or the revision",
				v.def.label(v.State), v.def.label(c.To))
		}
		missing = missing.WithField("from", "is required by a move back, or revision is")
	}
	if missing != nil {
		return missing
	}
	if from := v.ChangedAt.Add(m.Stay()); m.StayMs > 0 && from.After(now) {
		return v.fault(TooEarly, "instance %s can move from %s to %s only from %s on", c.Key, v.def.label(v.State),
			v.def.label(c.To), from.Format(time.RFC3339Nano)).With("not_before", from.Format(time.RFC3339Nano)).
			After(from.Sub(now))
	}
	return nil
}
