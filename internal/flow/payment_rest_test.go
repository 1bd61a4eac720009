package flow_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing/fstest"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/verify"
)

const callsOfPlay = `select coalesce(string_agg(concat_ws(' ', gateway, subject, number, call), ','
	order by subject, number), '')
	from payment_calls where tenant_id = $1 and call <> 'flag'`

// calls makes calls to the banks, due or not: only the nth, or all if only is negative.
func (p *payPlay) calls(only int) {
	for i, c := range strings.Split(p.text(callsOfPlay), ",") {
		f := strings.Fields(c)
		if len(f) < 4 || only >= 0 && i != only {
			continue
		}
		_, err := p.dispatcher.RunDue(context.Background(),
			payment.GatewayKey{Tenant: p.caller.Tenant, Gateway: f[0]}, payment.Subject(f[1]), f[2], true)
		p.log = append(p.log, fmt.Sprint("call ", c, ": ", err))
	}
}

// rest lets the banks decide everything, and lets days pass until no call is due.
func (p *payPlay) rest() {
	for _, b := range p.banks {
		b.with(func() { b.decides = true })
	}
	for range 8 {
		p.wait(25 * 60)
		for no, name := range map[string]string{"o": machine.OrderMachine, "twice": "twice"} {
			p.now(flow.Fire(&machine.FireCommand{Caller: p.caller,
				Key: machine.Key{Tenant: p.caller.Tenant, Machine: name, Key: no}}))
		}
		for range 6 {
			for _, no := range strings.Fields(p.text("select coalesce(string_agg(number, ' '), '') " +
				"from payment_calls where tenant_id = $1 and call = 'flag'")) {
				p.log = append(p.log, "flag "+no+": "+p.now(&flow.FlagUnknown{Caller: p.caller,
					Key: payment.Key{Tenant: p.caller.Tenant, OutTradeNo: no}}))
			}
		}
		p.calls(-1)
		if p.text("select count(*)::text from payment_calls where tenant_id = $1") == "0" {
			return
		}
	}
	p.fail("calls remain: %s", p.text(callsOfPlay))
}

func (p *payPlay) fail(format string, args ...any) {
	p.Helper()
	p.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(p.log, "\n"))
}

// restRules are queries that must return no row when all calls have ended. Each has the tenant as $1.
var restRules = map[string]string{
	"an order is paid twice": `select p.order_no from payment_payments p join machine_instances i using (tenant_id)
		where tenant_id = $1 and i.machine = 'payment' and i.key = p.out_trade_no and i.state = 'succeeded'
		group by 1 having count(*) > 1`,
	"an order is paid by nothing": `select o.order_no || ' ' || i.state from order_orders o
		join machine_instances i using (tenant_id)
		where tenant_id = $1 and i.machine = o.machine and i.key = o.order_no
		and i.state in ('paid', 'refunding', 'refunded') and not exists (
			select from payment_payments p join machine_instances j using (tenant_id) where tenant_id = $1
			and p.order_no = o.order_no
			and j.machine = 'payment' and j.key = p.out_trade_no and j.state = 'succeeded')`,
	"a paid order waits": `select o.order_no || ' ' || i.state from order_orders o
		join machine_instances i using (tenant_id)
		join payment_payments p using (tenant_id, order_no) join machine_instances j using (tenant_id)
		where tenant_id = $1 and i.machine = o.machine and i.key = o.order_no
		and i.state in ('awaiting_payment', 'pending')
		and j.machine = 'payment' and j.key = p.out_trade_no and j.state = 'succeeded'`,
	"a payment is open": `select key || ' ' || state from machine_instances where tenant_id = $1
		and (machine = 'payment'
		and state in ('created', 'submitted', 'declined', 'unexpected') or machine = 'refund'
		and state in ('requested', 'submitted', 'abnormal'))`,
	"an order is refunding": `select key from machine_instances where tenant_id = $1 and machine = 'order'
		and state = 'refunding'`,
	// Only refunds and flags that certainly counted before the refund was requested are subtracted.
	"a refund is more than what remained": `select
		r.refund_no || ' ' || r.amount || ' of ' || x.amount - q.amount - f.amount
		from payment_refunds r join payment_transactions x using (tenant_id, gateway, transaction_id)
		cross join lateral (select coalesce(sum(y.amount), 0) as amount from payment_refunds y
			join machine_instances i on i.tenant_id = $1 and i.machine = 'refund' and i.key = y.refund_no
			where y.tenant_id = $1 and y.gateway = r.gateway and y.transaction_id = r.transaction_id
			and i.state = 'succeeded'
			and (y.created_at < r.created_at or y.refund_id >> 14 = r.refund_id >> 14 and y.refund_id < r.refund_id)) q
		cross join lateral (select coalesce(sum(ceil(y.amount / 10::numeric ^ (y.scale - x.scale))), 0) as amount
		from payment_flags y
			where y.tenant_id = $1 and y.gateway = r.gateway and y.transaction_id = r.transaction_id
			and y.kind = 'unknown_refund'
			and y.currency = r.currency and (select count(*) from payment_flags z where z.tenant_id = $1
			and z.about_console = y.about_console) = 1 and y.resolution is distinct from 'withdrawn'
			and (y.created_at < r.created_at or y.flag_id >> 14 = r.refund_id >> 14 and y.flag_id < r.refund_id)) f
		where r.tenant_id = $1 and r.amount > x.amount - q.amount - f.amount`,
	"clearing does not reconcile": `select a.code || ' ' || a.balance || ' ' || s.moved from ledger_accounts a cross
		join lateral (
			select -(select coalesce(sum(amount), 0) from payment_transactions x where x.tenant_id = $1
			and 'gw-' || x.gateway = a.code and account is not null)
			+ (select coalesce(sum(r.amount), 0) from payment_refunds r where r.tenant_id = $1
			and 'gw-' || r.gateway = a.code and exists (
				select from ledger_transfers t where t.tenant_id = $1
				and t.biz_no = 'refund/' || r.refund_no || '/paid'))
			+ (select coalesce(sum(case kind when 'unknown_refund' then amount else -amount end), 0)
			from payment_flags f
				where f.tenant_id = $1 and 'gw-' || f.gateway = a.code and asset is not null
				and resolution = 'write_off'
				and kind in ('unknown_refund', 'refund_returned')) as moved
		) s where a.tenant_id = $1 and a.code like 'gw-%' and a.balance <> s.moved`,
	"suspense does not reconcile": `select a.balance || ' ' || s.stands from ledger_accounts a cross join lateral (
			select (select coalesce(sum(amount - refunded), 0) from payment_transactions x where x.tenant_id = $1
			and account = 'sus')
			+ (select coalesce(sum(case kind when 'unknown_refund' then -amount else amount end), 0)
			from payment_flags f
				where f.tenant_id = $1 and target = 'sus' and asset is not null
				and kind in ('unknown_refund', 'refund_returned')) as stands
		) s where a.tenant_id = $1 and a.code = 'sus' and (a.balance <> s.stands or a.held <> 0)`,
}

// compare compares the database with the notices of the banks.
func (p *payPlay) compare() {
	p.Helper()
	for what, sql := range restRules {
		if got := p.text("select coalesce(string_agg(x::text, ', '), '') from (" + sql + ") x"); got != "" {
			p.fail("%s: %s", what, got)
		}
	}
	rows := p.text(`select coalesce(string_agg(format('%s/%s %s %s', gateway, transaction_id, currency,
		(amount / 10::numeric ^ scale)::float8), ','), '')
		from payment_transactions where tenant_id = $1`)
	for name, s := range p.told {
		if want := fmt.Sprint(name, " ", s.Currency, " ", s.Amount); !strings.Contains(","+rows+",", ","+want+",") {
			p.fail("transaction %s is lost: there are %s", want, rows)
		}
	}
	if n := len(strings.FieldsFunc(rows, func(c rune) bool { return c == ',' })); n != len(p.told) {
		p.fail("%d transactions are told of, and recorded are %s", len(p.told), rows)
	}
	p.compareRefunds()
	conn, err := p.market.super.Acquire(context.Background())
	if err != nil {
		p.Fatal(err)
	}
	defer conn.Release()
	if r, err := verify.Whole(context.Background(), conn.Conn(), paymentChecks()); err != nil || len(r.Found) > 0 {
		p.fail("violations: %v, %v", r.Found, err)
	}
}

// paymentChecks are the checks of payments: all of them run when the test ends.
var paymentChecks = sync.OnceValue(func() fs.FS {
	some := fstest.MapFS{}
	names, _ := fs.Glob(checks.FS, "payment_*.sql")
	for _, name := range names {
		text, _ := fs.ReadFile(checks.FS, name)
		some[name] = &fstest.MapFile{Data: text}
	}
	return some
})

// compareRefunds compares each refund with its bank's latest notice.
func (p *payPlay) compareRefunds() {
	p.Helper()
	for _, row := range strings.Split(p.text(`select coalesce(string_agg(format('%s %s %s', gateway, refund_no,
		given > 0), ','), '')
		from payment_refunds where tenant_id = $1`), ",") {
		if f := strings.Fields(row); len(f) == 3 {
			if said := p.banks[f[0]].refunds[f[1]].Kind; (said == gateway.Refunded) != (f[2] == "t") {
				p.fail("refund %s: the bank said %s", row, said)
			}
		}
	}
}
