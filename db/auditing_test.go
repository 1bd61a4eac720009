package db_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

var block = regexp.MustCompile("(?s)```sql\n(.*?)```")

func TestQueriesOfTheAuditingGuideRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	conn := asAuditor(t, db)
	text, err := os.ReadFile("../docs/auditing.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 10 {
		t.Errorf("only %d queries", len(blocks))
	}
	for _, view := range lines(t, conn, "select 'audit.' || viewname from pg_views where schemaname = 'audit'") {
		if !slices.ContainsFunc(blocks, func(b []string) bool { return strings.Contains(b[1], view) }) {
			t.Errorf("no example of %s", view)
		}
	}
	for _, b := range blocks {
		rows, err := conn.Query(t.Context(), b[1])
		if err != nil {
			t.Errorf("%s%v", b[1], err)
			continue
		}
		n := 0
		for rows.Next() {
			n++
		}
		if rows.Err() != nil || (n == 0) != strings.HasPrefix(b[1], "-- never a row\n") {
			t.Errorf("%s%d rows, error %v", b[1], n, rows.Err())
		}
	}
}

func TestViewsShowNamesAndDecimals(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	conn := asAuditor(t, db)
	for query, want := range map[string]string{
		`select format('%s %s %s %s %s', balance, held, available, min_balance, max_balance) from audit.accounts
			where tenant = 'demo' and account = 'user:1:wallet'`: "56.44 14.99 41.45 0.00 ",
		`select format('%s %s %s', balance, available, min_balance) from audit.accounts
			where tenant = 'demo' and account = 'world'`: "-100.00  ",
		`select string_agg(format('%s %s %s %s %s', entry, biz_no, type, amount, balance), '; ' order by entry)
			from audit.statement
			where tenant = 'demo' and account = 'fees'`: "1 pay-1 purchase 0.05 0.05; 2 keyed-1 transfer 1.00 1.05",
		`select format('%s %s %s %s %s', accounts, debits, credits, difference, held) from audit.trial_balance
			where tenant = 'demo'`: "4 100.00 100.00 0.00 14.99",
		`select string_agg(format('%s %s %s %s', posting, from_account, to_account, amount), '; ' order by posting)
			from audit.postings
			where tenant = 'demo' and
			biz_no = 'pay-1'`: "0 user:1:wallet user:2:wallet 30.50; 1 user:1:wallet fees 0.05",
		`select reverses from audit.postings where tenant = 'demo'
			and biz_no = 'undo-2'`: "pay-2",
		`select hold from audit.postings where tenant = 'demo'
			and biz_no = 'capture-1'`: "hold-1",
		`select string_agg(format('%s %s %s %s %s %s %s', tenant, biz_no, account, amount, captured, remaining, due),
			'; ') from audit.open_holds`: "demo hold-1 user:1:wallet 20.00 5.01 14.99 f",
		`select string_agg(format('%s %s %s', what, name, detail), '; ' order by what) from audit.requests
			where request_id = 'req-keyed-1'`: "key key-1 ledger.transfer; transfer keyed-1 transfer",
		`select string_agg(format('%s %s %s', what, name, detail), '; ' order by what) from audit.requests
			where request_id = 'req-hold-1'`: "hold hold-1 held",
		`select string_agg(name, ' ' order by name) from audit.requests where request_id = 'req-accounts'
			and tenant = 'demo' and what = 'account'`: "fees user:1:wallet user:2:wallet world",
		`select string_agg(format('%s %s %s', what, name = sha256, detail), '; ' order by sha256 = name desc, state)
			from audit.requests r join audit.submit_tokens s
			on r.name = s.sha256 where r.request_id = 'req-form'`: "token t order; token t order",
		`select string_agg(format('%s %s %s %s', what, s.state, detail, r.principal), '; ') from audit.requests r
			join audit.submit_tokens s on r.name = s.sha256
			where r.request_id = 'req-submit'`: "token spent spent idempotency.spend_token tester",
		`select string_agg(format('%s %s %s %s', what, name, detail, id = c.claim_id), '; ' order by name)
			from audit.requests r join audit.claims c on c.key = r.name
			where r.request_id = 'req-claim'`: "claim 6:user:1,9:product-7, purchase t; claim page-1 page t",
		`select string_agg(format('%s %s %s %s %s', request_id, what, name, detail, principal), '; ' order by at)
			from audit.requests where request_id like 'req-work%'`: "" +
			"req-work work click-1 shop/orders tester; req-work-end work settled click-1 shop/orders: done tester; " +
			"req-work-first work click-2 shop/orders ; req-work-again work click-2 shop/orders tester; req-work-3 " +
			"work click-3 shop/orders tester; req-work-lost work settled click-3 shop/orders: parked tester",
		`select format('%s %s %s %s %s %s', available, reserved, sold, stocked, segments, changes > 0) from audit.stock
			where tenant = 'demo' and item = 'sku-1'`: "18 2 7 27 3 t",
		`select string_agg(format('%s %s %s %s', reservation_no, quantity, unsold, state), '; ' order by reservation_no)
			from audit.reservations where tenant = 'demo' and item = 'sku-1'`: "" +
			"order-1/1 2 0 reserved; order-2/1 3 1 sold; order-3/1 12 0 cancelled; order-4/1 5 0 sold",
		`select string_agg(format('%s %s %s %s %s', request_id, what, name, detail, principal), '; ' order by at, what)
			from audit.requests
			where request_id in ('req-item', 'req-restock', 'req-reserve-2', 'req-confirm', 'req-unsell',
			'req-deduct')`: "" +
			"req-item item sku-1  tester; req-restock stock change sku-1 delivery-1 restock tester; " +
			"req-reserve-2 reservation sku-1 order-2/1 sold tester; req-confirm reservation ended sku-1 order-2/1 " +
			"sold tester; req-unsell stock change sku-1 return-1 unsell tester; req-deduct reservation sku-1 " +
			"order-4/1 sold tester",
		`select string_agg(format('%s %s %s %s %s', request_id, what, name, detail, id is not null), '; '
			order by at, what) from audit.requests where request_id like 'req-message%'`: "" +
			"req-message message orders-1 points t; req-message-2 message orders-2 points t; " +
			"req-message-dies message changed orders-2 points: dead t",
		`select string_agg(format('%s %s %s %s', what, name, detail, principal), '; ') from audit.requests
			where request_id = 'req-lock'`: "lock reports worker-1 tester",
		`select string_agg(format('%s %s %s %s', what, name, detail, principal), '; ' order by at) from audit.requests
			where request_id in ('req-machine', 'req-ticket', 'req-close')
			and what <> 'setting'`: "machine ticket@1  tester; move 7 ticket: open tester; move 7 ticket: " +
			"closed tester",
		`select format('%s %s %s %s', what, name, detail, principal) from audit.requests
			where request_id = 'req-machine' and what = 'setting'`: "setting ticket machine tester",
		`select format('%s %s %s %s %s %s', kind, name, before, after, principal, request_id) from audit.changes
			where tenant = 'demo' and
			kind = 'gateway'`: `gateway card  {"payee": "fees", "clearing": "world"} tester req-gateway`,
		`select string_agg(format('%s %s %s %s %s %s', operation, state, requested_by, decided_by,
			details ->> 'account', note), '; ' order by approval_id)
			from audit.approvals`: "ledger.update_account approved tester boss fees ; ledger.reverse rejected tester " +
			"boss fees no; ledger.close_account open tester  fees ",
		`select string_agg(format('%s %s %s', what, detail, principal), '; ' order by what, detail) from audit.requests
			where request_id in ('req-wish', 'req-reject') or request_id like 'approval.%'`: "" +
			"approval ledger.reverse: rejected boss; approval ledger.update_account: approved boss; " +
			"approval requested ledger.close_account tester; approval requested ledger.reverse tester; " +
			"approval requested ledger.update_account tester; setting account tester",
		`select format('%s %s %s %s', c.name, c.principal, c.approved_by, a.reason) from audit.changes c
			join audit.approvals a on a.tenant = c.tenant and a.decided_request_id = c.request_id
			where c.approved_by is not null`: "fees CNY tester boss month end",
		`select format('%s %s %s %s %s %s %s', machine, key, state, came_from, revision, cause, owner)
			from audit.instances where machine = 'ticket'`: "ticket 7 closed open 2 answer-1 user:1",
		`select string_agg(format('%s %s %s %s %s', revision, from_state, to_state, cause, reason), '; '
			order by revision)
			from audit.machine_history where tenant = 'demo' and machine = 'ticket'
			and key = '7'`: "1  open creation ; 2 open closed answer-1 answered",
		`select string_agg(format('%s %s %s %s %s %s %s', order_no, subject, state, cause, revision, amount, machine),
			'; ' order by order_no)
			from audit.orders where tenant = 'demo'`: "" +
			"grab-1 user:9 pending creation 1 9.90 simple_order; grab-2 user:8 cancelled buyer 2 9.90 simple_order; " +
			"order-7 user:1 paid payment-1 2 9.90 order; order-8 user:1 cancelled buyer 2 9.90 order; " +
			"order-9 user:1 awaiting_payment creation 1 9.90 order",
		`select string_agg(format('%s %s %s', what, regexp_replace(name, '^\d{6,}$', 'ID'), detail), '; '
			order by at, n, name) from audit.order_story where tenant = 'demo' and order_no = 'order-8'`: "" +
			"move awaiting_payment creation: 9.90 CNY; reservation sku-2 order-8/1 2 reserved; purchase [\"user:1\", " +
			"\"sku-2\"] claimed for 01:00:00; move cancelled buyer: too late; reservation ended sku-2 order-8/1 2 " +
			"cancelled; purchase ended [\"user:1\", \"sku-2\"] given back; message ID webhook order.cancelled shop",
		`select string_agg(format('%s %s %s', what, regexp_replace(name, '^\d{6,}$', 'ID'), detail), '; '
			order by at, n, name) from audit.order_story where tenant = 'other' and order_no = 'order-1'`: "" +
			"move awaiting_payment creation: 9.90 CNY; hold order-1/hold 0.40 CNY held; move cancelled buyer; " +
			"hold ended order-1/hold 0.40 CNY released",
		`select string_agg(format('%s %s %s', what, regexp_replace(name, '^\d{6,}$', 'ID'), detail), '; '
			order by at, n, name) from audit.order_story where tenant = 'demo' and order_no = 'order-7'`: "" +
			"move awaiting_payment creation: 9.90 CNY; reservation sku-2 order-7/1 2 reserved; " +
			"coupon SPRING-1 locked; move paid payment-1; reservation ended sku-2 order-7/1 2 sold; " +
			"coupon SPRING-1 used; message ID webhook order.paid shop",
		`select string_agg(format('%s %s %s %s %s', code, campaign, state, owner, cause), '; ' order by code)
			from audit.coupons`: "" +
			"SPRING-1 spring used user:1 order-7; SPRING-2 spring unclaimed  creation",
		`select format('%s %s %s %s %s %s', sale, item, available, reserved, sold, open)
			from audit.sales`: "autumn sku-2 5 3 2 t",
		`select string_agg(format('%s %s %s %s', what, name, detail, principal), '; ' order by at, what, name)
			from audit.requests
			where request_id in ('req-order-9', 'req-coupons', 'req-sale')
			and what in ('order', 'coupon', 'sale')`: "" +
			"coupon SPRING-1 spring tester; coupon SPRING-2 spring tester; order order-9 user:1 tester; " +
			"sale autumn sku-2 tester",
		`select string_agg(concat_ws(' ', what, name, detail), '; ' order by at, n, name, detail)
			from audit.order_story where tenant = 'demo' and order_no = 'order-9'`: "" +
			"move awaiting_payment creation: 9.90 CNY; reservation sku-2 order-9/1 2 reserved; " +
			"payment card-1 created creation; notice card-1 paid flagged: 9.00 was paid, and 9.90 is due; payment " +
			"card-1 suspended tx-1; flag card-1 wrong_amount 9.00 CNY; flag resolved card-1 refund: too little; " +
			"refund refund-1 9.00 CNY requested creation; payment card-2 created creation",
		`select string_agg(format('%s %s %s %s %s', out_trade_no, state, amount, refunding, due_call), '; '
			order by payment_id) from audit.payments`: "" +
			"card-1 suspended 9.90 9.00 ; card-2 created 9.90  submit",
		`select string_agg(format('%s %s %s %s', what, name, detail, principal), '; ' order by at, what)
			from audit.requests
			where request_id in ('req-gateway', 'req-card-2', 'req-notice-n-1', 'req-resolve')
			and what not in ('move', 'machine', 'notification', 'setting')`: "" +
			"gateway card world tester; flag card-1 wrong_amount ; notice card-1 paid flagged ; " +
			"flag resolved card-1 refund tester; refund refund-1 card-1 tester; payment card-2 order-9 tester",
		`select string_agg(format('%s %s %s %s', key, refused, reason, expired), '; ' order by key)
			from audit.request_keys`: "key-1 f  f; key-2 t INSUFFICIENT_FUNDS f",
		`select format('%s %s %s %s %s', tenant, operation, keys, refused, expired)
			from audit.request_key_usage`: "demo ledger.transfer 2 1 0",
		`select (count(*) = sum(commands) and not bool_or(void))::text from audit.batches`: "true",
	} {
		if got := strings.Join(lines(t, conn, query), "\n"); got != want {
			t.Errorf("%s\ngives %q, not %q", query, got, want)
		}
	}
}

// A buyer whose order was cancelled holds no unit of the sale.
func TestUnitsOfBuyersInTheAuditingGuide(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	for _, b := range block.FindAllStringSubmatch(read(t, "../docs/auditing.md"), -1) {
		if strings.Contains(b[1], "group by o.subject") {
			query := "select concat_ws(' ', x) from (" + strings.TrimSuffix(b[1], ";\n") + ") x"
			if got := lines(t, asAuditor(t, db), query); !slices.Equal(got, []string{"(user:9,1)"}) {
				t.Errorf("%sgives %q", b[1], got)
			}
			return
		}
	}
	t.Error("the guide has no query of the units that buyers hold")
}

func TestDecimalsAreExact(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).SuperDSN)
	nines := strings.Repeat("9", 38)
	for query, want := range map[string]string{
		"1230, 2":                    "12.30",
		"-5, 2":                      "-0.05",
		"0, 2":                       "0.00",
		"7, 0":                       "7",
		"1, 18":                      "0.000000000000000001",
		nines + ", 18":               nines[:20] + "." + nines[:18],
		"-" + nines + ", 0":          "-" + nines,
		"10000000000000000000000, 8": "100000000000000.00000000",
	} {
		if got := lines(t, conn, "select audit.decimal("+query+")::text")[0]; got != want {
			t.Errorf("audit.decimal(%s) is %s, not %s", query, got, want)
		}
	}
}
