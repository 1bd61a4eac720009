package flow_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/order"
)

// race runs commands concurrently, alternating between two engines, and returns their outcomes.
func (m *market) race(n int, command func(i int) flow.Command) []string {
	m.Helper()
	ends := make([]string, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		c := command(i)
		wg.Go(func() {
			<-start
			ends[i] = m.batch(i%2, c)[0]
		})
	}
	close(start)
	wg.Wait()
	return ends
}

// count counts equal outcomes.
func count(ends []string) map[string]int {
	n := map[string]int{}
	for _, end := range ends {
		n[end]++
	}
	return n
}

// agrees checks, over all orders, that the states of their parts match those of the orders, and that units and money
// add up.
func (m *market) agrees() {
	m.Helper()
	if got := m.text(`select coalesce(string_agg(format('%s is %s, and %s is %s', o.order_no, i.state, p.no, p.state),
		', '), '')
		from order_orders o join machine_instances i on i.tenant_id = o.tenant_id and i.machine = o.machine
		and i.key = o.order_no
		cross join lateral (
			select reservation_no as no, state from stock_reservations where ref = o.order_no union all
			select biz_no, state from ledger_holds where biz_no = o.order_no || '/hold' union all
			select scope, owner from claim_keys where owner = o.order_no and i.state in ('cancelled', 'expired')) p
		where p.state <> all (case i.state when 'paid' then array['sold', 'captured'] when 'awaiting_payment' then
		array['reserved', 'held']
			when 'pending' then array['reserved', 'held'] else array['cancelled', 'expired', 'released', 'expired'] end)
		or i.instance_id <> o.order_id`); got != "" {
		m.Error(got)
	}
	m.equal("expiry messages", m.text(`select coalesce(string_agg(format('%s is %s by %s, and its message %s',
		o.order_no, i.state, i.cause, n.state), ', '), '')
		from order_orders o join machine_instances i on i.instance_id = o.order_id
		cross join lateral jsonb_array_elements_text(o.expiry_messages) e (id)
		left join audit.notifications n on n.message_id = e.id::bigint
		where n.state is distinct from case when i.revision = 1
		or i.cause = 'timer' then 'queued' else 'cancelled' end`), "")
	m.equal("counts", m.text(`select format('%s %s', (select sum(available)
		from stock_items), (select (balance - held)::bigint from ledger_accounts where code = 'user:0'))`),
		m.text(`select format('%s %s', 200 - coalesce((select sum(quantity) from stock_reservations
			where state in ('reserved', 'sold')), 0),
			5000 - coalesce((select sum(amount) from ledger_holds where state in ('held', 'captured')), 0)::bigint -
			coalesce((select sum(o.balance_amount) from order_orders o
			where o.balance_amount = o.amount), 0)::bigint)`))
}

// Many callers create the same orders, half of them with other content.
func TestOneCallerCreatesEachOrder(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	const orders, callers = 8, 20
	units := func(i int) func(*flow.CreateOrder) {
		return func(c *flow.CreateOrder) {
			c.Lines = []order.Line{{Item: []string{"tea", "milk"}[i%2], Quantity: int64(1 + i%2)},
				{Item: []string{"milk", "tea"}[i%2], Quantity: 1}}
			c.Balance.Amount = dec("1")
		}
	}
	ends := m.race(orders*callers, func(i int) flow.Command { return newOrder(fmt.Sprint(i%orders), units(i/orders)) })
	for n := range orders {
		no := fmt.Sprint(n)
		made := map[string]int{}
		for i := n; i < len(ends); i += orders {
			made[ends[i]]++
		}
		if made[no+" awaiting_payment"] != 1 || made[no+" awaiting_payment existed"] != callers/2-1 ||
			made["ORDER_EXISTS_DIFFERENT"] != callers/2 {
			t.Errorf("%s: %v", no, made)
		}
	}
	m.agrees()
}

// Many callers make the same purchases under numbers of their own. Then the orders are cancelled, while others try
// again.
func TestOneCallerMakesEachPurchase(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	const purchases, callers = 5, 20
	buy := func(round string) func(i int) flow.Command {
		return func(i int) flow.Command {
			return newOrder(fmt.Sprint(round, i), sameAs(fmt.Sprint(i%purchases)), func(c *flow.CreateOrder) {
				c.Lines[0].Quantity, c.Balance.Amount = 1, dec("1")
				c.Purchase.Refuse = i%3 == 0
				if i%purchases == 4 {
					c.Machine = "simple_order"
				}
			})
		}
	}
	first := m.race(purchases*callers, buy("a"))
	owners := strings.Fields(m.text("select string_agg(owner, ' ' order by parts ->> 0) from claim_keys"))
	for n := range purchases {
		made := map[string]int{}
		for i := n; i < len(first); i += purchases {
			made[first[i]]++
		}
		state := owners[n] + " " + map[bool]string{true: "pending", false: "awaiting_payment"}[n == 4]
		if made[state] != 1 || made[state+" existed"]+made["PURCHASE_REPEATED"] != callers-1 {
			t.Errorf("purchase %d of %s: %v", n, owners[n], made)
		}
	}
	m.agrees()
	again := buy("b")
	ends := m.race(purchases*(callers+1), func(i int) flow.Command {
		if i < purchases {
			return cancelOrder(owners[i])
		}
		return again(i)
	})
	for i, end := range ends[:purchases] {
		m.equal("cancelled", end, owners[i]+" cancelled")
	}
	made := m.text(`select string_agg(n::text, ' ') from (select count(*) filter (where i.state <> 'cancelled') as n
		from order_orders o
		join machine_instances i on i.machine = o.machine and i.key = o.order_no group by o.purchase_parts) x`)
	claimed := m.text("select count(*)::text from claim_keys")
	if strings.Count(made, "1") != strings.Count(made+" ", " ")-strings.Count(made, "0") ||
		fmt.Sprint(strings.Count(made, "1")) != claimed {
		t.Errorf("orders that are left of each purchase: %s, claimed %s", made, claimed)
	}
	m.agrees()
}

// Payments, cancellations and the expiry of the time to pay race for the same orders, while others repeat their
// creation or make the same purchase.
func TestOneEndOfEachOrderWins(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled")
	const orders = 60
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for n := range orders {
		wg.Go(func() {
			no := fmt.Sprint("o", n)
			name := []string{"order", "own", "order"}[n%3]
			x := newOrder(no, at(name), sameAs(no), func(c *flow.CreateOrder) {
				if name == "order" {
					remind(c)
				}
				c.Lines[0].Quantity, c.Balance.Amount = 1, dec("0.5")
				c.PayWithin = time.Hour
				if n >= 20 {
					c.PayWithin = time.Duration(1+n*n/10) * time.Millisecond
				}
			})
			if end := m.batch(n%2, x)[0]; refusal(end) {
				t.Error(end)
			}
			var both sync.WaitGroup
			ends := make([]string, 4)
			late := func(k int) { // a delay of some round trips
				for range (n + k) % 4 * 2 {
					m.text("select ''")
				}
			}
			if n < 3 { // so that a cancellation wins sometimes
				ends[2] = m.batch(1, cancelOrder(no))[0]
			}
			both.Go(func() { late(0); ends[0] = m.batch(0, pay(no))[0] })
			both.Go(func() { late(1); ends[1] = m.batch(1, pay(no))[0] })
			if n >= 3 {
				both.Go(func() { late(3); ends[2] = m.batch(1, cancelOrder(no))[0] })
			}
			both.Go(func() { ends[3] = m.batch(0, fire(no, name))[0] })
			y := *x
			both.Go(func() { m.batch(n%2, &y) })
			again := newOrder("again"+no, sameAs(no), plain)
			both.Go(func() { m.batch(1-n%2, again) })
			both.Wait()
			end := m.text("select coalesce((select to_state || ' ' || cause from machine_history where key = $1 "+
				"and revision = 2), 'none')", no)
			mu.Lock()
			defer mu.Unlock()
			won[end]++
			told := count(ends)
			if told[no+" paid"] != map[bool]int{true: 1}[end == "paid pay"] ||
				told[no+" cancelled"] != map[bool]int{true: 1}[end == "cancelled cancel"] ||
				end != "paid pay" && told[no+" paid existed"] > 0 || told["true"] > 0 && end != "cancelled timer" {
				t.Errorf("%s is %s: %v", no, end, ends)
			}
		})
	}
	wg.Wait()
	for n := range orders {
		for _, name := range []string{"order", "own"} {
			m.batch(0, fire(fmt.Sprint("o", n), name))
		}
	}
	if t.Log(won); len(won) < 3 {
		t.Errorf("one of the ends never wins: %v", won)
	}
	m.agrees()
}

// Executes create, pay and cancel several orders each, in different orders: no batches wait for each other, and each
// Execute takes effect as a whole.
func TestExecutesOfOrdersNeverDeadlock(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	const orders = 4
	numbers := func(group, i int) (nos []string) { // in one of four sequences, ascending or descending
		for k := range orders {
			nos = append(nos, fmt.Sprint("o", group, "-", (k*(1+2*(i%2))+i)%orders))
		}
		return nos
	}
	ends := m.race(64, func(i int) flow.Command {
		var all together
		for _, no := range numbers(i/8, i) {
			all = append(all, newOrder(no, sameAs(no), func(c *flow.CreateOrder) {
				c.Lines = []order.Line{{Item: "tea", Quantity: 1}, {Item: "milk", Quantity: 1}}
				c.Balance.Amount = dec("1")
			}))
		}
		for _, no := range numbers(i/8, i+1) {
			if i%4 < 2 {
				all = append(all, pay(no))
			} else {
				all = append(all, cancelOrder(no))
			}
		}
		return all
	})
	for group := range 8 {
		states := m.text(`select string_agg(distinct state, ' ') from machine_instances where key like $1`,
			fmt.Sprint("o", group, "-%"))
		if strings.Contains(states, " ") {
			t.Errorf("group %d: %s", group, states)
		}
	}
	for end, n := range count(ends) {
		if refusal(end) && end != "STATE_TAKEN" && end != "MOVE_NOT_ALLOWED" {
			t.Errorf("%d times %s", n, end)
		}
	}
	m.agrees()
}
