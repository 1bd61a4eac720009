package pgtest

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/verify"
)

// shownRows is how many rows of each violated check are printed.
const shownRows = 5

// SkipChecks disables the final checks, for a test that violates the invariants on purpose.
func (db *DB) SkipChecks() { db.unchecked = true }

// runChecks runs each file, a SELECT whose rows are violations, and returns a message for each violated check.
func runChecks(ctx context.Context, dsn string, files fs.FS) ([]string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect for the checks: %w", err)
	}
	defer conn.Close(ctx)
	report, err := verify.Whole(ctx, conn, files)
	if err != nil {
		return nil, err
	}
	var messages []string
	shown := map[string]int{}
	for _, v := range report.Violations {
		if shown[v.Check]++; shown[v.Check] > shownRows {
			continue
		}
		if shown[v.Check] == 1 {
			messages = append(messages, fmt.Sprintf("check %s.sql is broken by %d rows:", v.Check,
				report.Found[v.Check]))
		}
		messages[len(messages)-1] += "\n  " + v.Detail()
	}
	return messages, nil
}
