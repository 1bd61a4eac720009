package flow_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// market is two engines on one database, like two servers, with a clock that the test sets. user:0 has 50. 100 units of
// tea and 100 of milk are stocked; milk has three segments.
type market struct {
	testing.TB
	super   *pgxpool.Pool
	app     *pgxpool.Pool
	clock   pgtest.ShiftedClock
	engines [2]*flow.Engine
	counts  [2]*prometheus.Registry
	// culprits is how many commands the database is expected to reject.
	culprits float64
}

func newMarket(t testing.TB) *market {
	t.Helper()
	db := pgtest.New(t)
	m := &market{TB: t, clock: pgtest.ShiftClock(t, db)}
	m.super, m.app = pgtest.Pool(t, db.SuperDSN), pgtest.Pool(t, db.AllDSN)
	for i := range m.engines {
		pool, err := pg.Open(context.Background(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		m.counts[i] = prometheus.NewRegistry()
		m.engines[i] = flow.NewSendingEngine(pool, fmt.Sprint(t.Name(), i), commit.NewMetrics(m.counts[i]), nil,
			&notify.Outbox{Master: secret.New(), Instance: "test", Stored: storedTexts})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := m.engines[i].Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
			for name, want := range map[string]float64{"deadlocks": 0, "panics": 0, "culprits": m.culprits} {
				if n := pgtest.Counter(t, m.counts[i], "ledgerd_commit_"+name+"_total"); n > want {
					t.Errorf("%v %s", n, name)
				}
			}
		})
	}
	zero := dec("0")
	accounts := []ledger.NewAccount{{Code: "world", Asset: "CNY", Kind: "equity"}}
	for i := range 4 {
		accounts = append(accounts, ledger.NewAccount{Code: user(i), Asset: "CNY", Kind: "liability", Min: &zero})
	}
	m.wants(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}), "ok")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: accounts}), "ok")
	m.wants(flow.Ledger(transfer("fund", "world", user(0), "50")), "ok")
	for item, segments := range map[string]int{"tea": 0, "milk": 3} {
		m.wants(flow.Stock(&stock.PutItemCommand{Caller: caller, Item: item, Segments: segments}), "ok")
		m.wants(flow.Stock(&stock.ChangeCommand{Caller: caller, Item: item, ChangeNo: "first", Kind: stock.Restock,
			Quantity: 100}), "ok")
	}
	return m
}

// newOrder returns an order of 10 that reserves 3 units of tea. user:0 pays 4 of the amount.
func newOrder(no string, change ...func(*flow.CreateOrder)) *flow.CreateOrder {
	c := &flow.CreateOrder{Caller: caller, OrderNo: no,
		Facts: order.Facts{Machine: machine.OrderMachine, Subject: "ann",
			Asset: "CNY", Amount: dec("10"), Lines: []order.Line{{Item: "tea", Quantity: 3}}, Reserve: true,
			Payee:   "world",
			Balance: &order.Balance{Account: user(0), Amount: dec("4")}}}
	for _, f := range change {
		f(c)
	}
	return c
}

// at selects another machine for an order.
func at(machine string) func(*flow.CreateOrder) {
	return func(c *flow.CreateOrder) { c.Machine = machine }
}

// sameAs gives an order a purchase with these parts.
func sameAs(parts ...string) func(*flow.CreateOrder) {
	return func(c *flow.CreateOrder) { c.Purchase = &order.Purchase{Parts: parts, Life: time.Hour} }
}

// paidAtOnce lets the balance pay everything.
func paidAtOnce(c *flow.CreateOrder) { c.Balance.Amount = c.Amount }

// plain leaves an order without parts.
func plain(c *flow.CreateOrder) { c.Reserve, c.Balance = false, nil }

func moveOrder(no, to, cause string, change ...func(*flow.MoveOrder)) *flow.MoveOrder {
	c := &flow.MoveOrder{Caller: caller, OrderNo: no, Params: machine.MoveParams{To: to, Cause: cause}}
	for _, f := range change {
		f(c)
	}
	return c
}

func pay(no string) *flow.MoveOrder { return moveOrder(no, "paid", "pay") }

func cancelOrder(no string) *flow.MoveOrder {
	return &flow.MoveOrder{Caller: caller, OrderNo: no, Cancel: true,
		Params: machine.MoveParams{Cause: flow.CauseCancel}}
}

// fire records the move of an order's timer, as the scheduler does.
func fire(no, machineName string) flow.Command {
	return flow.Fire(&machine.FireCommand{Caller: caller, Key: machine.Key{Tenant: 1, Machine: machineName, Key: no}})
}

func item(c commit.Command[*stock.Tx]) flow.Command { return flow.Stock(c) }

// reservation returns a reservation with the content of newOrder's first line.
func reservation(itemName, no string) *stock.ReserveCommand {
	ref, _, _ := strings.Cut(no, "/")
	return &stock.ReserveCommand{Caller: caller, Item: itemName, ReservationNo: no, Quantity: 3,
		Life: machine.UnpaidFor, Ref: ref}
}

// deduct sells units of tea.
func deduct(no string, n int64) flow.Command {
	return item(&stock.ReserveCommand{Caller: caller, Item: "tea", ReservationNo: no, Quantity: n,
		Ref: strings.TrimSuffix(no, "/1")})
}

// cancelPart cancels the reservation of an order's first line.
func cancelPart(no string) flow.Command {
	return item(&stock.CancelCommand{Caller: caller, Item: "tea", ReservationNo: no + "/1"})
}

// together runs several commands as one, such as those of an Execute.
type together []flow.Command

func (t together) Need(tx *flow.Tx) {
	for _, c := range t {
		c.Need(tx)
	}
}

func (t together) Apply(tx *flow.Tx) (any, error) {
	var ends []string
	for _, c := range t {
		answer, err := c.Apply(tx)
		if err != nil {
			return nil, err
		}
		ends = append(ends, describeOrder(answer, nil))
	}
	return strings.Join(ends, "; "), nil
}

// rowsOf returns the number of rows that package rpc declares for a command.
func rowsOf(c flow.Command) int {
	switch x := c.(type) {
	case *flow.CreateOrder:
		return x.Rows()
	case *flow.MoveOrder:
		return 3
	case *flow.Grab:
		return 6
	case together:
		n := 0
		for _, c := range x {
			n += rowsOf(c)
		}
		return n
	}
	return 2
}

func describeOrder(answer any, err error) string {
	existed := ""
	if r, ok := answer.(commit.Repeat); ok {
		answer, existed = r.First, " existed"
	}
	switch f := fault.Of(err); {
	case f != nil:
		return f.Reason.Name
	case err != nil:
		return err.Error()
	}
	switch a := answer.(type) {
	case order.View:
		return fmt.Sprint(a.OrderNo, " ", a.State.State, existed)
	case bool, string:
		return fmt.Sprint(a)
	}
	return cmp.Or(describeFair(answer), "ok") + existed
}

func ordered(r commit.Result) string {
	if r.Outcome.Existed {
		r.Outcome.Answer = commit.Repeat{First: r.Outcome.Answer}
	}
	return describeOrder(r.Outcome.Answer, r.Err)
}

// batch runs commands on an engine, in one batch if no others are running.
func (m *market) batch(engine int, commands ...flow.Command) (ends []string) {
	m.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Rows: rowsOf(c), Bytes: 400, Command: c}
	}
	for _, r := range m.engines[engine].DoAll(context.Background(), submissions) {
		ends = append(ends, ordered(r))
	}
	return ends
}

// wants runs a command and compares its outcome.
func (m *market) wants(c flow.Command, want string) {
	m.Helper()
	if got := m.batch(0, c)[0]; got != want {
		m.Errorf("%T\n got %s\nwant %s", c, got, want)
	}
}

func (m *market) text(query string, args ...any) (s string) {
	m.Helper()
	if err := m.super.QueryRow(context.Background(), query, args...).Scan(&s); err != nil {
		m.Fatal(err)
	}
	return s
}

// rowsOfOrder returns the rows of an order, and all rows that have the number of one of its parts.
func (m *market) rowsOfOrder(no string) string {
	m.Helper()
	return m.text(`select concat_ws(', ',
		(select 'order' from order_orders where order_no = $1),
		(select string_agg(concat_ws(' ', case when machine <> 'order' then machine end, state, revision, cause), ', ')
		from machine_instances where key = $1),
		(select string_agg(concat_ws(' ', quantity, item, state), ', ' order by item, reservation_no collate "C")
		from stock_reservations where reservation_no ~ ('^' || $1 || '/\d+$')),
		(select 'hold ' || state from ledger_holds where biz_no = $1 || '/hold'),
		(select 'transfer' from ledger_transfers where biz_no = $1 || '/pay'),
		(select 'purchase' from claim_keys where scope = 'order.purchase' and owner = $1))`, no)
}

func (m *market) wantRows(no, want string) {
	m.Helper()
	if got := m.rowsOfOrder(no); got != want {
		m.Errorf("%s\n got %s\nwant %s", no, got, want)
	}
}

// wantLeft compares the available units of tea and milk, and the balance and the held amount of user:0.
func (m *market) wantLeft(want string) {
	m.Helper()
	if got := m.text(`select format('tea %s, milk %s, ann %s held %s', (select sum(available) from stock_items
		where item = 'tea'),
		(select sum(available) from stock_items where item = 'milk'), (balance / 100)::bigint, (held / 100)::bigint)
		from ledger_accounts where code = 'user:0'`); got != want {
		m.Errorf("\n got %s\nwant %s", got, want)
	}
}

// define stores a machine of a tenant's own: pending, then paid or cancelled, with a timer to a state.
func (m *market) define(name, timer string, change ...func(*machine.Definition)) {
	m.Helper()
	d := &machine.Definition{States: []machine.State{{Name: "pending", Initial: true},
		{Name: "paid", Parts: machine.ConfirmParts},
		{Name: "cancelled", Parts: machine.CancelParts}, {Name: "asleep"}},
		Moves: []machine.Allowed{{From: []string{"pending", "asleep"}, To: "paid"},
			{From: []string{"pending", "asleep"}, To: "cancelled",
				By: []machine.Actor{machine.ByCaller, machine.ByTimer}},
			{From: []string{"pending"}, To: "asleep", By: []machine.Actor{machine.ByCaller, machine.ByTimer}}}}
	if timer != "" {
		d.States[0].Timer = &machine.Timer{AfterMs: time.Hour.Milliseconds(), To: timer}
	}
	for _, f := range change {
		f(d)
	}
	m.wants(flow.Machine(machine.NewDefine(caller, name, d)), "ok")
}

const (
	open   = "order, awaiting_payment 1 creation, 3 tea reserved, hold held"
	bought = "order, paid 2 pay, 3 tea sold, hold captured, transfer"
	given  = "order, cancelled 2 cancel, 3 tea cancelled, hold released"
)

// The operations of an Execute see the effects of earlier operations on the same order.
func TestOrderIsCreatedAndEndedTogether(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled")
	for no, x := range map[string]struct {
		commands together
		end      string
		rows     string
	}{
		"paid": {together{newOrder("paid"), pay("paid")}, "paid awaiting_payment; paid paid", bought},
		"cancelled": {together{newOrder("cancelled"), cancelOrder("cancelled")},
			"cancelled awaiting_payment; cancelled cancelled", given},
		"own": {together{newOrder("own", at("own")), pay("own")}, "own pending; own paid",
			"order, own paid 2 pay, 3 tea sold, hold captured, transfer"},
		"early": {together{pay("early"), newOrder("early")}, "ORDER_NOT_FOUND", ""},
		"twice": {together{newOrder("twice"), newOrder("twice"), pay("twice"), pay("twice")},
			"twice awaiting_payment; twice awaiting_payment existed; twice paid; twice paid existed", bought},
		"both":  {together{newOrder("both"), pay("both"), cancelOrder("both")}, "MOVE_NOT_ALLOWED", ""},
		"other": {together{newOrder("other"), newOrder("other", plain), pay("other")}, "ORDER_EXISTS_DIFFERENT", ""},
		"poor": {together{newOrder("poor"), pay("poor"), flow.Ledger(transfer("t", user(1), "world", "1"))},
			"INSUFFICIENT_FUNDS", ""},
		"again": {together{newOrder("again", sameAs("x")), cancelOrder("again"), newOrder("again2", sameAs("x"))},
			"again awaiting_payment; again cancelled; again2 awaiting_payment", given},
		"itself": {together{newOrder("itself"), cancelPart("itself"), pay("itself")}, "RESERVATION_ENDED", ""},
	} {
		m.wants(x.commands, x.end)
		m.wantRows(no, x.rows)
	}
	m.wantRows("again2", open+", purchase")
	m.wantLeft("tea 88, milk 100, ann 38 held 4")
}

// Each command of a batch needs rows that only its order names, and loads them in another attempt. Commands of one
// Execute need one attempt each.
func TestManyOrdersEndTogether(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled")
	var creates, cancels together
	for i := range 20 {
		c := newOrder(fmt.Sprint("o", i), sameAs(fmt.Sprint(i)), func(c *flow.CreateOrder) {
			c.Balance.Amount = dec("1")
			c.Lines = append(c.Lines, order.Line{Item: "milk", Quantity: 1}, order.Line{Item: "milk", Quantity: 2})
		})
		if i%2 == 1 {
			c.Machine = "own"
		}
		creates, cancels = append(creates, c), append(cancels, cancelOrder(c.OrderNo))
	}
	for _, c := range creates {
		if got := m.batch(0, c)[0]; !strings.HasSuffix(got, "awaiting_payment") && !strings.HasSuffix(got, "pending") {
			m.Error(got)
		}
	}
	m.wantLeft("tea 40, milk 40, ann 50 held 20")
	if got := m.batch(1, cancels)[0]; strings.Count(got, "cancelled") != 20 {
		m.Error(got)
	}
	m.wantLeft("tea 100, milk 100, ann 50 held 0")
	if n := m.text("select count(*)::text from claim_keys"); n != "0" {
		m.Errorf("%s purchases are still claimed", n)
	}
}

// Another call may have used the number of any part, even with the same content: then the order is refused, and leaves
// nothing.
func TestOrderTakesNoPartOfAnotherCall(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	h := func(no string) flow.Command {
		return flow.Ledger(hold(no+"/hold", user(0), "world", "4", machine.UnpaidFor))
	}
	for no, x := range map[string]struct {
		before, order flow.Command
		end, kind     string
	}{
		"same":      {item(reservation("tea", "same/1")), newOrder("same"), "ORDER_PART_EXISTS", "reservation"},
		"sold":      {deduct("sold/1", 1), newOrder("sold"), "ORDER_PART_EXISTS", "reservation"},
		"cancelled": {cancelPart("cancelled"), newOrder("cancelled"), "RESERVATION_ENDED", ""},
		"ended": {together{item(reservation("tea", "ended/1")), cancelPart("ended")}, newOrder("ended"),
			"ORDER_PART_EXISTS", "reservation"},
		"bought": {deduct("bought/1", 3), newOrder("bought", paidAtOnce), "ORDER_PART_EXISTS", "reservation"},
		"hold":   {h("hold"), newOrder("hold"), "ORDER_PART_EXISTS", "hold"},
		"released": {together{h("released"), flow.Ledger(ledger.ReleaseOf(caller, 0, "released/hold"))},
			newOrder("released"),
			"ORDER_PART_EXISTS", "hold"},
		"pays": {flow.Ledger(transfer("pays/pay", "world", user(1), "1")), newOrder("pays", paidAtOnce),
			"ORDER_PART_EXISTS", "transfer"},
		"captures": {flow.Ledger(transfer("captures/pay", "world", user(1), "1")), newOrder("captures"),
			"ORDER_PART_EXISTS", "transfer"},
		"instance": {flow.Machine(&machine.CreateCommand{Caller: caller,
			CreateParams: machine.CreateParams{Machine: "order",
				Key: "instance", Owner: "ann"}}), newOrder("instance"), "ORDER_PART_EXISTS", "instance"},
		"other": {flow.Machine(&machine.CreateCommand{Caller: caller,
			CreateParams: machine.CreateParams{Machine: "order",
				Key: "other", Owner: "bob"}}), newOrder("other"), "ORDER_PART_EXISTS", "instance"},
	} {
		if got := m.batch(0, x.before)[0]; strings.ToUpper(got) == got {
			m.Fatalf("%s: %s", no, got)
		}
		before := m.rowsOfOrder(no)
		_, err := m.engines[1].Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 5, Bytes: 400,
			Command: x.order})
		if f := fault.Of(err); f == nil || f.Reason.Name != x.end || f.Metadata["kind"] != x.kind {
			m.Errorf("%s: %v", no, err)
		}
		m.wantRows(no, before)
	}
}
