package payment_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// plans is an engine over one connection, with the gateway g, whose money goes from gw to shop or sus.
type plans struct {
	testing.TB
	super, pool *pgxpool.Pool
	engine      *flow.Engine
	flags       int64 // of the first loaded flag
}

func newPlans(t testing.TB) *plans {
	t.Helper()
	db := pgtest.New(t)
	db.SkipChecks() // the rows that load inserts have no batches
	pool, err := pg.Open(context.Background(), db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := &plans{TB: t, super: pgtest.Pool(t, db.SuperDSN), pool: pool}
	d.engine = flow.NewSendingEngine(pool, t.Name(), nil, nil, &notify.Outbox{Master: secret.New(), Instance: "test",
		Stored: func(commit.Caller, []byte) ([]notify.SendCommand, error) { return nil, nil }})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := d.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	d.exec("insert into access_tenants (tenant_id, name) values (1, 'demo')")
	pgtest.StopAutovacuum(t, d.super)
	d.do(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	d.do(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "gw", Asset: "CNY", Kind: "asset"},
			{Code: "shop", Asset: "CNY", Kind: "liability"}, {Code: "sus", Asset: "CNY", Kind: "liability"}}}))
	d.put("sus")
	return d
}

func (d *plans) put(suspense string) {
	d.Helper()
	d.do(&flow.PutGateway{Caller: caller, Name: "g",
		Gateway: payment.Gateway{Clearing: "gw", Suspense: suspense, Payee: "shop"}})
}

func (d *plans) exec(sql string) {
	d.Helper()
	if _, err := d.super.Exec(context.Background(), sql); err != nil {
		d.Fatal(err)
	}
}

// do runs commands in one batch.
func (d *plans) do(commands ...flow.Command) {
	d.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c}
	}
	for i, r := range d.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			d.Fatalf("%T %d: %v", commands[i], i, r.Err)
		}
	}
}

func yuan(text string) amount.Decimal {
	n, err := amount.ParseDecimal(text)
	if err != nil {
		panic(err)
	}
	return n
}

func created(no string) flow.Command {
	return &flow.CreateOrder{Caller: caller, OrderNo: no,
		Facts: order.Facts{Machine: machine.OrderMachine, Subject: "ann", Asset: "CNY",
			Amount: yuan("2")}}
}

func pays(no string) flow.Command {
	return &flow.CreatePayment{Caller: caller, OrderNo: no, Gateway: "g", OutTradeNo: no}
}

func told(k gateway.Kind, no, n string) flow.Command {
	s := payment.Received{Asset: "CNY", Body: []byte("{}"),
		Notice: gateway.Notice{ID: string(k) + no, Kind: k, OutTradeNo: no,
			TransactionID: "t" + no, Currency: "CNY", Amount: yuan(n)}}
	if k.Refund() {
		s.RefundNo = "r" + no
	}
	return &flow.ApplyNotice{Caller: caller, NoticeParams: flow.NoticeParams{Gateway: "g", Received: s}}
}

// console applies a notice about a console refund.
func console(k gateway.Kind, no string) flow.Command {
	s := payment.Received{Asset: "CNY", Body: []byte("{}"),
		Notice: gateway.Notice{ID: string(k) + no, Kind: k, OutTradeNo: no,
			TransactionID: "t" + no, GatewayRefundID: "re" + no, Currency: "CNY", Amount: yuan("0.01")}}
	return &flow.ApplyNotice{Caller: caller, NoticeParams: flow.NoticeParams{Gateway: "g", Received: s}}
}

func gives(no string) flow.Command {
	n := yuan("1")
	return &flow.RefundPayment{Caller: caller, RefundKey: payment.RefundKey{RefundNo: "r" + no}, OutTradeNo: no,
		Amount: &n}
}

// kinds are the commands on payments, each on payments of its own.
var kinds = map[string]func(no string) flow.Command{
	"create": func(no string) flow.Command { return pays("n" + no) },
	"again": func(no string) flow.Command {
		return &flow.CreatePayment{Caller: caller, OrderNo: "f" + no, Gateway: "g", OutTradeNo: "f" + no}
	},
	"pay":      func(no string) flow.Command { return told(gateway.Paid, "s"+no, "2") },
	"suspend":  func(no string) flow.Command { return told(gateway.Paid, "w"+no, "1") },
	"refund":   func(no string) flow.Command { return gives("f" + no) },
	"refunded": func(no string) flow.Command { return told(gateway.Refunded, "b"+no, "1") },
	"returned": func(no string) flow.Command { return console(gateway.RefundFailed, "g"+no) },
	"unknown": func(no string) flow.Command {
		return &flow.FlagUnknown{Caller: caller, Key: payment.Key{Tenant: 1, OutTradeNo: "u" + no}}
	},
	"cancel": func(no string) flow.Command {
		return &flow.MoveOrder{Caller: caller, OrderNo: "c" + no, Cancel: true, Params: machine.MoveParams{Cause: "c"}}
	},
}

// warm runs all commands on nearly empty tables.
func (d *plans) warm() {
	d.Helper()
	for round := range 12 {
		no := fmt.Sprint("warm", round)
		for _, k := range []string{"n", "s", "w", "f", "b", "c"} {
			d.do(created(k + no))
			if k != "n" {
				d.do(pays(k + no))
			}
		}
		for _, k := range []string{"f", "b"} {
			d.do(told(gateway.Paid, k+no, "2"))
		}
		d.do(gives("b"+no), told(gateway.Paid, "u"+no, "2"), console(gateway.Refunded, "g"+no))
		for _, command := range kinds {
			d.do(command(no))
		}
		var flag int64
		if err := d.super.QueryRow(context.Background(), "select max(flag_id) from payment_flags where state = 'open'").
			Scan(&flag); err != nil {
			d.Fatal(err)
		}
		d.do(d.resolve(flag))
		d.put([]string{"", "sus"}[round%2])
	}
}

func (d *plans) resolve(id int64) flow.Command {
	return &flow.ResolveFlag{Caller: caller, ID: id, Resolution: payment.WriteOff, Target: "shop"}
}

// load inserts 8 times 15,000 orders with their payments, without ANALYZE.
func (d *plans) load() {
	d.Helper()
	for _, sql := range []string{
		"insert into commit_batches (batch_id, recorded_at, commands, instance) " +
			"values (1000000000, '2026-01-01Z', 1, 'load')",
		`create table numbers as select k, k || i as no, (1000000000::bigint << 14) + i * 10 + n as id,
				case k when 'u' then 'unexpected' when 'g' then 'suspended' when 'f' then 'succeeded' when 'b' then
				'succeeded' else 'submitted' end as state, timestamptz '2026-01-01Z' + interval
				'1 s' * (i * 10 + n) as at
			from generate_series(0, 14999) i, unnest(array['n', 's', 'w', 'f', 'b', 'u', 'c', 'g']) with ordinality u
			(k, n)`,
		`insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, reserve,
			principal, request_id, created_at)
			select 1, no, id, 'order', 'ann', 'CNY', 2, 200, false, 'test', 'r', at from numbers`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
				cause, timer_at, timer_to, created_at, changed_at)
			select 1, 'order', no, id, 1, 'awaiting_payment', '', 1, 'creation', timestamptz '2126-01-01Z', 'cancelled',
			at, at
			from numbers where k not in ('b', 'f')
			union all
			select 1, 'order', no, id, 1, 'paid', 'awaiting_payment', 2, no, null, null, at, at from numbers
			where k in ('b', 'f')
			union all
			select 1, 'payment', no, id + (1::bigint << 50), 1, state, 'created', 2, 'n', null, null, at, at
			from numbers where k <> 'n'
			union all
			select 1, 'refund', 'r' || no, id + (1::bigint << 51), 1, 'submitted', 'requested', 2, 'n', null, null, at,
			at from numbers where k = 'b'`,
		`insert into payment_payments (tenant_id, out_trade_no, payment_id, order_no, gateway, pay_type, attempt, asset,
				scale, amount, payee, principal, request_id, created_at, transaction_id)
			select 1, no, id + (1::bigint << 50), no, 'g', '', 1, 'CNY', 2, 200, 'shop', 'test', 'r', at,
			case when k in ('f', 'b', 'g') then 't' || no end
			from numbers where k not in ('n', 'u')`,
		`insert into payment_transactions (tenant_id, gateway, transaction_id, out_trade_no, notice_id, currency, asset,
				scale, amount, account, refunding, recorded_at)
			select 1, 'g', 't' || no, no, id, 'CNY', 'CNY', 2, 200, case k when 'g' then 'sus' else 'shop' end,
			case k when 'b' then 100 else 0 end, at
			from numbers where k in ('f', 'b', 'g')`,
		`insert into payment_notice_names select 1, 'g', 'n' || no, id from numbers where k <> 'n'`,
		`insert into payment_notices (tenant_id, notice_id, gateway, notify_id, callback, kind, out_trade_no,
				transaction_id, amount, currency, asset, fields, effect, body, request_id, recorded_at)
			select 1, id, 'g', 'n' || no, true, 'paid', no, 't' || no, '2', 'CNY', 'CNY',
				x.fields || jsonb_build_object('ID', 'n' || no, 'OutTradeNo', no, 'TransactionID', 't' || no),
				case k when 'u' then 'unmatched' else 'applied' end, '', 'r', at
			from numbers, (select fields from payment_notices where effect = 'unmatched' limit 1) x where k <> 'n'`,
		`insert into payment_refunds (tenant_id, refund_no, refund_id, out_trade_no, gateway, transaction_id, currency,
				asset, scale, amount, account, moves_order, principal, request_id, created_at)
			select 1, 'r' || no, id + (1::bigint << 51), no, 'g', 't' || no, 'CNY', 'CNY', 2, 100, 'shop', false,
			'test', 'r', at from numbers where k = 'b'`,
		`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at,
			created_at, principal, request_id)
			select 1, id, 'refund/r' || no, (select account_id from ledger_accounts
			where code = 'shop'), '', 100, 1800000, '2126-01-01Z', at, 'test', 'r'
			from numbers where k = 'b'`,
		`insert into payment_flags (tenant_id, flag_id, kind, detail, gateway, transaction_id, out_trade_no, order_no,
				currency, asset, scale, amount, account, request_id, created_at)
			select 1, id, 'wrong_amount', 'x', 'g', 't' || no, no, no, 'CNY', 'CNY', 2, 200, 'sus', 'r', at from numbers
			where k = 'g'`,
		// Given back in the console: a half of them without a transaction.
		`insert into payment_console_refunds (tenant_id, console_id, gateway, gateway_refund_id, out_trade_no,
				transaction_id, currency, asset, scale, amount, failed, flag_id, recorded_at)
			select 1, id + (1::bigint << 52), 'g', 're' || no, no, case when id % 20 < 10 then 't' || no else '' end,
				'CNY', 'CNY', 2, 1, false, id + (1::bigint << 52), at
			from numbers where k in ('f', 'b', 'g')`,
		`insert into payment_notices (tenant_id, notice_id, gateway, notify_id, callback, kind, out_trade_no, fields,
			effect, body, request_id, recorded_at)
			select 1, console_id, 'g', 'm' || out_trade_no, true, 'refunded', out_trade_no, '{}', 'flagged', '', 'r',
			recorded_at
			from payment_console_refunds where gateway_refund_id !~ 'warm'`,
		`insert into payment_notice_names select 1, 'g', 'unknown_refund/' || gateway_refund_id, console_id
			from payment_console_refunds
			where gateway_refund_id !~ 'warm'`,
		`insert into payment_flags (tenant_id, flag_id, kind, detail, gateway, transaction_id, out_trade_no, currency,
				asset, scale, amount, about_console, request_id, created_at)
			select 1, flag_id, 'unknown_refund', 'x', 'g', transaction_id, out_trade_no, 'CNY', 'CNY', 2, 1, console_id,
			'r', recorded_at
			from payment_console_refunds where gateway_refund_id !~ 'warm'`,
		`insert into payment_calls (tenant_id, subject, number, gateway, call, next_call_at)
			select 1, 'payment', no, 'g', case k when 'u' then 'flag' else 'query' end, case when no ~ '00$' then
			at else '2126-01-01Z' end
			from numbers where k in ('s', 'w', 'u', 'c')
			union all
			select 1, 'refund', 'r' || no, 'g', 'query', '2126-01-01Z' from numbers where k = 'b'`,
		`update ledger_accounts set held = held + 1500000, balance = balance + 9000000, version = version + 1
			where code = 'shop'`,
		`update ledger_accounts set balance = balance + 9000000 where code = 'sus'`,
	} {
		d.exec("begin; set local session_replication_role = replica; " + sql + "; commit")
	}
	d.flags = 1000000000<<14 + 8
}

// ran checks that the statements of files of the engine were prepared.
func (d *plans) ran(files ...string) {
	d.Helper()
	rows, err := d.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		d.Fatal(err)
	}
	var prepared []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			d.Fatal(err)
		}
		prepared = append(prepared, name)
	}
	for _, file := range files {
		text, err := os.ReadFile("../../db/queries/payment/" + file)
		if err != nil {
			d.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(prepared, m[1]) {
				d.Errorf("%s was not run: the test does not cover it", m[1])
			}
		}
	}
}

// blocks counts the table and index blocks that a call touches.
func (d *plans) blocks(call func()) int64 {
	d.Helper()
	before := pgtest.Touched(d, ".", d.super, d.pool)
	call()
	return pgtest.Touched(d, ".", d.super, d.pool) - before
}

// Plans made on empty tables must be as good on full ones as plans with statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	d := newPlans(t)
	d.warm()
	d.load()
	d.ran("payment.sql")
	const n = 50
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		for kind, command := range kinds {
			commands := make([]flow.Command, n)
			for i := range commands {
				commands[i] = command(fmt.Sprint(5000 + round*100 + i))
			}
			got[kind] = d.blocks(func() { d.do(commands...) }) / n
		}
		resolved := make([]flow.Command, n)
		for i := range resolved {
			resolved[i] = d.resolve(d.flags + int64(5000+round*100+i)*10)
		}
		got["resolve"] = d.blocks(func() { d.do(resolved...) }) / n
		return got
	}
	first := measure(0)
	d.exec("analyze")
	if _, err := d.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	for kind, n := range measure(49) {
		t.Logf("%-8s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			t.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
}

// Reads and leases touch little more than their own rows, with and without statistics.
func TestReadsOfPaymentsReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	d := newPlans(t)
	d.do(created("uwarm"), told(gateway.Paid, "uwarm", "2"))
	d.load()
	ctx, r, u := context.Background(), payment.NewReader(d.pool), &payment.Queue{Pool: d.pool}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, statistics := range []string{"without", "with"} {
		if statistics == "with" {
			d.exec("analyze")
		}
		for what, c := range map[string]struct {
			read func() int
			rows int
			most int64
		}{
			"payment": {func() int {
				_, err := r.Payment(ctx,
					payment.Key{Tenant: 1, OutTradeNo: "f777"})
				check(err)
				return 1
			}, 1, 60},
			"payments": {func() int { l, _, err := r.Payments(ctx, 1, "", 10, ""); check(err); return len(l) }, 10,
				300},
			"of order": {func() int { l, _, err := r.Payments(ctx, 1, "f777", 10, ""); check(err); return len(l) }, 1,
				60},
			"refund": {func() int {
				_, err := r.Refund(ctx, payment.RefundKey{Tenant: 1, RefundNo: "rb777"})
				check(err)
				return 1
			}, 1, 60},
			"refunds": {func() int { l, _, err := r.Refunds(ctx, 1, "", 10, ""); check(err); return len(l) }, 10,
				200},
			"of payment": {func() int { l, _, err := r.Refunds(ctx, 1, "b777", 10, ""); check(err); return len(l) }, 1,
				60},
			"notices": {func() int { l, _, err := r.Notices(ctx, 1, "", 10, ""); check(err); return len(l) }, 10,
				100},
			"notices of": {func() int { l, _, err := r.Notices(ctx, 1, "b777", 10, ""); check(err); return len(l) }, 2,
				60},
			// Without statistics, the plan sorts.
			"flags": {func() int { l, _, err := r.Flags(ctx, 1, "", 10, ""); check(err); return len(l) }, 10, 500},
			"open flags": {func() int { l, _, err := r.Flags(ctx, 1, "open", 10, ""); check(err); return len(l) }, 10,
				100},
			"gateways": {func() int { l, _, err := r.Gateways(ctx, 1, 10, ""); check(err); return len(l) }, 1, 60},
			"take": {func() int {
				l, err := u.Take(ctx, payment.GatewayKey{Tenant: 1, Gateway: "g"}, 10, time.Minute)
				check(err)
				return len(l)
			}, 10, 400},
			"take one": {func() int {
				l, ok, err := u.TakeOne(ctx, 1, payment.OfPayment, "s777", time.Minute, true)
				check(err)
				if ok {
					check(u.Again(ctx, l, payment.Query, time.Hour, "", ""))
				}
				return 1
			}, 1, 100},
			"due": {func() int {
				l, err := payment.DueFlags(ctx, d.pool, payment.DueFlag{}, 10)
				check(err)
				return len(l)
			}, 10, 200},
			"stats": {func() int { l, _, err := u.Stats(ctx); check(err); return len(l) }, 1, 2500},
			"view": {func() (n int) {
				check(d.super.QueryRow(ctx, "select count(*) from audit.order_story where tenant = 'demo' "+
					"and order_no = 'b777'").Scan(&n))
				return n
			}, 4, 300}, // the order's refund with its hold, and a notice of the console with its flag
		} {
			if rows := c.read(); rows != c.rows { // the first read also reads the catalog
				t.Errorf("%s: %d rows", what, rows)
			}
			if n := d.blocks(func() { c.read() }); n > c.most {
				t.Errorf("%s statistics: %s touches %d blocks", statistics, what, n)
			} else {
				t.Logf("%s statistics: %s touches %d blocks", statistics, what, n)
			}
		}
	}
}
