package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

// shownRows of each broken check are printed.
const shownRows = 5

// runChecks runs each file, one SELECT whose rows are violations, and returns a
// message for each that found some.
func runChecks(ctx context.Context, dsn string, files fs.FS) ([]string, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect for the checks: %w", err)
	}
	defer conn.Close(ctx)
	var violations []string
	for _, name := range names {
		sql, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		rows, err := conn.Query(ctx, string(sql))
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", name, err)
		}
		found, shown, err := describeRows(rows)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", name, err)
		}
		if found > 0 {
			violations = append(violations, fmt.Sprintf("check %s is broken by %d rows:%s", name, found, shown))
		}
	}
	return violations, nil
}

func describeRows(rows pgx.Rows) (found int, shown string, err error) {
	defer rows.Close()
	var text strings.Builder
	for rows.Next() {
		if found++; found > shownRows {
			continue
		}
		values, err := rows.Values()
		if err != nil {
			return 0, "", err
		}
		text.WriteString("\n ")
		for i, column := range rows.FieldDescriptions() {
			fmt.Fprintf(&text, " %s=%v", column.Name, values[i])
		}
	}
	return found, text.String(), rows.Err()
}
