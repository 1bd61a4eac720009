package ledger_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The scheduler asks every second: of the holds whose time is still to come it must read none.
func TestLookingForDueHoldsReadsNoOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	super := pgtest.Pool(t, db.SuperDSN)
	b := &blocks{}
	config := must(pgxpool.ParseConfig(db.AppDSN))
	config.MaxConns = 1
	config.ConnConfig.Tracer = b
	pool := must(pgxpool.NewWithConfig(ctx, config))
	defer pool.Close()
	for _, sql := range due {
		if _, err := super.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	accounts, err := ledger.DueAccounts(ctx, pool, 500)
	if err != nil || len(accounts) != 1 || accounts[0].Code != "c" {
		t.Fatal(accounts, err)
	}
	if b.touched > 50 {
		t.Errorf("%d blocks for one hold that is due: %s", b.touched, b.plans)
	}
}

// due is one account with 20,000 open holds, of which one is due.
var due = []string{
	`insert into ledger_assets values (1, 'CNY', 2, '2026-01-01')`,
	`insert into commit_batches (batch_id, committed_at, commands, instance)
		select b, '2026-01-01', 1, 'load' from generate_series(1000, 1001) b`,
	`insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, held, next_lapse_at)
		values (1, 1000 << 14, 'c', 'CNY', 2, 'liability', 20000, '2026-01-02')`,
	`insert into ledger_account_details (tenant_id, account_id, created_at, request_id) values (1, 1000 << 14, '2026-01-01', 'r')`,
	`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at, created_at, principal, request_id)
		select 1, ((1000 + i / 16000)::bigint << 14) + 1 + i % 16000, 'hold ' || i, 1000 << 14, '', 1, 1,
			case i when 1 then timestamptz '2026-01-02' else '2126-01-01' end, '2026-01-01', 'test', 'r'
		from generate_series(1, 20000) i`,
}
