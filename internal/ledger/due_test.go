package ledger_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The scheduler polls every second. The query must read only due holds, even on a connection that planned it when there
// were no holds.
func TestPollingForDueHoldsReadsOnlyDueHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	super := pgtest.Pool(t, db.SuperDSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	pool := must(pg.Open(ctx, db.AllDSN, 1))
	defer pool.Close()
	look := func() []ledger.DueHold {
		t.Helper()
		holds, err := ledger.DueHolds(ctx, pool, 0, ledger.DueHold{}, 500)
		if err != nil {
			t.Fatal(err)
		}
		return holds
	}
	touched := func() int64 { return pgtest.Touched(t, "^ledger_(holds|accounts)$", super, pool) }
	pgtest.StopAutovacuum(t, super)
	exec("analyze")
	for range 10 {
		look()
	}
	for _, sql := range due {
		exec(sql)
	}
	before := touched()
	if holds := look(); len(holds) != 1 || holds[0].Account.Code != "c" {
		t.Fatal(holds)
	}
	if n := touched() - before; n > 50 {
		t.Errorf("%d blocks for one due hold", n)
	}
}

// due is SQL for one account with 20,000 open holds, one of them due.
var due = []string{
	`insert into ledger_assets values (1, 'CNY', 2, '2026-01-01')`,
	`insert into commit_epochs default values`,
	`insert into commit_batches (batch_id, recorded_at, commands, instance)
		select b, '2026-01-01', 1, 'load' from generate_series(1000, 1001) b`,
	`insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, held, next_expiry_at)
		values (1, 1000 << 14, 'c', 'CNY', 2, 'liability', 20000, '2026-01-02')`,
	`insert into ledger_account_details (tenant_id, account_id, created_at, request_id)
		values (1, 1000 << 14, '2026-01-01', 'r')`,
	pgtest.AuditAccounts,
	`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at, created_at,
		principal, request_id)
		select 1, ((1000 + i / 16000)::bigint << 14) + 1 + i % 16000, 'hold ' || i, 1000 << 14, '', 1, 1,
			case i when 1 then timestamptz '2026-01-02' else '2126-01-01' end, '2026-01-01', 'test', 'r'
		from generate_series(1, 20000) i`,
}
