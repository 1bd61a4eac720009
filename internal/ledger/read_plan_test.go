package ledger_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// load inserts 100,000 accounts user:<i>:wallet, each funded by the world in its own transfer in batches of
// 1,000, and 20,000 holds of user:1:wallet, 100 of them open. Statistics stay those of empty tables, the worst
// case for plans.
var load = []string{
	`analyze`,
	`create temporary table made as
		select i, (1000 + i / 1000) as batch, ((1000 + i / 1000)::bigint << 14) + 1 + i % 1000 as id,
			timestamptz '2026-01-01' + i / 1000 * interval '1 minute' as at
		from generate_series(1, 100000) i`,
	`insert into commit_epochs default values`,
	`insert into commit_batches (batch_id, recorded_at, commands, instance)
		select distinct batch, at, 1, 'load' from made`,
	`insert into ledger_assets values (1, 'CNY', 2, '2026-01-01')`,
	`insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, balance, held, version,
		last_entry_at, next_expiry_at)
		select 1, id + 4096, 'user:' || i || ':wallet', 'CNY', 2, 'liability', 1000, case i when 1 then 100 else 0 end,
			1, at, case i when 1 then timestamptz '2027-01-01' end from made
		union all
		select 1, (1000::bigint << 14) + 16000, 'world', 'CNY', 2, 'equity', -1000 * 100000, 0, 100000, max(at), null
		from made`,
	`insert into ledger_account_details (tenant_id, account_id, created_at, request_id)
		select a.tenant_id, a.account_id, b.recorded_at, 'r' from ledger_accounts a
		join commit_batches b on b.batch_id = a.account_id >> 14`,
	pgtest.AuditAccounts,
	`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
		select 1, id, 'fund ' || i, case i % 1000 when 0 then 'rare' else 'fund' end, at, 'test', 'r' from made`,
	`insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset, amount,
		balance_before, balance_after)
		select 1, (1000::bigint << 14) + 16000, i, id, at, 0, 'CNY', -1000, -1000 * (i - 1), -1000 * i from made
		union all
		select 1, id + 4096, 1, id, at, 0, 'CNY', 1000, 0, 1000 from made`,
	`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, state, life_ms, expires_at,
		created_at, closed_at, principal, request_id)
		select 1, id + 8192, 'hold ' || i, (1000::bigint << 14) + 2 + 4096, '', 1, case i % 200 when 0 then 'held' else
			'released' end, 1, '2027-01-01', at, case i % 200 when 0 then null else at end, 'test', 'r'
		from made where i <= 20000`,
}

// blocks is a tracer that explains every statement and adds up the blocks it touches.
type blocks struct {
	explaining bool
	touched    int
	plans      []string
}

func (b *blocks) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if b.explaining || !strings.Contains(d.SQL, "select") {
		return ctx
	}
	b.explaining = true
	defer func() { b.explaining = false }()
	var text string
	if err := conn.QueryRow(ctx, "explain (analyze, buffers, format json) "+d.SQL, d.Args...).Scan(&text); err != nil {
		b.plans = append(b.plans, err.Error())
		b.touched += 1 << 30
		return ctx
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		panic(err)
	}
	b.touched += plan[0].Plan.Hit + plan[0].Plan.Read
	b.plans = append(b.plans, text)
	return ctx
}

func (b *blocks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// tracedReader is a Reader with that tracer.
func tracedReader(t *testing.T, db *pgtest.DB) (*ledger.Reader, *blocks) {
	t.Helper()
	b := &blocks{}
	config := must(pgxpool.ParseConfig(db.AllDSN))
	config.MaxConns = 1
	config.ConnConfig.Tracer = b
	config.AfterConnect = func(_ context.Context, c *pgx.Conn) error { amount.Register(c.TypeMap()); return nil }
	pool := must(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(pool.Close)
	return ledger.NewReader(pool), b
}

func TestReadTouchesFewBlocksOfLargeTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	super := must(pgx.Connect(ctx, db.SuperDSN))
	for _, sql := range load {
		if _, err := super.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	waitUntilSettled(t, super)
	if err := super.Close(ctx); err != nil {
		t.Fatal(err)
	}
	r, b := tracedReader(t, db)

	day := time.Date(2026, 1, 1, 0, 50, 0, 0, time.UTC)
	hundred := ledger.Page{}
	var transfer *ledger.Transfer
	var next string
	// Limits include the rows found, at some blocks per row; a full table has over 1,000 blocks.
	for _, c := range []struct {
		name   string
		blocks int
		rows   int
		read   func() (int, error)
	}{
		{"account", 26, 1, func() (int, error) {
			_, err := r.Account(ctx, 1, "user:77777:wallet", "CNY")
			return 1,
				err
		}},
		{"accounts", 600, 100, func() (int, error) {
			a, n,
				err := r.Accounts(ctx, 1, "", "", hundred)
			next = n
			return len(a), err
		}},
		{"accounts, second page", 600, 100, func() (int, error) {
			a, _, err := r.Accounts(ctx, 1, "", "", ledger.Page{Token: next})
			return len(a), err
		}},
		{"accounts by prefix", 600, 100,
			func() (int, error) { a, _, err := r.Accounts(ctx, 1, "user:**", "", hundred); return len(a), err }},
		{"accounts of one asset by part", 600, 100, func() (int, error) {
			a, _, err := r.Accounts(ctx, 1, "user:*:wallet", "CNY", hundred)
			return len(a), err
		}},
		{"accounts of one user", 20, 1, func() (int, error) {
			a, _,
				err := r.Accounts(ctx, 1, "user:500:*", "", hundred)
			return len(a), err
		}},
		{"one account by pattern", 20, 1, func() (int, error) {
			a, _, err := r.Accounts(ctx, 1, "user:500:wallet", "", hundred)
			return len(a), err
		}},
		{"balance", 10, 1, func() (int, error) { _, err := r.Balance(ctx, 1, "world", "CNY"); return 1, err }},
		{"balance at a recorded time", 200, 1,
			func() (int, error) { _, err := r.BalanceAtRecord(ctx, 1, "world", "CNY", day); return 1, err }},
		{"balance at an effective time", 200, 1,
			func() (int, error) { _, err := r.BalanceAtEffective(ctx, 1, "world", "CNY", day); return 1, err }},
		{"sums of one user", 20, 1, func() (int, error) {
			s, err := r.BalanceSums(ctx, 1, "user:500:*", "")
			return len(s), err
		}},
		{"trial balance of one user", 40, 1, func() (int, error) {
			s, err := r.TrialBalance(ctx, 1, "user:500:*", "", hundred)
			return len(s.Lines), err
		}},
		{"transfer by biz_no", 40, 2, func() (n int, err error) {
			transfer, err = r.Transfer(ctx, 1, 0, "fund 55555")
			return len(transfer.Entries), err
		}},
		{"transfer by id", 40, 2, func() (int, error) {
			got, err := r.Transfer(ctx, 1, transfer.ID, "")
			return len(got.Entries), err
		}},
		{"transfers", 2500, 100, func() (int, error) {
			got, _, err := r.Transfers(ctx, 1, ledger.TransferFilter{}, hundred)
			return len(got), err
		}},
		{"rare transfers", 3500, 50, func() (int, error) {
			got, _, err := r.Transfers(ctx, 1, ledger.TransferFilter{Type: "rare"}, hundred)
			return len(got), err
		}},
		{"transfers of a minute", 3500, 100, func() (int, error) {
			got, _, err := r.Transfers(ctx, 1, ledger.TransferFilter{From: day, Before: day.Add(time.Minute)}, hundred)
			return len(got), err
		}},
		{"statement", 600, 100, func() (int, error) {
			got, _, err := r.Statement(ctx, 1, "world", "CNY", ledger.StatementFilter{}, hundred)
			return len(got), err
		}},
		{"statement from a time", 800, 100, func() (int, error) {
			got, _, err := r.Statement(ctx, 1, "world", "CNY", ledger.StatementFilter{From: day, Ascending: true},
				hundred)
			return len(got), err
		}},
		{"hold", 10, 1, func() (int, error) { _, err := r.Hold(ctx, 1, 0, "hold 7"); return 1, err }},
		{"holds", 500, 100, func() (int, error) {
			got, _, err := r.Holds(ctx, 1, ledger.HoldFilter{}, hundred)
			return len(got), err
		}},
		{"open holds of one", 200, 100, func() (int, error) {
			got, _, err := r.Holds(ctx, 1, ledger.HoldFilter{From: "user:1:wallet", State: ledger.Held}, hundred)
			return len(got), err
		}},
		{"commits, as many as are wanted", 30_000, 1998, func() (n int, err error) {
			got, _, err := r.EntriesAfter(ctx, 1, "0", "", 100)
			for _, c := range got {
				n += len(c.Entries)
			}
			return n, err
		}},
		{"commits of others", 700, 0, func() (int, error) {
			got, _,
				err := r.EntriesAfter(ctx, 2, "0", "", 100)
			return len(got), err
		}},
	} {
		b.touched, b.plans = 0, nil
		rows, err := c.read()
		if err != nil || rows != c.rows || b.touched > c.blocks || b.touched == 0 {
			t.Errorf("%s: %d rows touched %d blocks, not %d, %v\n%s", c.name, rows, b.touched, c.blocks, err,
				strings.Join(b.plans, "\n"))
		}
		t.Logf("%-32s %5d rows %6d blocks", c.name, rows, b.touched)
	}
	pagesTogether(t, "rare transfers", func(p ledger.Page) (int, string, error) {
		got, next, err := r.Transfers(ctx, 1, ledger.TransferFilter{Type: "rare"}, p)
		return len(got), next, err
	})
	pagesTogether(t, "rare entries", func(p ledger.Page) (int, string, error) {
		got, next, err := r.Statement(ctx, 1, "world", "CNY", ledger.StatementFilter{Type: "rare"}, p)
		return len(got), next, err
	})
}

// waitUntilSettled waits until no transaction runs that began before the last commit, such as one of a test in another
// database of the cluster. Watchers see a commit only then.
func waitUntilSettled(t *testing.T, c *pgx.Conn) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for settled := false; !settled; <-tick.C {
		if err := c.QueryRow(t.Context(), `
			select bool_and(xid < pg_snapshot_xmin(pg_current_snapshot()))
			from commit_batches`).Scan(&settled); err != nil {
			t.Fatal(err)
		}
	}
}

// pagesTogether reads a list of 100 rows among 100,000 that no single page scans.
func pagesTogether(t *testing.T, name string, list func(ledger.Page) (int, string, error)) {
	t.Helper()
	rows, pages := 0, 0
	for token := ""; pages == 0 || token != ""; pages++ {
		n, next, err := list(ledger.Page{Token: token})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows += n
		token = next
	}
	if rows != 100 || pages < 2 {
		t.Errorf("%s: %d rows on %d pages", name, rows, pages)
	}
}
