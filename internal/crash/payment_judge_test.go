package crash_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/client"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// hurry makes the calls at gateways due, as if their waits were over. It also ends leases that are older than some
// seconds, such as those of killed servers.
func (s *shop) hurry(lease float64) {
	query[int](s.world, s.db, `with u as (update payment_calls set next_call_at = least(next_call_at, now()),
		lease_expires_at =
			case when lease_expires_at < now() + make_interval(secs => 90 - $1::float8) then now() else lease_expires_at
			end
		where call <> 'flag' returning 1) select count(*)::integer from u`, lease)
}

// atRest selects the remaining work: calls, timers, and orders that can still be paid.
const atRest = `select concat_ws(', ',
	(select 'calls ' || string_agg(concat_ws(' ', call, number, last_code), ', ') from payment_calls
	where call <> 'flag'),
	(select 'timers ' || string_agg(machine || ' ' || key, ', ') from machine_instances where timer_at <= now()),
	(select 'orders ' || string_agg(key, ', ') from machine_instances where state in ('awaiting_payment', 'pending')))`

// rest waits until every payment and every order has ended. It cancels the orders that no payer paid.
func (s *shop) rest() {
	begun := time.Now()
	s.settleDown("every payer is done and heard", func() bool { return s.unheard() == "" })
	s.cancelRest()
	s.settleDown("nothing is left to do", func() bool { return query[string](s.world, s.db, atRest) == "" })
	s.t.Logf("at rest after %v", time.Since(begun))
}

// settleDown waits for a condition. Meanwhile it has the simulator release held notices, and makes calls at gateways
// due early.
func (s *shop) settleDown(what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; <-time.After(300 * time.Millisecond) {
		s.sim.control("POST", "release", fate{"number": "", "order": "reverse"}, nil)
		quiet := s.sim.control("GET", "quiet?timeout=300ms", nil, nil) == http.StatusOK
		if quiet && done() {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("not within %v: %s; left: %s; unheard: %s", patience, what, query[string](s.world, s.db, atRest),
				s.unheard())
		}
		s.hurry(3)
	}
}

// unheard names payments that have a transaction at the gateway, and are still open in the database.
func (s *shop) unheard() string {
	open := map[string]string{}
	for number, state := range s.pairs(`select key, state from machine_instances where machine = 'payment'
		and state in ('created', 'submitted', 'declined')`) {
		open[number] = state
	}
	var found []string
	for _, c := range s.sim.charges() {
		if len(c.Transactions) > 0 && open[c.Number] != "" {
			found = append(found, c.Gateway+" "+c.Number)
		}
	}
	return strings.Join(found, ", ")
}

// pairs returns texts by name.
func (w *world) pairs(sql string) map[string]string {
	w.t.Helper()
	rows, err := pgtest.Pool(w.t, w.db.SuperDSN).Query(context.Background(), sql)
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]string{}
	var name, text string
	if _, err := pgx.ForEachRow(rows, []any{&name, &text},
		func() error { found[name] = text; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return found
}

// cancelRest cancels the orders that can still be paid.
func (s *shop) cancelRest() {
	for no := range s.pairs("select key, state from machine_instances where state in ('awaiting_payment', 'pending')") {
		v := &visit{w: s.world, name: "rest-" + no, outcomes: map[string]int{}}
		// refused if the order has expired meanwhile
		ask(v, func(ctx context.Context, c *client.Client) (*orderv1.CancelOrderResponse, error) {
			return c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: no})
		})
	}
}

// judgeTrips checks that the database is consistent, and compares it with the buyers' answers and the gateways' books.
func (s *shop) judgeTrips(all []*trip) {
	s.empty("orders", ordersAsTheyEnd)
	s.empty("money", moneyHasAPlace)
	s.empty("accounts", accountsMatch)
	s.empty("refunds", refundsMatch)
	if n := query[string](s.world, s.db, `select format('%s %s %s', (select count(*) from order_orders),
		(select count(*) from token_submit_tokens where state = 'spent'),
		(select count(*) from notify_messages
		where biz_no like '%/message/1'))`); n != fmt.Sprintf("%[1]d %[1]d %[1]d", len(all)) {
		s.t.Errorf("%d trips made %s orders, spent tokens and messages", len(all), n)
	}
	states := s.pairs(`select case machine when 'payment' then 'payment ' when 'refund' then 'refund ' else 'order '
		end || key, state
		from machine_instances where machine in ('payment', 'refund', 'order', 'simple_order')`)
	for _, p := range all {
		for about, told := range p.facts {
			if states[about] != told {
				s.t.Errorf("%s: %s is %s, and the answer was %s", p.name, about, states[about], told)
			}
		}
	}
	s.judgeGateways()
	s.verify()
	s.t.Log(query[string](s.world, s.db, `select string_agg(what || ' ' || n, ', ' order by what) from (
		select machine || ' ' || state as what, count(*) as n from machine_instances
		where machine in ('payment', 'refund', 'order', 'simple_order') group by 1
		union all select 'flag ' || kind, count(*) from payment_flags group by 1
		union all select concat('notice ', kind, ' ', effect, case when callback then ' called back' end), count(*)
		from payment_notices group by 1) x`))
}

// empty fails if a query returns a problem.
func (s *shop) empty(about, sql string) {
	s.t.Helper()
	if text := query[string](s.world, s.db, "select coalesce(string_agg(problem, E'\\n'), '') "+
		"from ("+sql+") x"); text != "" {
		s.t.Errorf("%s:\n%s", about, text)
	}
}

// ordersAsTheyEnd selects violations: a paid order has one succeeded payment, and its parts are sold, captured and
// used; an order that ended unpaid has none, and its parts are free again.
const ordersAsTheyEnd = `
	select format('%s is %s, payments %s, units %s, hold %s, coupon %s, refunded %s of %s', order_no, state, payments,
		units, hold, coupon, refunded, paid) as problem
	from (
		select o.order_no, i.state, o.balance_amount > 0 as holds, o.coupon is not null as has_coupon,
			i.state in ('paid', 'refunded') as bought, o.machine, (select string_agg(p.state, ' ' order by p.state)
			from payment_payments y
				join machine_instances p on p.machine = 'payment' and p.key = y.out_trade_no
				where y.order_no = o.order_no) as payments,
			(select count(*) from payment_payments y join machine_instances p on p.machine = 'payment'
			and p.key = y.out_trade_no
				where y.order_no = o.order_no and p.state = 'succeeded') as succeeded,
			(select count(*) from payment_payments y join machine_instances p on p.machine = 'payment'
			and p.key = y.out_trade_no
				where y.order_no = o.order_no and p.state in ('created', 'submitted', 'declined')) as open,
			(select string_agg(distinct state, ' ') from stock_reservations
			where reservation_no like o.order_no || '/%') as units,
			(select state from ledger_holds where biz_no = o.order_no || '/hold') as hold,
			(select state from machine_instances where machine = 'coupon' and key = o.coupon) as coupon,
			t.refunded, t.amount as paid
		from order_orders o
		join machine_instances i on i.machine = o.machine and i.key = o.order_no
		left join lateral (select t.refunded, t.amount from payment_payments p
			join machine_instances s on s.machine = 'payment' and s.key = p.out_trade_no and s.state = 'succeeded'
			join payment_transactions t on t.gateway = p.gateway and t.transaction_id = p.transaction_id
			where p.order_no = o.order_no) t on true
	) o
	where open > 0 or case when bought
		then succeeded <> 1 or units <> 'sold' or holds and hold <> 'captured' or has_coupon and coupon <> 'used'
		or paid is null
			or machine = 'order' and (state = 'refunded') <> (refunded = paid)
		else state not in ('cancelled', 'expired') or succeeded <> 0 or units not in ('cancelled', 'expired')
			or holds and hold not in ('released', 'expired') or has_coupon and coupon <> 'claimed' end`

// moneyHasAPlace selects violations: each transaction either pays its order, with the amount due, or has one open flag.
const moneyHasAPlace = `
	select format('%s %s of %s: pays %s orders and has %s flags', t.gateway, t.transaction_id, t.out_trade_no, x.pays,
	x.flags) as problem
	from payment_transactions t
	cross join lateral (select
		(select count(*) from payment_payments p join machine_instances i on i.machine = 'payment'
		and i.key = p.out_trade_no and i.state = 'succeeded'
			where p.out_trade_no = t.out_trade_no and p.transaction_id = t.transaction_id and p.gateway = t.gateway
			and p.amount = t.amount
				and p.asset = t.asset and p.payee = t.account) as pays,
		(select count(*) from payment_flags f where f.gateway = t.gateway and f.transaction_id = t.transaction_id
		and f.state = 'open'
			and f.kind not in ('unknown_refund', 'refund_returned') and f.amount = t.amount
			and f.account is not distinct from t.account) as flags) x
	where x.pays + x.flags <> 1
	union all
	select format('flag %s of %s %s', kind, gateway, transaction_id) from payment_flags
	where kind in ('unknown_refund', 'refund_returned', 'unknown_number', 'order_refused')`

// accountsMatch selects violations: a gateway's account has its transactions less refunds, suspense the flagged
// amounts, the wallet its initial balance less its parts of paid orders, and the shop the amounts of paid orders less
// refunds.
const accountsMatch = `
	select format('%s %s: %s, not %s', a.code, a.asset, a.balance, w.want) as problem
	from ledger_accounts a
	cross join lateral (select case
		when a.code like 'at:%' then (select coalesce(sum(refunded - amount), 0) from payment_transactions
			where gateway = substr(a.code, 4) and asset = a.asset and account is not null)
		when a.code like 'lost:%' then (select coalesce(sum(amount), 0) from payment_flags where account = a.code
		and asset = a.asset and state = 'open')
		when a.code = 'wallet' then (select 10000000 - coalesce(sum(balance_amount), 0) from order_orders o
			join machine_instances i on i.machine = o.machine and i.key = o.order_no and i.state in ('paid', 'refunded')
			where o.asset = a.asset)
		else (select coalesce(sum(o.amount - coalesce(t.refunded, 0)), 0) from order_orders o
			join machine_instances i on i.machine = o.machine and i.key = o.order_no and i.state in ('paid', 'refunded')
			left join lateral (select t.refunded from payment_payments p
				join machine_instances s on s.machine = 'payment' and s.key = p.out_trade_no and s.state = 'succeeded'
				join payment_transactions t on t.gateway = p.gateway and t.transaction_id = p.transaction_id
				where p.order_no = o.order_no) t on true where o.asset = a.asset) end as want) w
	where (a.code like 'at:%' or a.code like 'lost:%' or a.code in ('wallet', 'shop')) and (a.balance <> w.want
	or a.held <> 0)`

// refundsMatch selects violations: the refunded amount of a transaction is the sum of its succeeded refunds, and no
// refund is open.
const refundsMatch = `
	select format('%s %s: refunding %s, refunded %s, refunds %s', t.gateway, t.transaction_id, t.refunding, t.refunded,
	x.back) as problem
	from payment_transactions t
	cross join lateral (select coalesce(sum(r.amount), 0) as back from payment_refunds r
	join machine_instances i on i.machine = 'refund' and i.key = r.refund_no
		where r.gateway = t.gateway and r.transaction_id = t.transaction_id and i.state = 'succeeded') x
	where t.refunding <> 0 or t.refunded <> x.back
	union all
	select format('refund %s is %s', key, state) from machine_instances where machine = 'refund'
	and state not in ('succeeded', 'failed')`

// judgeGateways compares the database with the gateways' books. Each transaction is recorded, unless no notice of its
// payment was acknowledged. A payment exists once. The amounts given back are those of the succeeded refunds.
func (s *shop) judgeGateways() {
	recorded := s.pairs(`select concat_ws(' ', gateway, out_trade_no, transaction_id), concat_ws(' ', currency, amount)
		from payment_transactions`)
	payments := s.pairs("select gateway || ' ' || out_trade_no, order_no from payment_payments")
	heard := map[string]bool{}
	var notices []struct {
		Number         string
		AcknowledgedAt *time.Time `json:"acknowledged_at"`
		Never          bool
	}
	s.sim.control("GET", "notices", nil, &notices)
	for _, n := range notices {
		heard[n.Number] = heard[n.Number] || n.AcknowledgedAt != nil
	}
	charged, untold := map[string]int{}, 0
	for _, c := range s.sim.charges() {
		name := c.Gateway + " " + c.Number
		if charged[name]++; charged[name] > 1 {
			s.t.Errorf("the payment %s was made twice", name)
		}
		if payments[name] == "" {
			s.t.Errorf("the gateway has the payment %s, and no server knows it", name)
		}
		for _, x := range c.Transactions {
			id := name + " " + x.ID
			got, want := recorded[id], fmt.Sprint(x.Currency, " ", x.Amount)
			if delete(recorded, id); got == "" && !heard[c.Number] {
				untold++
			} else if got != want {
				s.t.Errorf("%s: recorded %q, and the gateway took %s", id, got, want)
			}
		}
	}
	for id, what := range recorded {
		s.t.Errorf("%s of %s was recorded, and the gateway does not have it", what, id)
	}
	s.t.Logf("%d payments at the gateways, %d transactions not recorded, with no acknowledged notice",
		len(charged), untold)
	var totals struct {
		Gateways map[string]map[string]takings
		Accepted int `json:"forgeries_accepted"`
	}
	s.sim.control("GET", "totals", nil, &totals)
	back := s.pairs(`select r.gateway || ' ' || r.currency, (sum(r.amount) / 100)::numeric(20, 2)::text
		from payment_refunds r
		join machine_instances i on i.machine = 'refund' and i.key = r.refund_no and i.state = 'succeeded' group by 1`)
	for gateway, byCurrency := range totals.Gateways {
		for currency, x := range byCurrency {
			want := back[gateway+" "+currency]
			if want == "" {
				want = "0.00"
			}
			if x.GivenBack != want || strings.Trim(x.GivingBack, "0.") != "" {
				s.t.Errorf("%s gave back %s %s and gives %s, refunds are %s",
					gateway, x.GivenBack, currency, x.GivingBack, want)
			}
		}
	}
	if totals.Accepted != 0 {
		s.t.Errorf("%d forgeries were acknowledged", totals.Accepted)
	}
}

// verify runs ledgerd verify.
func (w *world) verify() {
	cmd := exec.Command(w.binary, "verify")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+w.db.SuperDSN)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Errorf("verify: %v\n%s", err, out)
	}
}
