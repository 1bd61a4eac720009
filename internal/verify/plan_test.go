package verify_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// bulkTransfers is the number of transfers that bulk makes, each between two accounts of its own and from a
// hold of its own. Ids of one kind are at most bulkStep apart.
const (
	bulkTransfers = 2000
	bulkStep      = 4
)

// bulk loads consistent books without the engine and without statistics.
func bulk(t *testing.T, db *pgtest.DB) {
	t.Helper()
	conn := connect(t, db.SuperDSN)
	for _, sql := range []string{
		"insert into commit_epochs default values",
		`insert into commit_batches (batch_id, recorded_at, commands, instance) values (1, '2026-01-01Z', 1, 'bulk')`,
		`insert into ledger_assets values (1, 'CNY', 2, '2026-01-01Z')`,
		`insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, balance, version, last_entry_at)
			select 1, 16384 + 4 * n + side, 'bulk:' || n || ':' || side, 'CNY', 2, 'liability', (2 * side - 1) * 100,
			1, '2026-01-01Z'
			from generate_series(0, 1999) n, generate_series(0, 1) side`,
		`insert into ledger_account_details select 1, account_id, '{}', '2026-01-01Z', 'bulk' from ledger_accounts`,
		pgtest.AuditAccounts,
		`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, captured, state, life_ms,
				expires_at, created_at, closed_at, principal, request_id)
			select 1, 16384 + 4 * n + 3, 'hold ' || n, 16384 + 4 * n, '', 100, 100, 'captured', 1, '2026-01-01Z',
				'2026-01-01Z', '2026-01-01Z', 'bulk', 'bulk' from generate_series(0, 1999) n`,
		`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, hold_id, principal,
			request_id)
			select 1, 16384 + 4 * n + 2, 'transfer ' || n, 'capture', '2026-01-01Z', 16384 + 4 * n + 3, 'bulk', 'bulk'
			from generate_series(0, 1999) n`,
		`insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset, amount,
				balance_before, balance_after)
			select 1, account_id, 1, 16384 + 4 * ((account_id - 16384) / 4) + 2, '2026-01-01Z', 0, 'CNY', balance, 0,
			balance
			from ledger_accounts`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// The cost of a slice must depend on its rows, not on the size of the database: its condition must apply to
// every table.
func TestSliceReadsOnlyItsOwnRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	bulk(t, db)
	conn := connect(t, db.SuperDSN)
	statements, columns, err := verify.Sliced(t.Context(), conn, checks.FS)
	if err != nil {
		t.Fatal(err)
	}
	if len(statements) < 12 {
		t.Errorf("only %d checks are sliced", len(statements))
	}
	all := 0.0
	for _, analyze := range []string{"", "analyze"} { // statistics may be old or new
		if _, err := conn.Exec(t.Context(), analyze); err != nil {
			t.Fatal(err)
		}
		for name, sql := range statements {
			rows, tables := explain(t, conn, sql, columns[name])
			if all += rows; rows > 100 || strings.Contains(tables, "Seq Scan") {
				t.Errorf("%s check %s reads %.0f rows for a slice of 10:%s", analyze, name, rows, tables)
			}
		}
	}
	if all < 200 {
		t.Errorf("all slices together read %.0f rows: they are empty", all)
	}
}

// explain runs a check on ten rows in the middle of the id range.
func explain(t *testing.T, conn *pgx.Conn, sql, column string) (rows float64, tables string) {
	t.Helper()
	first := int64(1<<14) + 1000*bulkStep
	last := first + 10*bulkStep - 1
	if column == "account_id" {
		last = first + 5*bulkStep - 1
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // changed nothing
	if _, err := tx.Exec(t.Context(), verify.Settings); err != nil {
		t.Fatal(err)
	}
	var text string
	err = tx.QueryRow(t.Context(), "explain (analyze, format json) "+sql, pgx.QueryExecModeExec, int32(1), first,
		last).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var plan []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	return plan[0].Plan.read()
}

type node struct {
	Type    string  `json:"Node Type"`
	Table   string  `json:"Relation Name"`
	Index   string  `json:"Index Name"`
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Filter"`
	Recheck float64 `json:"Rows Removed by Index Recheck"`
	Loops   float64 `json:"Actual Loops"`
	Plans   []node
}

// read sums the rows read by table scans, including filtered ones.
func (n *node) read() (rows float64, tables string) {
	if n.Table != "" {
		rows = (n.Rows + n.Removed + n.Recheck) * n.Loops
		tables = "\n  " + n.Type + " on " + n.Table + " by " + n.Index
	}
	for i := range n.Plans {
		r, t := n.Plans[i].read()
		rows += r
		tables += t
	}
	return rows, tables
}
