package importer

import (
	"errors"
	"fmt"
	"io"
)

// Errors of a run that did not import everything. The problems were printed before.
var (
	ErrStopped = errors.New("stopped at the problems above: the rest of the file was not sent (--keep-going " +
		"skips problems)")
	ErrIncomplete = errors.New("the file was not imported completely: see the problems above")
)

// Place is a position in a file.
type Place struct {
	Line   int
	Column string // name of a column; may be empty
	Name   string // name of an object in the ledger, which has no line
}

func (p Place) String() string {
	switch {
	case p.Name != "":
		return p.Name
	case p.Line == 0:
		return "somewhere" // the format has no positions
	case p.Column == "":
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("line %d, column %s", p.Line, p.Column)
}

// Problem describes a problem at the place.
func (p Place) Problem(format string, args ...any) *Problem {
	return &Problem{Place: p, Text: fmt.Sprintf(format, args...)}
}

// Problem is an error in a file.
type Problem struct {
	Place
	Text string
}

func (p *Problem) Error() string { return p.Place.String() + ": " + p.Text }

// Problems prints problems immediately and counts them: a file may have more than fit into memory.
type Problems struct {
	W        io.Writer
	Progress *Progress
	// Most is how many are printed; the rest is only counted. 0: all.
	Most int
	N    int
}

// MostProblems is how many problems are printed for a file that is not sent.
const MostProblems = 20

// Print prints a problem.
func (l *Problems) Print(p *Problem) {
	l.N++
	if l.Most > 0 && l.N > l.Most {
		return
	}
	l.Progress.clear()
	fmt.Fprintln(l.W, p)
}

// Rest prints how many problems were not printed.
func (l *Problems) Rest() {
	if l.Most > 0 && l.N > l.Most {
		fmt.Fprintf(l.W, "and %s more\n", Count(l.N-l.Most))
	}
}
