package flow_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// books implements the documented behaviour of orders on maps. Time is counted in minutes.
type books struct {
	now          int
	available    map[string]int64 // by item
	balance      int64
	held         int64
	orders       map[string]bookedOrder
	reservations map[string]bookedReservation // by item and number
	holds        map[string]bookedHold        // by biz_no
	purchases    map[string]bookedPurchase
}

type bookedOrder struct {
	wish         // the request
	state, cause string
	revision     int
	until        int    // when the timer fires; 0: never
	expiry       string // state of its message for the end of the time to pay; empty: none
}

type bookedReservation struct {
	item     string
	quantity int64 // 0: cancelled before it was made
	state    string
	until    int
	own      bool // not of an order
}

type bookedHold struct {
	amount int64
	state  string
	until  int
	own    bool // not of an order
}

type bookedPurchase struct {
	owner string
	until int
}

// wish is a request for an order. It is comparable.
type wish struct {
	machine       string // order, simple_order, or own, whose timer leads to asleep
	amount, paid  int64  // paid: from the balance
	first, second string // items of the lines; empty: no such line
	units         int64  // of each line
	reserve       bool
	within        int // minutes to pay; 0: as the machine says
	purchase      string
	purchaseLife  int
}

func (b *books) clone() *books {
	c := *b
	c.available, c.orders, c.reservations = maps.Clone(b.available), maps.Clone(b.orders), maps.Clone(b.reservations)
	c.holds, c.purchases = maps.Clone(b.holds), maps.Clone(b.purchases)
	return &c
}

func (w *wish) items() (items []string) {
	for _, item := range []string{w.first, w.second} {
		if item != "" {
			items = append(items, item)
		}
	}
	return items
}

// pass ends everything whose time is over.
func (b *books) pass() {
	for key, r := range b.reservations {
		if r.state == stock.Reserved && r.until <= b.now {
			r.state = stock.Expired
			b.available[r.item] += r.quantity
			b.reservations[key] = r
		}
	}
	for no, h := range b.holds {
		if h.state == ledger.Held && h.until <= b.now {
			h.state = ledger.Expired
			b.held -= h.amount
			b.holds[no] = h
		}
	}
	for no, o := range b.orders {
		if o.until > 0 && o.until <= b.now {
			to := map[string]string{"order": "cancelled", "simple_order": "expired", "own": "asleep"}[o.machine]
			o.enter(to, "timer")
			b.orders[no] = o
			if to != "asleep" {
				b.giveBack(no, o)
			}
		}
	}
}

func (o *bookedOrder) enter(state, cause string) {
	o.state, o.cause, o.until = state, cause, 0
	o.revision++
}

// giveBack cancels the parts of an order that are still open.
func (b *books) giveBack(no string, o bookedOrder) {
	if o.reserve {
		for n, item := range o.items() {
			b.cancelReservation(fmt.Sprint(item, " ", no, "/", n+1))
		}
	}
	if h := b.holds[no+"/hold"]; o.paid > 0 && h.state == ledger.Held {
		b.release(no)
	}
	if p := b.purchases[o.purchase]; p.owner == no && p.until > b.now {
		delete(b.purchases, o.purchase)
	}
}

func (b *books) cancelReservation(key string) string {
	r, ok := b.reservations[key]
	item, _, _ := strings.Cut(key, " ")
	switch {
	case !ok:
		b.reservations[key] = bookedReservation{item: item, state: stock.Cancelled}
		return "ok"
	case r.state == stock.Sold:
		return "RESERVATION_ENDED"
	case r.state != stock.Reserved:
		return "ok existed"
	}
	r.state = stock.Cancelled
	b.available[item] += r.quantity
	b.reservations[key] = r
	return "ok"
}

func (b *books) release(no string) string {
	h := b.holds[no+"/hold"]
	switch h.state {
	case "":
		return "HOLD_NOT_FOUND"
	case ledger.Released:
		return "ok existed"
	case ledger.Expired:
		return "HOLD_EXPIRED"
	case ledger.Captured:
		return "HOLD_NOT_HELD"
	}
	h.state = ledger.Released
	b.held -= h.amount
	b.holds[no+"/hold"] = h
	return "ok"
}

func (b *books) create(no string, w wish, refuse, remind bool) string {
	if o, ok := b.orders[no]; ok {
		if o.wish != w {
			return "ORDER_EXISTS_DIFFERENT"
		}
		return fmt.Sprint(no, " ", o.state, " existed")
	}
	if p := b.purchases[w.purchase]; w.purchase != "" && p.until > b.now {
		if refuse {
			return "PURCHASE_REPEATED"
		}
		return fmt.Sprint(p.owner, " ", b.orders[p.owner].state, " existed")
	}
	if w.purchase != "" {
		b.purchases[w.purchase] = bookedPurchase{no, b.now + w.purchaseLife}
	}
	life := w.within
	if life == 0 {
		life = 30
	}
	atOnce := w.paid == w.amount
	if w.machine == "own" && !atOnce && (w.reserve || w.paid > 0 || remind) {
		return "FIELD_INVALID"
	}
	for n, item := range w.items() {
		key := fmt.Sprint(item, " ", no, "/", n+1)
		r, taken := b.reservations[key]
		switch {
		case !w.reserve:
			continue
		case taken && r.quantity == 0:
			return "RESERVATION_ENDED"
		case taken:
			return "ORDER_PART_EXISTS"
		case b.available[item] < w.units:
			return "OUT_OF_STOCK"
		}
		b.available[item] -= w.units
		b.reservations[key] = bookedReservation{item, w.units,
			map[bool]string{true: stock.Sold, false: stock.Reserved}[atOnce], b.now + life, false}
	}
	if w.paid > 0 {
		if _, taken := b.holds[no+"/hold"]; taken && !atOnce {
			return "ORDER_PART_EXISTS"
		}
		if b.balance-b.held < w.paid {
			return "INSUFFICIENT_FUNDS"
		}
		if atOnce {
			b.balance -= w.paid
		} else {
			b.held += w.paid
			b.holds[no+"/hold"] = bookedHold{w.paid, ledger.Held, b.now + life, false}
		}
	}
	o := bookedOrder{wish: w, state: map[string]string{"order": "awaiting_payment"}[w.machine], cause: "creation",
		revision: 1, until: b.now + life}
	if o.state == "" {
		o.state = "pending"
	}
	if remind {
		o.expiry = notify.Queued
	}
	if atOnce {
		o.expiry = ""
		o.enter("paid", "balance")
	}
	b.orders[no] = o
	return fmt.Sprint(no, " ", o.state)
}

// move moves an order to a state. If from is set, the order must be in that state.
func (b *books) move(no, to, from, cause string) string {
	o, ok := b.orders[no]
	cancels := o.state == "cancelled" || o.state == "expired"
	if to == "" && cancels {
		to = o.state // a cancellation
	} else if to == "" {
		to = "cancelled"
	}
	switch {
	case !ok:
		return "ORDER_NOT_FOUND"
	case o.state == to && o.cause == cause:
		return fmt.Sprint(no, " ", to, " existed")
	case o.state == to:
		return "STATE_TAKEN"
	case from == "refunding" && o.machine != "order":
		return "FIELD_INVALID"
	case from != "" && o.state != from:
		return "STATE_CHANGED"
	case to == "refunding" && o.machine != "order":
		return "FIELD_INVALID"
	case to == "refunding" && o.state != "paid":
		return "MOVE_NOT_ALLOWED"
	case to == "paid" && o.state == "refunding" && from == "":
		return "MOVE_INPUT_MISSING"
	case to == "paid" && o.state != "refunding" && o.state != "awaiting_payment" && o.state != "pending" &&
		o.state != "asleep":
		return "MOVE_NOT_ALLOWED"
	case to == "cancelled" && o.state != "awaiting_payment" && o.state != "pending" && o.state != "asleep":
		return "MOVE_NOT_ALLOWED"
	}
	if to == "paid" {
		if end := b.confirm(no, o); end != "" {
			return end
		}
	}
	o.enter(to, cause)
	if o.expiry != "" && to != "refunding" {
		o.expiry = notify.Cancelled
	}
	b.orders[no] = o
	if to == "cancelled" {
		b.giveBack(no, o)
	}
	return fmt.Sprint(no, " ", to)
}

// confirm sells the units that an order has reserved, and captures its hold. It returns the reason if a part was freed.
func (b *books) confirm(no string, o bookedOrder) string {
	for n, item := range o.items() {
		key := fmt.Sprint(item, " ", no, "/", n+1)
		r := b.reservations[key]
		if !o.reserve || r.state == stock.Sold {
			continue
		}
		if r.state != stock.Reserved {
			return "RESERVATION_ENDED"
		}
		r.state = stock.Sold
		b.reservations[key] = r
	}
	h := b.holds[no+"/hold"]
	switch {
	case o.paid == 0 || o.paid == o.amount || h.state == ledger.Captured:
		return ""
	case h.state == ledger.Expired:
		return "HOLD_EXPIRED"
	case h.state == ledger.Released:
		return "HOLD_NOT_HELD"
	}
	h.state = ledger.Captured
	b.balance -= h.amount
	b.held -= h.amount
	b.holds[no+"/hold"] = h
	return ""
}

// reserve reserves 2 units for a caller whose number may be that of an order's part.
func (b *books) reserve(item, no string) string {
	key := item + " " + no
	switch r, ok := b.reservations[key]; {
	case ok && r.quantity == 0:
		return "RESERVATION_ENDED"
	case ok && r.own:
		return "ok existed"
	case ok:
		return "RESERVATION_EXISTS_DIFFERENT"
	case b.available[item] < 2:
		return "OUT_OF_STOCK"
	}
	b.available[item] -= 2
	b.reservations[key] = bookedReservation{item, 2, stock.Reserved, b.now + 15, true}
	return "ok"
}

// rows are the orders, reservations and holds as text.
func (b *books) rows() (rows []string) {
	for no, o := range b.orders {
		rows = append(rows, fmt.Sprintf("%s %s %d %s", no, o.state, o.revision, o.cause))
		if o.expiry != "" {
			rows = append(rows, no+" expiry "+o.expiry)
		}
	}
	for key, r := range b.reservations {
		rows = append(rows, fmt.Sprintf("%s %d %s", key, r.quantity, r.state))
	}
	for no, h := range b.holds {
		rows = append(rows, no+" "+h.state)
	}
	for key, p := range b.purchases {
		if p.until > b.now {
			rows = append(rows, key+" is "+p.owner)
		}
	}
	for item, n := range b.available {
		rows = append(rows, fmt.Sprintf("%s %d", item, n))
	}
	rows = append(rows, fmt.Sprintf("money %d %d", b.balance, b.held))
	slices.Sort(rows)
	return rows
}

// orderPlay runs random commands on orders, in a tenant of its own.
type orderPlay struct {
	*rapid.T
	market  *market
	caller  commit.Caller
	books   *books
	made    int
	wishes  map[string]wish // the last one of each order
	waiting []bookedCommand
}

// bookedCommand is a command with the outcome in the model.
type bookedCommand struct {
	command flow.Command
	end     func(*books) string
}

var (
	someOrders = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
	someItems  = rapid.SampledFrom([]string{"tea", "milk"})
)

func (p *orderPlay) begin() {
	zero := dec("0")
	all := together{flow.Ledger(&ledger.CreateAssetsCommand{Caller: p.caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}),
		flow.Ledger(&ledger.CreateAccountsCommand{Caller: p.caller,
			Accounts: []ledger.NewAccount{{Code: "world", Asset: "CNY", Kind: "equity"},
				{Code: user(0), Asset: "CNY", Kind: "liability", Min: &zero}}}), p.fund(9),
		flow.Machine(machine.NewDefine(p.caller, "own", &machine.Definition{States: []machine.State{
			{Name: "pending", Initial: true, Timer: &machine.Timer{AfterMs: 30 * time.Minute.Milliseconds(),
				To: "asleep"}}, {Name: "asleep"},
			{Name: "paid", Parts: machine.ConfirmParts}, {Name: "cancelled", Parts: machine.CancelParts}},
			Moves: []machine.Allowed{{From: []string{"pending"}, To: "asleep", By: []machine.Actor{machine.ByTimer}},
				{From: []string{"pending", "asleep"}, To: "paid"},
				{From: []string{"pending", "asleep"}, To: "cancelled"}}}))}
	for item, segments := range map[string]int{"tea": 1, "milk": 3} {
		all = append(all, flow.Stock(&stock.PutItemCommand{Caller: p.caller, Item: item, Segments: segments}),
			p.restock(item, 7))
	}
	p.waiting = []bookedCommand{{all, func(*books) string { return "ok; ok; ok; ok; ok; ok; ok; ok" }}}
	p.commit()
}

func (p *orderPlay) fund(n int64) flow.Command {
	p.made++
	t := transfer(fmt.Sprint("fund", p.made), "world", user(0), fmt.Sprint(n))
	t.Caller = p.caller
	return flow.Ledger(t)
}

func (p *orderPlay) restock(item string, n int64) flow.Command {
	p.made++
	return flow.Stock(&stock.ChangeCommand{Caller: p.caller, Item: item, ChangeNo: fmt.Sprint(p.made),
		Kind: stock.Restock, Quantity: n})
}

// any returns a random command.
func (p *orderPlay) any(r *rapid.T) bookedCommand {
	no := someOrders.Draw(r, "order")
	switch kind := rapid.SampledFrom([]string{"create", "again", "create", "pay", "pay", "cancel", "refund", "back",
		"cancel part",
		"release", "reserve", "hold", "more"}).Draw(r, "kind"); kind {
	case "create":
		return p.create(r, no)
	case "again":
		w, ok := p.wishes[no]
		if !ok {
			return p.create(r, no)
		}
		return p.want(no, w, false, false)
	case "pay":
		return p.move(no, "paid", "", rapid.SampledFrom([]string{"p", "q"}).Draw(r, "cause"))
	case "cancel":
		return p.move(no, "", "", flow.CauseCancel)
	case "refund":
		return p.move(no, "refunding", "", "r")
	case "back":
		return p.move(no, "paid", "refunding", "off")
	case "cancel part":
		item, part := someItems.Draw(r, "item"), rapid.SampledFrom([]string{"/1", "/2"}).Draw(r, "part")
		return bookedCommand{flow.Stock(&stock.CancelCommand{Caller: p.caller, Item: item, ReservationNo: no + part}),
			func(b *books) string { return b.cancelReservation(item + " " + no + part) }}
	case "release":
		return bookedCommand{flow.Ledger(ledger.ReleaseOf(p.caller, 0, no+"/hold")),
			func(b *books) string { return b.release(no) }}
	case "reserve":
		item := someItems.Draw(r, "item")
		return bookedCommand{flow.Stock(&stock.ReserveCommand{Caller: p.caller, Item: item, ReservationNo: no + "/2",
			Quantity: 2,
			Life:     15 * time.Minute}), func(b *books) string { return b.reserve(item, no+"/2") }}
	case "hold":
		h := hold(no+"/hold", user(0), "", "0.01", time.Second)
		h.Caller, h.Amount, h.Life = p.caller, dec("1"), 7*time.Minute
		return bookedCommand{flow.Ledger(h), func(b *books) string {
			switch h, taken := b.holds[no+"/hold"]; {
			case h.own:
				return "ok existed"
			case taken:
				return "BIZ_NO_EXISTS_DIFFERENT"
			}
			if b.balance-b.held < 1 {
				return "INSUFFICIENT_FUNDS"
			}
			b.held++
			b.holds[no+"/hold"] = bookedHold{1, ledger.Held, b.now + 7, true}
			return "ok"
		}}
	default:
		item := someItems.Draw(r, "item")
		return bookedCommand{together{p.fund(3), p.restock(item, 2)}, func(b *books) string {
			b.balance += 3
			b.available[item] += 2
			return "ok; ok"
		}}
	}
}

func (p *orderPlay) create(r *rapid.T, no string) bookedCommand {
	w := wish{machine: rapid.SampledFrom([]string{"order", "order", "simple_order", "own"}).Draw(r, "machine"),
		amount:   rapid.SampledFrom([]int64{4, 5, 6, 0}).Draw(r, "amount"),
		units:    rapid.Int64Range(1, 4).Draw(r, "units"),
		within:   rapid.SampledFrom([]int{0, 0, 10, 50}).Draw(r, "within"),
		purchase: rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "purchase")}
	w.paid = min(w.amount, rapid.SampledFrom([]int64{0, 2, 3, 1, 0, 6}).Draw(r, "paid"))
	switch rapid.IntRange(0, 3).Draw(r, "lines") {
	case 0:
		w.units = 0
	case 1:
		w.first = someItems.Draw(r, "first")
	case 2, 3:
		w.first, w.second = someItems.Draw(r, "first"), someItems.Draw(r, "second")
	}
	w.reserve = w.first != "" && rapid.Bool().Draw(r, "reserve")
	if w.purchase != "" {
		w.purchaseLife = rapid.SampledFrom([]int{5, 60}).Draw(r, "life")
	}
	return p.want(no, w, rapid.Bool().Draw(r, "refuse"), rapid.Bool().Draw(r, "remind"))
}

// want returns the command that creates an order.
func (p *orderPlay) want(no string, w wish, refuse, remind bool) bookedCommand {
	p.wishes[no] = w
	c := &flow.CreateOrder{Caller: p.caller, OrderNo: no,
		Facts: order.Facts{Machine: w.machine, Subject: "ann", Asset: "CNY",
			Amount: dec(fmt.Sprint(w.amount)), Payee: "world", PayWithin: time.Duration(w.within) * time.Minute,
			Reserve: w.reserve}}
	for _, item := range w.items() {
		c.Lines = append(c.Lines, order.Line{Item: item, Quantity: w.units})
	}
	if w.paid > 0 {
		c.Balance = &order.Balance{Account: user(0), Amount: dec(fmt.Sprint(w.paid))}
	}
	if w.purchase != "" {
		c.Purchase = &order.Purchase{Parts: []string{w.purchase}, Life: time.Duration(w.purchaseLife) * time.Minute,
			Refuse: refuse}
	}
	if remind {
		m := reminder(no)
		m.Caller = p.caller
		c.ExpiryMessages = []notify.SendCommand{m}
	}
	return bookedCommand{c, func(b *books) string { return b.create(no, w, refuse, remind) }}
}

func (p *orderPlay) move(no, to, from, cause string) bookedCommand {
	c := &flow.MoveOrder{Caller: p.caller, OrderNo: no, Cancel: to == "",
		Params: machine.MoveParams{To: to, From: from, Cause: cause}}
	return bookedCommand{c, func(b *books) string { return b.move(no, to, from, cause) }}
}

// several returns a command of up to four commands.
func (p *orderPlay) several(r *rapid.T) bookedCommand {
	var all []bookedCommand
	var commands together
	for range rapid.IntRange(2, 4).Draw(r, "several") {
		all = append(all, p.any(r))
		commands = append(commands, all[len(all)-1].command)
	}
	return bookedCommand{commands, func(b *books) string {
		var ends []string
		for _, x := range all {
			end := x.end(b)
			if refusal(end) {
				return end
			}
			ends = append(ends, end)
		}
		return strings.Join(ends, "; ")
	}}
}

// commit runs the waiting commands in one batch, and compares their outcomes.
func (p *orderPlay) commit() {
	p.Helper()
	works := make([]flow.Submission, len(p.waiting))
	for i, w := range p.waiting {
		works[i] = flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: rowsOf(w.command), Bytes: 400,
			Command: w.command}
	}
	p.books.pass()
	for i, r := range p.market.engines[len(works)%2].DoAll(context.Background(), works) {
		next := p.books.clone()
		got, want := ordered(r), p.waiting[i].end(next)
		if got != want {
			p.Fatalf("command %d of %d: %+v\n got %s\nwant %s", i, len(works), p.waiting[i].command, got, want)
		}
		if !refusal(want) {
			p.books = next
		}
	}
	p.waiting = nil
}

// compare does the scheduler's work, and compares the rows with the model.
func (p *orderPlay) compare() {
	p.commit()
	for no, o := range p.books.orders {
		p.waiting = append(p.waiting, bookedCommand{flow.Fire(&machine.FireCommand{Caller: p.caller,
			Key: machine.Key{Tenant: p.caller.Tenant, Machine: o.machine, Key: no}}), nil})
	}
	for item := range p.books.available {
		p.waiting = append(p.waiting,
			bookedCommand{flow.Stock(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: p.caller.Tenant, Item: item}}),
				nil})
	}
	p.waiting = append(p.waiting, bookedCommand{flow.Ledger(&ledger.ExpireCommand{
		Account: ledger.AccountKey{Tenant: p.caller.Tenant, Code: user(0), Asset: "CNY"}}), nil})
	for _, w := range p.waiting {
		if _, err := p.market.engines[0].Do(context.Background(),
			flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: 2,
				Bytes: 400, Command: w.command}); err != nil {
			p.Fatal(err)
		}
	}
	p.waiting = nil
	got := p.market.text(`select coalesce(string_agg(line, E'\n' order by line collate "C"), '') from (
		select concat_ws(' ', o.order_no, i.state, i.revision, i.cause) as line from order_orders o
		join machine_instances i
			on i.tenant_id = o.tenant_id and i.machine = o.machine and i.key = o.order_no where o.tenant_id = $1
		union all select o.order_no || ' expiry ' || n.state from order_orders o
			cross join lateral jsonb_array_elements_text(o.expiry_messages) e (id)
			join audit.notifications n on n.message_id = e.id::bigint where o.tenant_id = $1
		union all select concat_ws(' ', item, reservation_no, quantity, state) from stock_reservations
		where tenant_id = $1
		union all select biz_no || ' ' || state from ledger_holds where tenant_id = $1
		union all select (parts ->> 0) || ' is ' || owner from claim_keys where tenant_id = $1
		and expires_at > clock_timestamp()
		union all select item || ' ' || sum(available) from stock_items where tenant_id = $1 group by item
		union all select format('money %s %s', (balance / 100)::bigint, (held / 100)::bigint) from ledger_accounts
		where tenant_id = $1 and code = 'user:0'
		) l`, p.caller.Tenant)
	if want := strings.Join(p.books.rows(), "\n"); got != want {
		p.Fatalf("rows\n%s\nwant\n%s", got, want)
	}
}

// TestOrdersMatchAModel runs random commands, alone and together, several in a batch and on two engines, and lets time
// pass.
func TestOrdersMatchAModel(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	var plays, minutes atomic.Int32
	rapid.Check(t, func(r *rapid.T) {
		p := &orderPlay{T: r, market: m, wishes: map[string]wish{}, caller: caller}
		p.books = &books{available: map[string]int64{"tea": 7, "milk": 7}, balance: 9,
			orders: map[string]bookedOrder{}, reservations: map[string]bookedReservation{},
			holds:     map[string]bookedHold{},
			purchases: map[string]bookedPurchase{}}
		p.caller.Tenant = 100 + plays.Add(1)
		p.begin()
		add := func(r *rapid.T) { p.waiting = append(p.waiting, p.any(r)) }
		r.Repeat(map[string]func(*rapid.T){
			"one": add, "two": add, "three": add,
			"several": func(r *rapid.T) { p.waiting = append(p.waiting, p.several(r)) },
			"commit":  func(*rapid.T) { p.commit() },
			"wait": func(r *rapid.T) {
				p.commit()
				n := rapid.SampledFrom([]int{1, 5, 6, 11, 29, 40}).Draw(r, "minutes")
				m.clock.Set(t, time.Duration(minutes.Add(int32(n)))*time.Minute)
				p.books.now += n
			},
			"scheduler": func(*rapid.T) { p.books.pass(); p.compare() },
		})
		p.commit()
		p.books.pass()
		p.compare()
	})
}
