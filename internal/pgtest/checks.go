package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// shownRows is how many rows of each violated check are printed.
const shownRows = 5

// AuditAccounts is SQL that inserts audit events for the accounts that a test has inserted directly.
const AuditAccounts = `insert into audit_events (tenant_id, event_id, kind, name, after, recorded_at, database_role)
	select tenant_id, nextval('audit_event_seq'), 'account', code || ' ' || asset,
		jsonb_build_object('state', state, 'min_balance', min_balance / 10 ^ scale), now(), session_user
	from ledger_accounts`

// SkipChecks disables the final checks, for a test that violates the invariants on purpose.
func (db *DB) SkipChecks() { db.unchecked = true }

// check runs the checks of the tables that have rows, and returns a message for each violated check. Planning all
// checks would take longer than many tests.
func (db *DB) check(ctx context.Context) ([]string, error) {
	conn, err := pgx.Connect(ctx, db.SuperDSN)
	if err != nil {
		return nil, fmt.Errorf("connect for the checks: %w", err)
	}
	defer conn.Close(ctx)
	files, err := ofUsedTables(ctx, conn, checks.FS)
	if err != nil {
		return nil, fmt.Errorf("choose the checks: %w", err)
	}
	return runChecks(ctx, conn, files)
}

// notInName reports whether a character cannot be part of the name of a table.
func notInName(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }

// ofUsedTables returns the files that name a table which has, or had, rows, or a catalog of Postgres.
func ofUsedTables(ctx context.Context, conn *pgx.Conn, files fs.FS) (fs.FS, error) {
	var used []string
	if err := conn.QueryRow(ctx, `select array_agg(coalesce(pg_partition_root(oid),
		oid)::regclass::text) || array['pg_class']
		from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace and pg_relation_size(oid) > 0`).
		Scan(&used); err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	chosen := fstest.MapFS{}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(strings.FieldsFunc(string(text), notInName),
			func(word string) bool { return slices.Contains(used, word) }) {
			chosen[name] = &fstest.MapFile{Data: text}
		}
	}
	return chosen, nil
}

// runChecks runs each file, a SELECT whose rows are violations, and returns a message for each violated check.
func runChecks(ctx context.Context, conn *pgx.Conn, files fs.FS) ([]string, error) {
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
