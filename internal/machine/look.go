package machine

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Look reads the newest version of a machine, without an instance.
type Look struct{ row *commit.Row[Name, newest] }

// First is the first state of a machine, reduced to the properties that orders need.
type First struct {
	Timer    time.Duration // of the state; 0: it has none
	TimerTo  Parts         // effect on the parts of an order when the timer fires
	Confirms int           // number of states that confirm the parts of orders, to which callers or flows can move
}

// Look names a machine to read.
func (tx *Tx) Look(n Name) *Look { return &Look{tx.machines.Want(n)} }

// First returns the first state of the machine, or of the shipped machine of this name. Returns fault
// MACHINE_NOT_FOUND.
func (l *Look) First(tx *Tx) (f First, err error) {
	var def *compiled
	if v := &l.row.Value; l.row.Exists {
		def, err = tx.definition(v.def, v.hash)
	} else if shipped := Shipped[l.row.Key.Machine]; shipped != nil {
		c := NewDefine(commit.Caller{}, l.row.Key.Machine, shipped)
		def, err = c.def, c.err
	} else {
		return f, notFound(l.row.Key)
	}
	if err != nil {
		return f, err
	}
	if t := def.initial.Timer; t != nil {
		f.Timer, f.TimerTo = t.After(), def.states[t.To].Parts
	}
	f.Confirms = len(def.targets(def.initial.Name, ConfirmParts, ByCaller, ByFlow))
	return f, nil
}

// targets returns the states with such parts to which an instance can move from a state, by the given actors, sorted.
// Moves back are left out: entering a state again that way ends no parts.
func (c *compiled) targets(from string, parts Parts, by ...Actor) (states []string) {
	for p, m := range c.moves {
		if p.from == from && !m.back && slices.ContainsFunc(by, m.by) && c.states[p.to].Parts == parts {
			states = append(states, p.to)
		}
	}
	slices.Sort(states)
	return states
}

func (c *compiled) reachable(from string) (states []string) {
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		for p := range c.moves {
			if p.from == todo[0] && !slices.Contains(states, p.to) {
				states, todo = append(states, p.to), append(todo, p.to)
			}
		}
	}
	slices.Sort(states)
	return states
}
