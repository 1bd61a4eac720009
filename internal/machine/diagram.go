package machine

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Diagram draws a machine as a stateDiagram-v2 of Mermaid. Names of states get a prefix, because words such as end and
// state have a meaning there.
func Diagram(d *Definition) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("stateDiagram-v2")
	leaves := map[string]bool{}
	for i := range d.Moves {
		for _, from := range d.Moves[i].From {
			leaves[from] = true
		}
	}
	for i := range d.States {
		s := &d.States[i]
		text := s.Name
		if s.Label != "" {
			text = s.Label + " (" + s.Name + ")"
		}
		line(`    state "%s" as s_%s`, escape(text), s.Name)
	}
	for i := range d.States {
		if s := &d.States[i]; s.Initial {
			line("    [*] --> s_%s", s.Name)
		}
	}
	for i := range d.Moves {
		a := &d.Moves[i]
		for _, from := range a.From {
			for _, to := range d.targets(a, from) {
				line("    s_%s --> s_%s%s", from, to, d.note(a, from, to))
			}
		}
	}
	for i := range d.States {
		if s := &d.States[i]; !leaves[s.Name] {
			line("    s_%s --> [*]", s.Name)
		}
	}
	return b.String()
}

// targets are the states to which a move leads from one state: several for a move back.
func (d *Definition) targets(a *Allowed, from string) (targets []string) {
	if !a.Back {
		return []string{a.To}
	}
	for i := range d.Moves {
		if d.Moves[i].To == from {
			targets = append(targets, d.Moves[i].From...)
		}
	}
	return targets
}

// note describes the restrictions of a move.
func (d *Definition) note(a *Allowed, from, to string) string {
	var notes []string
	if a.Back {
		notes = append(notes, "back")
	}
	for _, by := range a.By {
		if by == ByTimer {
			continue
		}
		notes = append(notes, string(by))
	}
	for i := range d.States {
		if t := d.States[i].Timer; d.States[i].Name == from && t != nil && t.To == to {
			notes = append(notes, "after "+span(t.After()))
		}
	}
	if len(a.Principals) > 0 {
		notes = append(notes, "by "+strings.Join(a.Principals, ", "))
	}
	if len(a.Require) > 0 {
		notes = append(notes, "with "+strings.Join(a.Require, ", "))
	}
	if a.StayMs > 0 {
		notes = append(notes, "not before "+span(a.Stay()))
	}
	if len(notes) == 0 {
		return ""
	}
	return ": " + escape(strings.Join(notes, ", "))
}

// span writes a duration without units that are zero: 30m, not 30m0s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// escape writes all but letters, digits and a few signs as entities of Mermaid.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.In(r, unicode.L, unicode.M, unicode.N) || strings.ContainsRune(" _.,-()", r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}
