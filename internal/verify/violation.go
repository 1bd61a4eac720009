package verify

import (
	"fmt"
	"strings"
)

// Violation is one row that breaks a check.
type Violation struct {
	Check  string // file of db/checks, without .sql
	Rule   string // what is always true
	Fields []Field
}

// Field is one column of a violation: whose it is, or what is wrong. Amounts are in minor units.
type Field struct {
	Name  string
	Value string
	// Wrong: the value should be Expected.
	Wrong    bool
	Expected string
}

// Detail names the culprit and says what is and what should be.
func (v Violation) Detail() string {
	words := make([]string, len(v.Fields))
	for i, f := range v.Fields {
		words[i] = f.Name + "=" + f.Value
		if strings.ContainsAny(f.Value, " ") {
			words[i] = fmt.Sprintf("%s=%q", f.Name, f.Value)
		}
		if f.Wrong {
			words[i] += fmt.Sprintf(" (should be %s)", f.Expected)
		}
	}
	return strings.Join(words, " ")
}

func (v Violation) String() string { return v.Check + ": " + v.Detail() }
