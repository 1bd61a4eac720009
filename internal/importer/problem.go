package importer

import (
	"errors"
	"fmt"
	"io"
)

// How a run ends that did not bring everything into the ledger. What is wrong was printed before.
var (
	ErrStopped    = errors.New("stopped at the problems above: the rest of the file was not sent (--keep-going skips problems)")
	ErrIncomplete = errors.New("the file was not imported completely: see the problems above")
)

// Place is where in a file something stands.
type Place struct {
	Line   int
	Column string // name of a column; may be empty
	Name   string // of what has no line: it is in the ledger, not in the file
}

func (p Place) String() string {
	switch {
	case p.Name != "":
		return p.Name
	case p.Line == 0:
		return "somewhere" // the format does not tell
	case p.Column == "":
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("line %d, column %s", p.Line, p.Column)
}

// Problem is something wrong at the place.
func (p Place) Problem(format string, args ...any) *Problem {
	return &Problem{Place: p, Text: fmt.Sprintf(format, args...)}
}

// Problem is something wrong in a file.
type Problem struct {
	Place
	Text string
}

func (p *Problem) Error() string { return p.Place.String() + ": " + p.Text }

// Problems prints problems as they come, and counts them: a file may have more than fit into memory.
type Problems struct {
	W        io.Writer
	Progress *Progress
	// Most are printed; the rest is counted. 0: all.
	Most int
	N    int
}

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
