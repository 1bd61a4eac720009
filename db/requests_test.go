package db_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// journalOf fills an empty journal with transfers i = 1, 2, …, n, each with its own request id, 100 a minute.
func journalOf(t *testing.T, n int) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	db.SkipChecks() // the transfers have no entries
	super := connect(t, db.SuperDSN)
	do(t, super, "insert into access_tenants (tenant_id, name) values (1, 'demo')")
	do(t, super, fmt.Sprintf(`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at,
		principal, request_id)
		select 1, (i / 100 << 14) + i %% 100, 'order-' || i, 'transfer', timestamptz '2026-01-01Z' + i / 100 * interval
		'1 min', 'key:1', md5(i::text)
		from generate_series(1, %d) i`, n))
	return db, super
}

func do(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// node is the relevant part of a plan node.
type node struct {
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Index Recheck"`
	Hit     int     `json:"Shared Hit Blocks"`
	Read    int     `json:"Shared Read Blocks"`
}

// explain runs a query, and returns the root node of its plan and the plan's text.
func explain(t *testing.T, conn *pgx.Conn, query string, args ...any) (node, string) {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+query,
		args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan, strings.Join(lines(t, conn, "explain "+query, args...), "\n")
}

func TestRequestsAndTimesAreFoundInALargeJournal(t *testing.T) {
	t.Parallel()
	db, super := journalOf(t, 100_000)
	do(t, super, "vacuum analyze ledger_transfers")
	conn := asAuditor(t, db)
	do(t, conn, "set plan_cache_mode = force_generic_plan") // the worst case of a bound parameter

	if got := lines(t, conn, "select (pg_relation_size('ledger_transfers') > 1500 * 8192 "+
		"and pg_relation_size('ledger_transfers_request_idx') < 400000)::text")[0]; got != "true" {
		t.Errorf("the journal has too few blocks for this test, or the index too many")
	}
	const request = "c4ca4238a0b923820dcc509a6f75849b" // md5 of 1
	for _, c := range []struct {
		rows  int
		query string
		args  []any
	}{
		{1, `select * from audit.requests where tenant = 'demo' and request_id = '` + request + `'`, nil},
		{1, `select * from audit.requests where tenant = 'demo' and what = 'transfer'
			and request_id = '` + request + `'`, nil},
		{0, `select * from audit.requests where tenant = 'demo' and what = 'hold'
			and request_id = '` + request + `'`, nil},
		{0, `select * from audit.requests where tenant = 'demo' and request_id = 'nobody'`, nil},
		{0, `select * from audit.requests where tenant = 'other' and request_id = '` + request + `'`, nil},
		{1, `select * from audit.requests where tenant = $1 and request_id = $2`, []any{"demo", request}},
		{2, `select * from audit.requests where request_id in ('` + request + `', md5('77777'))`, nil},
		{1, `select * from audit.requests where tenant = 'demo'
			and request_id = (select request_id from audit.postings where tenant = 'demo' and biz_no = 'order-50000'
			limit 1)`, nil},
		// Seven more blocks per row, for related rows.
		{100, `select * from audit.postings where tenant = 'demo' and recorded_at >= '2026-01-01 10:00Z'
			and recorded_at < '2026-01-01 10:01Z'`, nil},
	} {
		plan, text := explain(t, conn, c.query, c.args...)
		if int(plan.Rows) != c.rows || plan.Hit+plan.Read > 400+7*c.rows {
			t.Errorf("%s: %v rows, %d blocks\n%s", c.query, plan.Rows, plan.Hit+plan.Read, text)
		}
		t.Logf("%4d blocks: %s", plan.Hit+plan.Read, c.query)
	}
}

// BRIN: a block range is summarised once it is full, not before. Otherwise every insert would rewrite the
// summary, at some 100 µs and 6 kB of WAL per row.
func TestPartialBlockRangesAreNotSummarised(t *testing.T) {
	t.Parallel()
	_, super := journalOf(t, 100)
	do(t, super, "set enable_seqscan = off")
	for _, when := range []string{"at first", "after vacuum"} {
		plan, text := explain(t, super, "select from ledger_transfers where recorded_at > '-infinity' "+
			"and request_id = 'nobody'")
		if plan.Removed != 100 {
			t.Errorf("%s the index excludes %v of 100 rows\n%s", when, 100-plan.Removed, text)
		}
		do(t, super, "vacuum ledger_transfers")
	}
}

var scanned = regexp.MustCompile(` on (?:public\.)?(\w+)`)

// A search for one kind of object must not read the tables of other kinds, which may be large.
func TestARequestOfOneKindIsSearchedInOneTable(t *testing.T) {
	t.Parallel()
	conn := asAuditor(t, pgtest.New(t))
	for what, table := range map[string]string{
		"transfer": "ledger_transfers", "hold": "ledger_holds", "account": "ledger_account_details",
		"key": "commit_keys", "refusal": "commit_keys",
		"token": "token_submit_tokens", "token spent": "token_submit_tokens", "claim": "claim_keys",
		"work settled": "work_records",
		"message":      "inbox_messages", "message changed": "inbox_messages", "lock": "lock_locks",
		"waiter": "lock_waiters", "notification": "notify_messages",
		"notification changed": "notify_events", "code": "notify_codes", "template": "notify_template_versions",
		"endpoint": "notify_endpoints", "machine": "machine_definitions", "move": "machine_history",
		"item": "stock_item_details", "reservation": "stock_reservations",
		"reservation ended": "stock_reservations", "stock change": "stock_changes",
		"order": "order_orders", "coupon": "coupon_coupons", "sale": "sale_sales",
		"payment": "payment_payments", "refund": "payment_refunds", "notice": "payment_notices",
		"flag":          "payment_flags",
		"flag resolved": "payment_flags", "gateway": "payment_gateways",
		"approval requested": "approval_requests", "approval": "approval_requests",
	} {
		plan := strings.Join(lines(t, conn,
			"explain select * from audit.requests where request_id = 'a' and what = '"+what+"'"), "\n")
		var read []string
		for _, m := range scanned.FindAllStringSubmatch(plan, -1) {
			if name := m[1]; name != "access_tenants" && name != "ledger_accounts" &&
				!strings.HasSuffix(name, "_idx") && !strings.HasSuffix(name, "_pkey") {
				read = append(read, name)
			}
		}
		for i, name := range read {
			read[i] = regexp.MustCompile("_[0-9]{6}$").ReplaceAllString(name, "") // a partition
		}
		if read = slices.Compact(read); !slices.Equal(read, []string{table}) {
			t.Errorf("a %s is searched in %v\n%s", what, read, plan)
		}
	}
}

// Every table with request ids is searched, except the unlogged one, which standbys do not have.
func TestAllTablesWithRequestIDsAreSearched(t *testing.T) {
	t.Parallel()
	conn := asAuditor(t, pgtest.New(t))
	plan := strings.Join(lines(t, conn, "explain (verbose) select * from audit.requests where request_id = 'a'"), "\n")
	columns := lines(t, conn, `select concat_ws(' ', relname, relpersistence, attname) from pg_attribute a
		join pg_class c on c.oid = attrelid
		where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
			and attnum > 0 and attname like '%request\_id'`)
	if len(columns) < 15 {
		t.Fatalf("only %v", columns)
	}
	for _, c := range columns {
		f := strings.Fields(c) // table, persistence, column
		found := slices.ContainsFunc(strings.Split(plan, "->"), func(node string) bool {
			return (strings.Contains(node, " on public."+f[0]+" ") ||
				strings.Contains(node, " on public."+f[0]+"_2")) && strings.Contains(node, "."+f[2]+" = 'a'")
		})
		if found != (f[1] == "p") {
			t.Errorf("%s: searched: %v\n%s", c, found, plan)
		}
	}
}
