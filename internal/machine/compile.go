package machine

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/fault"
)

var (
	stateName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	eventType = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
)

// compiler checks a definition, and collects its problems by field.
type compiler struct {
	compiled
	problems []fault.Field
}

func (c *compiler) bad(path, format string, args ...any) {
	c.problems = append(c.problems, fault.Field{Path: path, Description: fmt.Sprintf(format, args...)})
}

// compile checks a definition and prepares it for use. Paths of the problems begin with path.
func compile(d *Definition, path string) (*compiled, []fault.Field) {
	c := &compiler{compiled: compiled{Definition: d, states: map[string]*State{}, moves: map[pair]move{}}}
	c.readStates(path + "states")
	c.readMoves(path + "moves")
	if len(c.moves) <= MaxMoves { // else expansion takes long
		c.expandBack(path + "moves")
	}
	if len(c.moves) > MaxMoves {
		c.bad(path+"moves", "allow %d moves between two states, and at most %d are possible", len(c.moves), MaxMoves)
	}
	if len(c.problems) == 0 { // else these would be consequences
		c.readTimers(path + "states")
		c.reach(path + "states")
	}
	text, err := json.Marshal(d)
	if err != nil || len(text) > maxDefinition {
		c.bad(path+"states", "the definition has %d bytes when stored, and at most %d are possible", len(text),
			maxDefinition)
	}
	c.text = text
	return &c.compiled, c.problems
}

func (c *compiler) readStates(path string) {
	if n := len(c.States); n == 0 || n > MaxStates {
		c.bad(path, "must be 1 to %d", MaxStates)
	}
	for i := range c.States {
		s, at := &c.States[i], fmt.Sprintf("%s[%d].", path, i)
		switch {
		case !stateName.MatchString(s.Name):
			c.bad(at+"name", "must be a-z, 0-9 and _, begin with a letter, and have at most 64 characters")
		case c.states[s.Name] != nil:
			c.bad(at+"name", "must be unique")
		}
		c.states[s.Name] = s
		if len(s.Label) > 128 || !utf8.ValidString(s.Label) {
			c.bad(at+"label", "must be at most 128 bytes")
		}
		if s.Initial && c.initial != nil {
			c.bad(at+"initial", "must be set on one state only: %s is initial", c.initial.Name)
		}
		if s.Initial {
			c.initial = s
			if s.Parts != KeepParts {
				c.bad(at+"order_parts", "must not be set on the initial state")
			}
		}
	}
	if c.initial == nil {
		c.bad(path, "one state must be initial")
	}
}

func (c *compiler) readMoves(path string) {
	for i := range c.Moves {
		a, at := &c.Moves[i], fmt.Sprintf("%s[%d].", path, i)
		if len(a.From) == 0 {
			c.bad(at+"from", "must name a state")
		}
		if a.Back == (a.To != "") {
			c.bad(at+"to", "must be set, or back, and not both")
		}
		if !a.Back && c.states[a.To] == nil && a.To != "" {
			c.bad(at+"to", "there is no state %s", a.To)
		}
		for j, from := range a.From {
			path := fmt.Sprintf("%sfrom[%d]", at, j)
			switch {
			case slices.Contains(a.From[:j], from):
				c.bad(path, "must be unique")
			case c.states[from] == nil:
				c.bad(path, "there is no state %s", from)
			case from == a.To:
				c.bad(path, "must not be the state that the move enters")
			case !a.Back && c.moves[pair{from, a.To}].Allowed != nil:
				c.bad(path, "the move from %s to %s exists already", from, a.To)
			case !a.Back:
				c.moves[pair{from, a.To}] = move{a, false}
			}
		}
		c.readRestrictions(at, a)
	}
}

func (c *compiler) readRestrictions(at string, a *Allowed) {
	if slices.Contains(a.By, ByFlow) && len(a.By) > 1 {
		c.bad(at+"by", "must not name others beside ACTOR_FLOW")
	}
	if len(a.Principals) > MaxPrincipals {
		c.bad(at+"principals", "must have at most %d elements", MaxPrincipals)
	}
	if len(a.Require) > MaxInputs {
		c.bad(at+"require", "must have at most %d elements", MaxInputs)
	}
	for j, name := range a.Require {
		if !stateName.MatchString(name) {
			c.bad(fmt.Sprintf("%srequire[%d]", at, j),
				"must be a-z, 0-9 and _, begin with a letter, and have at most 64 characters")
		}
	}
	if a.StayMs < 0 || a.Stay() > MaxTime {
		c.bad(at+"stay", "must be from 0 to 10 years")
	}
	if a.Publish != "" && !eventType.MatchString(a.Publish) {
		c.bad(at+"publish", "must be at most 128 letters, digits, dots, - and _")
	}
}

// expandBack adds the moves back: to every state from which another move enters the state that they leave.
func (c *compiler) expandBack(path string) {
	enters := map[string][]string{}
	for p := range c.moves {
		enters[p.to] = append(enters[p.to], p.from)
	}
	for i := range c.Moves {
		a := &c.Moves[i]
		for j, from := range a.From {
			at := fmt.Sprintf("%s[%d].from[%d]", path, i, j)
			if !a.Back || c.states[from] == nil {
				continue
			}
			if len(enters[from]) == 0 {
				c.bad(at, "no move enters %s, so there is no way back", from)
			}
			for _, to := range enters[from] {
				if c.moves[pair{from, to}].Allowed != nil {
					c.bad(at, "the move from %s back to %s exists already", from, to)
					continue
				}
				c.moves[pair{from, to}] = move{a, true}
			}
		}
	}
}

func (c *compiler) readTimers(path string) {
	for i := range c.States {
		s, at := &c.States[i], fmt.Sprintf("%s[%d].timer.", path, i)
		if s.Timer == nil {
			continue
		}
		if s.Timer.After() < MinTimer || s.Timer.After() > MaxTime {
			c.bad(at+"after", "must be from 1 s to 10 years")
		}
		if len(s.Timer.Reason) > MaxReason {
			c.bad(at+"reason", "must be at most %d bytes", MaxReason)
		}
		m, ok := c.moves[pair{s.Name, s.Timer.To}]
		switch {
		case !ok:
			c.bad(at+"to", "there is no move from %s to %s", s.Name, s.Timer.To)
		case m.back:
			c.bad(at+"to", "the move from %s to %s must not be one back", s.Name, s.Timer.To)
		case c.states[s.Timer.To].Parts == ConfirmParts:
			c.bad(at+"to", "must not confirm the parts of orders: when the time is over, they have expired")
		case !m.by(ByTimer):
			c.bad(at+"to", "the move from %s to %s does not name ACTOR_TIMER in by", s.Name, s.Timer.To)
		}
	}
}

// reach checks that every state can be reached from the initial one.
func (c *compiler) reach(path string) {
	next := map[string][]string{}
	for p := range c.moves {
		next[p.from] = append(next[p.from], p.to)
	}
	reached, todo := map[string]bool{c.initial.Name: true}, []string{c.initial.Name}
	for len(todo) > 0 {
		from := todo[0]
		todo = todo[1:]
		for _, to := range next[from] {
			if !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	for i := range c.States {
		if !reached[c.States[i].Name] {
			c.bad(fmt.Sprintf("%s[%d].name", path, i), "no moves lead from %s to %s", c.initial.Name, c.States[i].Name)
		}
	}
}
