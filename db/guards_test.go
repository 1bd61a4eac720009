// Package db_test tests the schema's guarantees: privileges, constraints, and that every object has a
// conventional name and a comment.
package db_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// SQLSTATEs; LD00x are ledgerd's own.
const (
	noPrivilege   = "42501"
	checkViolated = "23514"
	uniqueTaken   = "23505"
	appendOnly    = "LD002"
	unbalanced    = "LD003"
)

var journal = []string{"ledger_entries", "ledger_transfers", "commit_batches"}

// changes returns statements that change a journal table, some of them without effect: all must be refused.
func changes(table string) []string {
	column := map[string]string{"ledger_entries": "amount", "ledger_transfers": "metadata",
		"commit_batches": "commands"}[table]
	return []string{
		fmt.Sprintf("update %s set %s = %s", table, column, column),
		"delete from " + table,
		"delete from " + table + " where false",
		"truncate " + table,
	}
}

func TestServiceMayNotTouchTheJournalOrItsGuards(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	conn := connect(t, db.AllDSN)
	for _, table := range journal {
		for _, sql := range append(changes(table),
			"alter table "+table+" disable trigger all",
			"alter table "+table+" disable trigger "+table+"_append_only",
			"drop trigger "+table+"_append_only on "+table,
			"alter table "+table+" owner to current_user",
			"drop table "+table) {
			refused(t, conn, sql, noPrivilege, "")
		}
	}
	for _, sql := range []string{
		"set session_replication_role = replica",
		"set role ledgerd_owner",
		"create or replace function public.commit_append_only() returns trigger language plpgsql as 'begin " +
			"return null; end'",
		"create table public.mine ()",
		"create schema mine",
		"delete from ledger_accounts",
		"delete from ledger_holds",
		"delete from ledger_assets",
		"truncate ledger_holds",
		"truncate commit_keys",
		"update ledger_accounts set code = code",
		"update ledger_accounts set asset = asset",
		"update ledger_accounts set scale = scale",
		"update ledger_assets set scale = scale",
		"update ledger_holds set amount = amount",
		"update ledger_holds set account_id = account_id",
		"update ledger_account_details set request_id = request_id",
		"truncate work_records",
		"update work_records set key = key",
		"select setval('work_fence_seq', 1)",
		"update access_api_keys set secret_hash = secret_hash",
		"update access_tenants set name = name",
		"select * from audit.accounts",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
}

func TestJournalRefusesChangesOfASuperuser(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	conn := connect(t, db.SuperDSN)
	for _, table := range journal {
		for _, sql := range changes(table) {
			refused(t, conn, sql, appendOnly, "")
		}
		refused(t, conn, "truncate "+table+" cascade", appendOnly, "")
	}
}

func TestUnbalancedEntriesAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.AllDSN)
	const insert = `insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting,
		asset, amount, balance_before, balance_after) select 1, a, 1, t, now(), 0, asset, n, 0, n
		from (values %s) v (a, t, asset, n)`
	for name, values := range map[string]string{
		"one side":                      "(1, 1, 'CNY', 5)",
		"two amounts":                   "(1, 1, 'CNY', 5), (2, 1, 'CNY', -4)",
		"two assets":                    "(1, 1, 'CNY', 5), (2, 1, 'USD', -5)",
		"two transfers":                 "(1, 1, 'CNY', 5), (2, 2, 'CNY', -5)",
		"one of two transfers, the 2nd": "(1, 1, 'CNY', 5), (2, 1, 'CNY', -5), (3, 2, 'CNY', 5), (4, 2, 'CNY', -6)",
	} {
		t.Run(name, func(t *testing.T) { refused(t, conn, fmt.Sprintf(insert, values), unbalanced, "") })
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), fmt.Sprintf(insert, "(1, 1, 'CNY', 5), (2, 1, 'CNY', -5)")); err != nil {
		t.Errorf("balanced entries: %v", err)
	}
	_ = tx.Rollback(t.Context())
}

func TestConstraintsRefuseByName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	conn := connect(t, db.SuperDSN)
	const fees = " where tenant_id = 1 and code = 'fees'"
	const hold = " where tenant_id = 1 and biz_no = 'hold-1'"
	const entry = `insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset,
		amount, balance_before, balance_after) values `
	const transfer = `insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, reverses_id,
		metadata, principal, request_id) values `
	const work = `insert into work_records (tenant_id, scope, key, state, fence, attempt, lease_ms, life_ms,
		lease_expires_at, park_lapsed, principal, request_id, first_request_id, created_at, begun_at, expires_at)
		select t, s, k, '%s', f, a, 1, l, u, p, 'p', 'r', 'r', now(), now(), e from (values `
	const oneWork = "(1, 's', 'k', 1, 2, now(), 3, false, now())) v (t, s, k, f, a, u, l, p, e)"
	const account = "insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind) values "
	do(t, conn, fmt.Sprintf(work, "running")+oneWork)
	for constraint, sql := range map[string]string{
		"work_records_pkey":        fmt.Sprintf(work, "running") + oneWork,
		"work_records_scope_check": fmt.Sprintf(work, "running") + strings.Replace(oneWork, "'s'", "''", 1),
		"work_records_key_check": fmt.Sprintf(work, "running") +
			strings.Replace(oneWork, "'k'", "repeat('k', 513)", 1),
		"work_records_fence_check": fmt.Sprintf(work, "running") +
			strings.Replace(strings.Replace(oneWork, "1, 2", "0, 2", 1), "'k'", "'l'", 1),
		"work_records_attempt_check":     "update work_records set attempt = 0",
		"work_records_fingerprint_check": "update work_records set fingerprint = repeat('x', 65)::bytea",
		"work_records_state_check": "update work_records set state = 'gone', lease_expires_at = null, " +
			"settled_at = now(), settled_by = 'p', settled_request_id = 'r' where key = 'k'",
		"work_records_lease_check": "update work_records set lease_expires_at = null",
		"work_records_life_check":  "update work_records set life_ms = 0",
		"work_records_settled_check": "update work_records set settled_at = now(), settled_by = 'p', " +
			"settled_request_id = 'r'",
		"work_records_answer_check": "update work_records set state = 'done', lease_expires_at = null, " +
			"settled_at = now(), settled_by = 'p', settled_request_id = 'r'",
		"work_records_expires_check": "update work_records set expires_at = null",
		"work_records_body_check": `update work_records set state = 'done', lease_expires_at = null, settled_at = now(),
			settled_by = 'p', settled_request_id = 'r', answer_hash = 'x', status = 1, headers = '[]', body = 'x',
			body_bytes = 1048577`,
		"work_records_headers_check": `update work_records set state = 'done', lease_expires_at = null,
			settled_at = now(), settled_by = 'p', settled_request_id = 'r', answer_hash = 'x', status = 1,
			headers = jsonb_build_array(repeat('x', 524288)), body = 'x', body_bytes = 1`,
		"ledger_accounts_min_balance_check": "update ledger_accounts set balance = -1" + fees,
		"ledger_accounts_max_balance_check": "update ledger_accounts set max_balance = balance - 1" + fees,
		"ledger_accounts_held_check":        "update ledger_accounts set held = -1" + fees,
		"ledger_accounts_closed_check":      "update ledger_accounts set state = 'closed'" + fees,
		"ledger_accounts_state_check":       "update ledger_accounts set state = 'shut'" + fees,
		"ledger_accounts_version_check":     "update ledger_accounts set version = -1" + fees,
		"ledger_accounts_kind_check":        account + "(1, 1, 'x', 'CNY', 2, 'money')",
		"ledger_accounts_code_check":        account + "(1, 1, '', 'CNY', 2, 'asset')",
		"ledger_accounts_code_key":          account + "(1, 1, 'fees', 'CNY', 2, 'asset')",
		"ledger_assets_pkey":                "insert into ledger_assets values (1, 'CNY', 3, now())",
		"ledger_assets_scale_check":         "insert into ledger_assets values (1, 'X', 19, now())",
		"ledger_assets_code_check":          "insert into ledger_assets values (1, '', 2, now())",
		"ledger_entries_amount_check":       entry + "(1, 1, 1, 1, now(), 0, 'CNY', 0, 0, 0)",
		"ledger_entries_sum_check":          entry + "(1, 1, 1, 1, now(), 0, 'CNY', 1, 0, 2)",
		"ledger_entries_version_check":      entry + "(1, 1, 0, 1, now(), 0, 'CNY', 1, 0, 1)",
		"ledger_entries_pkey": entry +
			"(1, 1, 1, 1, now(), 0, 'CNY', 1, 0, 1), (1, 1, 1, 1, now(), 0, 'CNY', -1, 1, 0)",
		"ledger_transfers_biz_no_key": transfer + "(1, 1, 'fund-1', 'x', now(), null, null, 'p', 'r')",
		"ledger_transfers_reverses_key": transfer +
			"(1, 1, 'a', 'x', now(), 9, null, 'p', 'r'), (1, 2, 'b', 'x', now(), 9, null, 'p', 'r')",
		"ledger_transfers_biz_no_check": transfer + "(1, 1, '', 'x', now(), null, null, 'p', 'r')",
		"ledger_transfers_type_check":   transfer + "(1, 1, 'a', '', now(), null, null, 'p', 'r')",
		"ledger_transfers_metadata_check": transfer +
			"(1, 1, 'a', 'x', now(), null, jsonb_build_object('k', repeat('x', 131072)), 'p', 'r')",
		"ledger_holds_captured_check": "update ledger_holds set captured = amount + 1" + hold,
		"ledger_holds_closed_check":   "update ledger_holds set state = 'released'" + hold,
		"ledger_holds_state_check":    "update ledger_holds set state = 'gone', closed_at = now()" + hold,
		"ledger_holds_amount_check":   "update ledger_holds set amount = 0, captured = 0" + hold,
		"ledger_holds_life_ms_check":  "update ledger_holds set life_ms = 0" + hold,
		"ledger_holds_biz_no_key":     "update ledger_holds set biz_no = 'hold-2'" + hold,
		"ledger_holds_biz_no_check":   "update ledger_holds set biz_no = ''" + hold,
	} {
		state := checkViolated
		if !strings.HasSuffix(constraint, "_check") {
			state = uniqueTaken
		}
		refused(t, conn, sql, state, constraint)
	}
}

// refused runs a statement in a transaction that is rolled back, and expects an error.
func refused(t *testing.T, conn *pgx.Conn, sql, state, constraint string) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // roll back in any case
	_, err = tx.Exec(t.Context(), sql)
	var e *pgconn.PgError
	switch {
	case err == nil:
		t.Errorf("%s: is allowed", sql)
	case !errors.As(err, &e) || e.Code != state || e.ConstraintName != constraint:
		t.Errorf("%s: want %s %s, got %v (constraint %q)", sql, state, constraint, err, e.ConstraintName)
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// lines runs a query of one text column.
func lines(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}
