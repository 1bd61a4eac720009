package verify_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// While an account is ahead of the clock, all batches that change it have its time. A check must not read all of them
// for each row that one of them made.
func TestChecksReadFewBatchesAfterALeadOfTheClock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.SuperDSN)
	const claims = 300
	for _, sql := range []string{
		"insert into commit_epochs default values",
		`insert into commit_batches (batch_id, recorded_at, commands, instance)
			select n, '2026-01-01Z', 1, 'bulk' from generate_series(1, 3000) n`,
		`insert into claim_keys (tenant_id, scope, key, claim_id, uses, principal, request_id, claimed_at)
			select 1, 'orders', n, n << 14, 1, 'bulk', 'bulk', '2025-12-31Z'
			from generate_series(1000::bigint, 1299) n`,
		// A server that has used its block of numbers for an hour, while others have gone on.
		`insert into commit_batches (batch_id, recorded_at, commands, instance)
			select (5000 + n)::bigint << 16, '2026-01-02Z', 1, 'bulk' from generate_series(0, 50) n`,
		`insert into commit_batches (batch_id, recorded_at, commands, instance)
			values (4000, '2026-01-03Z', 1, 'late'),
			(1::bigint << 34, '2026-01-03Z', 1, 'ahead')`,
		`insert into claim_keys (tenant_id, scope, key, claim_id, uses, principal, request_id, claimed_at)
			values (1, 'orders', 'late', 4000::bigint << 14, 1, 'bulk', 'bulk', '2026-01-02Z')`,
		`analyze`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	check, err := checks.FS.ReadFile("claim_keys_belong.sql")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // changed nothing
	found, err := tx.Exec(t.Context(), string(check))
	if err != nil {
		t.Fatal(err)
	}
	if found.RowsAffected() != 0 {
		t.Errorf("%d claims do not belong to their batch", found.RowsAffected())
	}
	var read int
	if err := tx.QueryRow(t.Context(), `select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables
		where relname = 'commit_batches'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read < claims || read > 4000+3*claims {
		t.Errorf("the check read %d batches for %d claims", read, claims)
	}
}
