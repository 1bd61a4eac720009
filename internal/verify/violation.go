package verify

import (
	"fmt"
	"strings"
	"unicode"
)

// Violation is one row that violates a check.
type Violation struct {
	Check  string // file of db/checks, without .sql
	Rule   string // the invariant
	Fields []Field
}

// Field is one column of a violation: part of its identity, or a wrong value. Amounts are in minor units.
type Field struct {
	Name  string
	Value string
	// Wrong means that the value should be Expected.
	Wrong    bool
	Expected string
}

// Detail identifies the row, with actual and expected values.
func (v Violation) Detail() string {
	words := make([]string, len(v.Fields))
	for i, f := range v.Fields {
		words[i] = f.Name + "=" + f.Value
		if strings.ContainsFunc(f.Value, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }) {
			words[i] = fmt.Sprintf("%s=%q", f.Name, f.Value)
		}
		if f.Wrong {
			words[i] += fmt.Sprintf(" (should be %s)", f.Expected)
		}
	}
	return strings.Join(words, " ")
}

func (v Violation) String() string { return v.Check + ": " + v.Detail() }
