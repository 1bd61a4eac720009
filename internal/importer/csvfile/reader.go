package csvfile

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/importer"
)

// reader reads movements one at a time.
type reader struct {
	csv    *csv.Reader
	row    rowReader
	sorted bool      // the file must be sorted by day
	last   time.Time // day of the previous movement
}

// newReader reads the header, if the file has one, and checks the mapping's columns against it.
func newReader(in io.Reader, m *Mapping) (*reader, error) {
	r := &reader{csv: csv.NewReader(in), row: rowReader{m: m, index: map[string]int{}}, sorted: m.balance != nil}
	r.csv.Comma, r.csv.ReuseRecord = m.delimiter, true
	columns := m.columns
	if columns == nil {
		header, err := r.csv.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the file is empty: it has no header")
		case err != nil:
			return nil, fmt.Errorf("the header: %w", err)
		}
		for i, name := range header {
			if i == 0 {
				name = strings.TrimPrefix(name, "\ufeff")
			}
			columns = append(columns, strings.TrimSpace(name))
		}
		c := checker{}
		c.checkColumns(m, columns)
		if err := errors.Join(c.problems...); err != nil {
			return nil, err
		}
	}
	r.csv.FieldsPerRecord = len(columns)
	for i, name := range columns {
		r.index(name, i)
	}
	return r, nil
}

func (r *reader) index(name string, i int) { r.row.index[name] = i }

// next reads a movement, or returns the problem in the next row. The error is io.EOF at the end.
func (r *reader) next() (*movement, *importer.Problem, error) {
	record, err := r.csv.Read()
	var wrong *csv.ParseError
	switch {
	case errors.As(err, &wrong) && errors.Is(err, csv.ErrFieldCount):
		return nil, importer.Place{Line: wrong.StartLine}.Problem("has %d columns, not %d", len(record),
			r.csv.FieldsPerRecord), nil
	case errors.As(err, &wrong) && wrong.Line > wrong.StartLine:
		return nil, importer.Place{Line: wrong.StartLine}.Problem("a quote is not closed properly before line %d: "+
			"the rows up to there cannot be read (%v)", wrong.Line, wrong.Err), nil
	case errors.As(err, &wrong):
		return nil, importer.Place{Line: wrong.StartLine}.Problem("at byte %d: %v", wrong.Column, wrong.Err), nil
	case err != nil:
		return nil, nil, err
	}
	r.row.record = record
	r.row.line, _ = r.csv.FieldPos(0)
	v, problem := r.row.read()
	if problem == nil && r.sorted {
		day := dayOf(v.at)
		if day.Before(r.last) {
			problem = importer.Place{Line: v.line, Column: r.row.m.dateColumn}.Problem(
				"%s is before the date of the row before: to compare balances the file must be sorted by date", v.date)
		} else {
			r.last = day
		}
	}
	return v, problem, nil
}

func dayOf(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}
