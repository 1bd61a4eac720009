package flow

import (
	"maps"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Condition is what a caller puts before a command: a token to spend, a page id to claim. It commits with
// the command, and what Guard did stays when the command is refused for business reasons.
type Condition interface {
	// Need names what the condition works with.
	Need(tx *Tx)
	// Guard runs before the command; an error of it is the error of the whole.
	Guard(tx *Tx) error
	// Apply runs when all guards have passed, just before the command, and is undone with it.
	Apply(tx *Tx) error
	// Done gets the command's answer; existed: the thing was there before, under its own name.
	Done(tx *Tx, answer any, existed bool) error
}

// Telling is a guard that has something to say in the refusal of what stands behind it.
type Telling interface{ Refused(f *fault.Fault) }

// Refuse lets a guard, if it is Telling, have its say in an error, if that is a refusal.
func Refuse(err error, guard any) error {
	f, t := fault.Of(err), Telling(nil)
	if f == nil || f.Reason.Class != fault.Refusal {
		return err
	}
	if t, _ = guard.(Telling); t == nil {
		return err
	}
	own := *f
	own.State = maps.Clone(f.State)
	t.Refused(&own)
	return &own
}

// Behind puts conditions before a command.
func Behind(c Command, conditions ...Condition) Command {
	if len(conditions) == 0 {
		return c
	}
	return &behind{conditions, c}
}

type behind struct {
	conditions []Condition
	command    Command
}

func (w *behind) Need(tx *Tx) {
	for _, c := range w.conditions {
		c.Need(tx)
	}
	w.command.Need(tx)
}

// Count is the command's own.
func (w *behind) Count(tx *Tx) bool {
	c, ok := w.command.(commit.Counted[*Tx])
	return ok && c.Count(tx)
}

// Guard passes the conditions in their order, then the command's own guard.
func (w *behind) Guard(tx *Tx) error {
	for _, c := range w.conditions {
		if err := c.Guard(tx); err != nil {
			return err
		}
	}
	if g, ok := w.command.(commit.Guarded[*Tx]); ok {
		return g.Guard(tx)
	}
	return nil
}

// Apply runs the command, and tells the conditions how it went.
func (w *behind) Apply(tx *Tx) (any, error) {
	for _, c := range w.conditions {
		if err := c.Apply(tx); err != nil {
			return nil, err
		}
	}
	answer, err := w.command.Apply(tx)
	if err != nil {
		for _, c := range w.conditions {
			err = Refuse(err, c)
		}
		return nil, err
	}
	first, existed := answer, false
	if r, ok := answer.(commit.Repeat); ok {
		first, existed = r.First, true
	}
	for _, c := range w.conditions {
		if err := c.Done(tx, first, existed); err != nil {
			return nil, err
		}
	}
	return answer, nil
}
