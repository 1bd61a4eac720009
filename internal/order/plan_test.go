package order_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// kinds are the commands on orders, each on orders of its own.
var kinds = map[string]func(no string) flow.Command{
	"create": func(no string) flow.Command {
		return create("new"+no, func(c *flow.CreateOrder) {
			c.Purchase = &order.Purchase{Parts: []string{no},
				Life: time.Hour}
		})
	},
	"repeat": func(no string) flow.Command { return create("r" + no) },
	"plain":  func(no string) flow.Command { return create("plain"+no, plain) },
	"pay":    func(no string) flow.Command { return pay("p" + no) },
	"cancel": func(no string) flow.Command { return cancel("c" + no) },
	"told": func(no string) flow.Command { // a notice of the order's payment
		s := payment.Received{Notice: gateway.Notice{ID: "n" + no, Kind: gateway.Pending, OutTradeNo: "r" + no},
			Body: []byte("{}")}
		return &flow.ApplyNotice{Caller: caller, NoticeParams: flow.NoticeParams{Gateway: "g", Received: s}}
	},
	"fire": func(no string) flow.Command {
		return flow.Fire(&machine.FireCommand{Caller: caller,
			Key: machine.Key{Tenant: 1, Machine: "order", Key: "f" + no}})
	},
}

// blocks counts the table and index blocks that a call touches, from the statistics, without those of the ledger, which
// has plan tests of its own. The engine discards slow plans; this count does not show whether it has.
func (d *desk) blocks(call func()) int64 {
	d.Helper()
	touched := func() int64 { return pgtest.Touched(d, "^(?!ledger_)", d.super, d.pool) }
	before := touched()
	call()
	return touched() - before
}

// load inserts 4 times 25,000 orders with all of their parts, without ANALYZE. Every thousandth is of bob, and one in a
// hundred of those that are to be fired follows simple_order and awaits its payment; the others were paid.
func (d *desk) load() {
	d.Helper()
	const made = "timestamptz '2026-01-01Z' + interval '1 s' * (i * 4 + n)"
	for _, sql := range []string{
		"insert into commit_batches (batch_id, recorded_at, commands, instance) " +
			"values (1000000000, '2026-01-01Z', 1, 'load')",
		`insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines, payee,
				life_ms, reserve, balance_account, balance_amount, principal, request_id, created_at)
			select 1, k || i, (1000000000::bigint << 14) + i * 4 + n, case when k = 'f'
			and i % 100 = 99 then 'simple_order' else 'order' end,
				case when i % 250 = 7 and n = 2 then 'bob' when k = 'r' then 'ann' else 'u' || i % 1000 end, 'CNY', 2,
				200, '[{"item": "tea", "quantity": 1}]', 'world', 1800000, true, 'ann', 100, 'test', 'r', ` + made + `
			from generate_series(0, 24999) i, unnest(array['r', 'p', 'c', 'f']) with ordinality as u (k, n)`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
				cause, owner, timer_at, timer_to, created_at, changed_at)
			select 1, machine, order_no, order_id, 1, case machine when 'order' then 'awaiting_payment' else 'pending'
				end, '', 1, 'creation', subject, case when order_no ~ '^f.*(00|[27]?50)$' then timestamptz '2026-01-03Z'
				else '2126-01-01Z' end, case machine when 'order' then 'cancelled' else 'expired' end, created_at,
				created_at
			from order_orders where order_id >= 1000000000::bigint << 14`,
		`insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state,
				actor, cause, principal, request_id, recorded_at)
			select tenant_id, instance_id, 1, machine, key, 1, '', state, 'caller', 'creation', 'test', 'r', created_at
			from machine_instances where instance_id >= 1000000000::bigint << 14`,
		`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
				state, ref, life_ms, created_at, expires_at, principal, request_id)
			select 1, 'tea', order_no || '/1', order_id, 1, 0, 0, 'reserved', order_no, 1800000, created_at,
			'2126-01-01Z', 'test', 'r'
			from order_orders where order_id >= 1000000000::bigint << 14`,
		`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at,
			created_at, principal, request_id)
			select 1, order_id, order_no || '/hold', (select account_id from ledger_accounts
			where code = 'ann'), 'world', 100, 1800000,
				'2126-01-01Z', created_at, 'test', 'r' from order_orders where order_id >= 1000000000::bigint << 14`,
		`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
			select 1, order_id, case when order_no ~ '^r' then order_no || '/pay' else order_no end, 'order',
			created_at, 'test', 'r'
			from order_orders where order_id >= 1000000000::bigint << 14`,
		`insert into notify_names (tenant_id, biz_no, message_id, request_hash)
			select 1, order_no || '/message/1', order_id, sha256('') from order_orders
			where order_id >= 1000000000::bigint << 14`,
		`insert into payment_payments (tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset,
				scale, amount, payee, principal, request_id, created_at)
			select 1, order_no, order_id + (1::bigint << 50), order_no, 'g', '', 1, 'CNY', 2, 100, 'world', 'test', 'r',
			created_at
			from order_orders where order_id >= 1000000000::bigint << 14`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
			cause, created_at, changed_at)
			select 1, 'payment', out_trade_no, payment_id, 1, 'submitted', 'created', 2, 'n', created_at, created_at
			from payment_payments where payment_id >= 1::bigint << 50`,
		`update stock_items set available = available - 100000, reserved = reserved + 100000 where item = 'tea'`,
		`update ledger_accounts set held = held + 10000000 where code = 'ann'`,
	} {
		d.exec("begin; set local session_replication_role = replica; " + sql + "; commit")
	}
}

// stories inserts 25,000 more orders, each with everything that audit.order_story has of it: created by request s1, s2
// and so on, paid five minutes later by p1, p2 and so on. The index on request ids is of use only after autovacuum has
// summarized and analyzed the table.
func (d *desk) stories() {
	d.Helper()
	const orders = `from (select i, 's' || i as no, 'p' || i as paid, (2000000000::bigint << 14) + i * 4 as id,
		timestamptz '2025-12-01Z' + interval '1 s' * i as at,
		timestamptz '2025-12-01 00:05Z' + interval '1 s' * i as later from generate_series(0, 24999) i) x`
	for _, sql := range []string{
		`select notify_add_partition('notify_messages', '202512', '2025-12-01', '2026-01-01'),
			notify_add_partition('notify_events', '202512', '2025-12-01', '2026-01-01')`,
		`insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines, payee,
				life_ms, reserve, balance_account, balance_amount, purchase_parts, purchase_life_ms, coupon,
				submit_token, principal, request_id, created_at)
			select 1, no, id, 'order', 'eve', 'CNY', 2, 200, '[{"item": "tea", "quantity": 1}]', 'world', 1800000, true,
				'ann', 100, jsonb_build_array(no), 300000, no, sha256(no::bytea), 'test', no, at ` + orders,
		`insert into token_submit_tokens (tenant_id, token_hash, state, purpose, life_ms, survives_refusal, principal,
				request_id, issued_at, expires_at, forget_at, spent_at, spent_by, spent_request_id, operation, result)
			select 1, sha256(no::bytea), 'spent', 'order', 300000, false, 'test', 'r', at, later,
			later + interval '1 s', at, 'test', no, 'order.create_order', '{}' ` + orders,
		`insert into coupon_coupons (tenant_id, code, coupon_id, campaign, expires_at, principal, request_id,
			created_at)
			select 1, no, id + 1, 'spring', '2126-01-01Z', 'test', 'r', at ` + orders,
		`insert into machine_history (tenant_id, instance_id, revision, machine, key, version, from_state, to_state,
				actor, cause, principal, request_id, recorded_at)
			select 1, id, 1, 'order', no, 1, '', 'awaiting_payment', 'caller', 'creation', 'test', no, at ` + orders + `
			union all select 1, id, 2, 'order', no, 1, 'awaiting_payment', 'paid', 'caller', 'pay', 'test', paid,
				later ` + orders + `
			union all select 1, id + 1, 3, 'coupon', no, 1, 'claimed', 'locked', 'flow', no, 'test', no, at ` +
			orders + `
			union all select 1, id + 1, 4, 'coupon', no, 1, 'locked', 'used', 'flow', no, 'test', paid, later ` +
			orders,
		`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
				state, ref, life_ms, created_at, expires_at, closed_at, principal, request_id, closed_request_id)
			select 1, 'tea', no || '/1', id, 1, 1, 0, 'sold', no, 1800000, at, '2126-01-01Z', later, 'test', no,
			paid ` + orders,
		`insert into stock_changes (tenant_id, change_id, item, change_no, kind, quantity, stocked_after,
			reservation_no, reason, changed_at, principal, request_id)
			select 1, id, 'tea', no, 'unsell', 1, 1, no || '/1', '', later, 'test', 'r' ` + orders,
		`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, captured, state, life_ms,
			expires_at, created_at, closed_at, principal, request_id)
			select 1, id, no || '/hold', (select account_id from ledger_accounts where code = 'ann'), 'world', 100, 100,
				'captured', 1800000, '2126-01-01Z', at, later, 'test', no ` + orders,
		`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, hold_id, recorded_at, principal,
			request_id)
			select 1, id, no || '/pay', 'order', id, later, 'test', paid ` + orders + `
			union all select 1, id + 2, no || '/points', 'points', null, at, 'test', no ` + orders,
		`insert into notify_names (tenant_id, biz_no, message_id, request_hash)
			select 1, no || '/message/1', id, sha256('') ` + orders,
		`insert into notify_messages (tenant_id, message_id, month, channel, business_type, biz_no, recipient_hash,
				recipient_hint, content_hash, priority, on_unknown, max_attempts, give_up_at, contents_until,
				accepted_at, principal, request_id)
			select 1, id + n, '2025-12-01', case n when 0 then 'sms' else 'webhook' end, 'order',
				case n when 0 then no || '/message/1' end, substr(sha256('x'), 1, 16), 'x', sha256('x'), 1, 'resend',
				10, '2126-01-01Z', '2126-01-01', case n when 0 then at else later end, 'test', case n when 0 then
				no else paid end ` + orders + `, generate_series(0, 1) n`,
		`insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, at, instance)
			select 1, id + n, '2025-12-01', 1, 'sent', 1, 'file', later,
			'load' ` + orders + `, generate_series(0, 1) n`,
	} {
		d.exec("begin; set local session_replication_role = replica; " + sql + "; commit")
	}
	d.exec("vacuum analyze notify_messages")
}

func statements(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../db/queries/order/order.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	return names
}

func newPlans(t *testing.T) *desk {
	t.Helper()
	db := pgtest.New(t)
	db.SkipChecks() // the rows that load inserts have no batches
	d := newDesk(t, db)
	d.exec("insert into access_tenants (tenant_id, name) values (1, 'demo')")
	pgtest.StopAutovacuum(t, d.super)
	return d
}

// Plans made on empty tables must be as good on full ones as plans with statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []bool{true, false} {
		t.Run(fmt.Sprint(analyzed), func(t *testing.T) {
			t.Parallel()
			d := newPlans(t)
			if analyzed {
				d.exec("analyze")
			}
			d.warm()
			d.load()
			d.ran(statements(t))
			d.compare()
		})
	}
}

// warm runs all commands on nearly empty tables.
func (d *desk) warm() {
	d.Helper()
	d.do(&flow.PutGateway{Caller: caller, Name: "g", Gateway: payment.Gateway{Clearing: "world"}})
	for round := range 12 {
		no := fmt.Sprint("warm", round)
		for _, kind := range []string{"r", "p", "c"} {
			d.do(create(kind + no))
		}
		d.do(&flow.CreatePayment{Caller: caller, OrderNo: "r" + no, Gateway: "g", OutTradeNo: "r" + no})
		brief := create("f" + no)
		brief.PayWithin = time.Millisecond
		d.do(brief)
		for _, command := range kinds {
			d.do(command(no))
		}
	}
}

// ran checks that statements were prepared.
func (d *desk) ran(names []string) {
	d.Helper()
	var prepared []string
	rows, err := d.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		d.Fatal(err)
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			d.Fatal(err)
		}
		prepared = append(prepared, name)
	}
	for _, name := range names {
		if !slices.Contains(prepared, name) {
			d.Errorf("%s was not run: the test does not cover it", name)
		}
	}
}

// compare compares the plans made on empty tables with those made with statistics.
func (d *desk) compare() {
	d.Helper()
	const n = 50
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		for kind, command := range kinds {
			commands := make([]flow.Command, n)
			for i := range commands {
				commands[i] = command(fmt.Sprint(5000 + round*100 + i))
				if kind == "fire" {
					commands[i] = command(fmt.Sprint(250 * (i + 1 + round)))
				}
			}
			got[kind] = d.blocks(func() { d.do(commands...) }) / n
		}
		return got
	}
	first := measure(0)
	d.exec("analyze")
	if _, err := d.pool.Exec(context.Background(), "discard plans"); err != nil {
		d.Fatal(err)
	}
	for kind, n := range measure(49) {
		d.Logf("%-8s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			d.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
}

// A page reads little more than it shows, with and without statistics, however many rows there are. So do the views for
// one order.
func TestReadsOfOrdersReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	d := newPlans(t)
	d.do(create("warm"))
	d.do(create("simple", func(c *flow.CreateOrder) { c.Machine = "simple_order" }))
	d.load()
	d.stories()
	ctx := context.Background()
	day := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	page := func(f order.Filter) func() int {
		return func() int {
			list, _, err := d.reader.Orders(ctx, 1, f, order.Page{Size: 10})
			if err != nil {
				t.Error(err)
			}
			return len(list)
		}
	}
	hour := func(f order.Filter) order.Filter { f.From, f.Before = day, day.Add(time.Hour); return f }
	view := func(query string) func() int {
		return func() (n int) {
			if err := d.super.QueryRow(ctx, "select count(*) from ("+query+") x").Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		}
	}
	for _, statistics := range []string{"without", "with"} {
		if statistics == "with" {
			d.exec("analyze")
		}
		for what, x := range map[string]struct {
			read func() int
			rows int
			most int64
		}{
			"one": {func() int {
				_, err := d.reader.Order(ctx, order.Key{Tenant: 1, OrderNo: "p777"})
				return map[bool]int{true: 1}[err == nil]
			}, 1, 20},
			"all":               {page(order.Filter{}), 10, 150},
			"hour":              {page(hour(order.Filter{})), 10, 150},
			"machine":           {page(order.Filter{Machine: "order"}), 10, 150},
			"rare machine":      {page(order.Filter{Machine: "simple_order"}), 10, 5000},
			"hour of a machine": {page(hour(order.Filter{Machine: "simple_order"})), 9, 8000},
			"subject":           {page(order.Filter{Subject: "bob"}), 10, 150},
			"hour of a subject": {page(hour(order.Filter{Subject: "ann"})), 10, 150},
			"subject in a state": {page(order.Filter{Subject: "bob", Machine: "order", State: "awaiting_payment"}),
				10, 150},
			"subject in no state": {page(order.Filter{Subject: "bob", Machine: "order", State: "shipped"}), 0,
				1500},
			"state":                   {page(order.Filter{Machine: "order", State: "awaiting_payment"}), 10, 800},
			"state of a rare machine": {page(order.Filter{Machine: "simple_order", State: "pending"}), 10, 500},
			"no state":                {page(order.Filter{Machine: "order", State: "shipped"}), 0, 800},
			"due":                     {page(order.Filter{Machine: "order", State: "cancelled"}), 10, 3000},
			"view of one": {view("select * from audit.orders where tenant = 'demo' and order_no = 'p777'"),
				1, 100},
			"story of one": {view("select * from audit.order_story where tenant = 'demo' " +
				"and order_no = 's777'"), 17, 300},
			"story in order": {view("select * from audit.order_story where tenant = 'demo' " +
				"and order_no = 's777' order by at, n"), 17, 300},
			"story without a tenant": {view("select * from audit.order_story where order_no = 's777'"), 17, 7000},
		} {
			rows := x.read() // reads the catalog
			if rows != x.rows {
				t.Errorf("%s: %d rows", what, rows)
			}
			n := d.blocks(func() { x.read() })
			t.Logf("%s statistics: %s touches %d blocks", statistics, what, n)
			if n > x.most {
				t.Errorf("%s statistics: %s touches %d blocks", statistics, what, n)
			}
		}
	}
}
