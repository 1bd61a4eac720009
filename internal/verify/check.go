package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// check is one file of db/checks.
type check struct {
	name   string // the file's name without .sql
	rule   string // the file's comment: the invariant
	sql    string
	column string // slices are ranges of this column; empty: the check runs on the whole table
}

// load reads the checks.
func load(files fs.FS) ([]check, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	list := make([]check, 0, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		sql := string(text)
		list = append(list, check{name: strings.TrimSuffix(name, ".sql"), rule: comment(sql), sql: sql})
	}
	return list, nil
}

// loadSliced reads the checks and determines their columns by asking the database.
func loadSliced(ctx context.Context, conn *pgx.Conn, files fs.FS) ([]check, error) {
	list, err := load(files)
	if err != nil {
		return nil, err
	}
	for i := range list {
		c := &list[i]
		described, err := conn.PgConn().Prepare(ctx, "", c.sql, nil)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", c.name, err)
		}
		if f := described.Fields; len(f) > 1 && f[0].Name == "tenant_id" &&
			slices.Contains([]string{"account_id", "transfer_id", "hold_id"}, f[1].Name) {
			c.column = f[1].Name
		}
	}
	return list, nil
}

// comment returns the comment at the beginning of a file.
func comment(sql string) string {
	var words []string
	for line := range strings.Lines(sql) {
		text, ok := strings.CutPrefix(line, "--")
		if !ok {
			break
		}
		words = append(words, strings.Fields(text)...)
	}
	return strings.Join(words, " ")
}

// violations runs a check, whole or sliced, and reports the returned rows in Postgres' text format. A data exception,
// such as text that is not a time, counts as a violation too, and the verification continues.
func (r *run) violations(ctx context.Context, tx pgx.Tx, c check, sql string, args ...any) error {
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			v := Violation{Check: c.name, Rule: c.rule, Fields: fieldsOf(rows)}
			for i, f := range v.Fields {
				if name := r.names[f.Value]; f.Name == "tenant_id" && name != "" {
					v.Fields[i] = Field{Name: "tenant", Value: name}
				}
			}
			r.found(v)
		}
		return rows.Err()
	})
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && strings.HasPrefix(e.Code, dataException):
		r.found(Violation{Check: c.name, Rule: c.rule, Fields: []Field{{Name: "error", Value: e.Message}}})
	case err != nil:
		return fmt.Errorf("check %s: %w", c.name, err)
	}
	return nil
}

// dataException is the SQLSTATE class of values that an expression cannot process.
const dataException = "22"

// found counts a violation, and keeps the first ones of a check.
func (r *run) found(v Violation) {
	if r.report.Found == nil {
		r.report.Found = map[string]int{}
	}
	if r.report.Found[v.Check]++; r.report.Found[v.Check] <= keptViolations {
		r.report.Violations = append(r.report.Violations, v)
	}
}

const (
	expectedSuffix = "_expected"
	null           = "none"
)

// fieldsOf pairs each column with its expected value and omits empty ones.
func fieldsOf(rows pgx.Rows) []Field {
	columns, values := rows.FieldDescriptions(), rows.RawValues()
	text := func(i int) string {
		if values[i] == nil {
			return null
		}
		return string(values[i])
	}
	var fields []Field
	for i, column := range columns {
		if strings.HasSuffix(column.Name, expectedSuffix) {
			continue
		}
		f := Field{Name: column.Name, Value: text(i)}
		for j, other := range columns {
			if other.Name == column.Name+expectedSuffix && text(j) != f.Value {
				f.Wrong, f.Expected = true, text(j)
			}
		}
		if values[i] != nil || f.Wrong {
			fields = append(fields, f)
		}
	}
	return fields
}
