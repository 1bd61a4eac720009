package settlement

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/text/encoding/simplifiedchinese"

	"github.com/ledgerd/ledgerd/internal/importer"
)

// maxLine is the greatest length of a line.
const maxLine = 1 << 20

// rows reads the records of a file, one at a time, and the comments and totals around them.
type rows struct {
	m      *Mapping
	csv    *csv.Reader    // of files whose rows may have several lines; nil: lines are read one by one
	lines  *bufio.Scanner // nil: csv
	line   int
	width  int // number of columns
	ended  bool
	header []string // of the totals
	stated map[sum]string
	period map[string]string
}

// newRows prepares a reader. A file with comments, totals or prefixes has a row a line.
func newRows(in io.Reader, m *Mapping) *rows {
	r := &rows{m: m, stated: map[sum]string{}}
	if m.Encoding == "gbk" {
		in = simplifiedchinese.GB18030.NewDecoder().Reader(in)
	}
	if m.Comment == "" && m.Prefix == "" && m.Totals.Begins == "" {
		r.csv = csv.NewReader(in)
		r.configure(r.csv)
		r.csv.FieldsPerRecord = -1
		return r
	}
	r.lines = bufio.NewScanner(in)
	r.lines.Buffer(nil, maxLine)
	return r
}

func (r *rows) configure(c *csv.Reader) { c.Comma, c.LazyQuotes = r.m.delimiter, r.m.LazyQuotes }

// columns returns the names of the columns, from the mapping or else from the first row.
func (r *rows) columns() ([]string, error) {
	columns := r.m.Columns
	if columns == nil {
		record, problem, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the file is empty: it has no header")
		case err != nil:
			return nil, err
		case problem != nil:
			return nil, fmt.Errorf("the header: %w", problem)
		}
		for i, name := range record {
			if i == 0 {
				name = strings.TrimPrefix(name, "\ufeff")
			}
			columns = append(columns, strings.TrimSpace(name))
		}
		c := checker{}
		c.columns(r.m, columns)
		if err := errors.Join(c.problems...); err != nil {
			return nil, err
		}
	}
	r.width = len(columns)
	return columns, nil
}

// next reads a record, or returns the problem in the next line. The error is io.EOF at the end.
func (r *rows) next() (record []string, problem *importer.Problem, err error) {
	if r.csv != nil {
		record, err = r.csv.Read()
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			r.line = wrong.StartLine
			return nil, importer.Place{Line: wrong.StartLine}.Problem("at byte %d: %v", wrong.Column, wrong.Err), nil
		}
		if err == nil {
			r.line, _ = r.csv.FieldPos(0)
		}
		return r.checked(record, nil, err)
	}
	for r.lines.Scan() {
		r.line++
		text := strings.TrimSuffix(r.lines.Text(), "\r")
		if r.line == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if record, problem = r.ofLine(text); record != nil || problem != nil {
			return r.checked(record, problem, nil)
		}
	}
	if err := r.lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("line %d: %w", r.line+1, err)
	}
	return nil, nil, io.EOF
}

// checked refuses records with another number of columns. The values are checked where they are used: product names
// may be cut in the middle of a character.
func (r *rows) checked(record []string, problem *importer.Problem, err error) ([]string, *importer.Problem, error) {
	if err == nil && problem == nil && r.width > 0 && len(record) != r.width {
		return nil, importer.Place{Line: r.line}.Problem("has %d columns, not %d", len(record), r.width), nil
	}
	return record, problem, err
}

// ofLine reads a line. For a comment, a total or an empty line it returns neither a record nor a problem.
func (r *rows) ofLine(text string) ([]string, *importer.Problem) {
	t := &r.m.Totals
	switch {
	case strings.TrimSpace(text) == "":
		return nil, nil
	case !r.ended && t.Begins != "" && strings.HasPrefix(text, t.Begins):
		if r.ended = true; len(t.Columns) > 0 {
			r.header = r.split(text)
		}
		return nil, nil
	case r.header != nil:
		r.tableOfTotals(r.split(text))
		return nil, nil
	case r.m.Comment != "" && strings.HasPrefix(text, r.m.Comment):
		r.comment(text)
		return nil, nil
	case r.ended && len(r.m.sums) == 0: // totals that the mapping does not read
		return nil, nil
	case r.ended:
		return nil, importer.Place{Line: r.line}.Problem("is a row after the totals")
	}
	if r.m.Prefix != "" {
		return r.split(text), nil
	}
	c := csv.NewReader(strings.NewReader(text))
	r.configure(c)
	record, err := c.Read()
	if err != nil {
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			err = wrong.Err
		}
		return nil, importer.Place{Line: r.line}.Problem("%v", err)
	}
	return record, nil
}

// split splits a line at its delimiters. With a prefix, a delimiter that no prefix follows belongs to the value.
func (r *rows) split(text string) []string {
	delimiter, prefix := string(r.m.delimiter), r.m.Prefix
	if rest, ok := strings.CutPrefix(text, prefix); ok {
		return strings.Split(rest, delimiter+prefix)
	}
	return strings.Split(text, delimiter) // a header
}

func (r *rows) tableOfTotals(values []string) {
	for i, column := range r.header {
		if name, ok := r.m.Totals.Columns[strings.TrimSpace(column)]; ok && i < len(values) {
			s, _ := parseSum(name)
			r.stated[s] = strings.TrimSpace(values[i])
		}
	}
	r.header = nil
}

func (r *rows) comment(text string) {
	if r.m.period != nil && r.period == nil {
		r.period = r.m.period.match(text)
	}
	for _, p := range r.m.totals {
		for name, value := range p.match(text) {
			if s, ok := parseSum(name); ok {
				r.stated[s] = value
			}
		}
	}
}
