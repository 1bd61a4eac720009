package flow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// refusal reports whether an outcome is a reason.
func refusal(end string) bool { return strings.ToUpper(end) == end }

// A caller may end a part of an order directly. The payment of the order fails if the part was freed. A cancellation,
// by a caller or by the timer, leaves the ended part unchanged.
func TestPartsThatACallerEnded(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	confirm := func(no string) flow.Command {
		return item(&stock.ConfirmCommand{Caller: caller, Item: "tea", ReservationNo: no + "/1"})
	}
	take := func(n string) func(no string) flow.Command {
		return func(no string) flow.Command { return flow.Ledger(capture(no+"-own", no+"/hold", n)) }
	}
	cases := []struct {
		what string
		part func(no string) flow.Command
		pay  string // outcome of the payment, and the rows after it
		rows string
		// Rows of the parts after a cancellation, and after the time to pay.
		cancelled, expired string
	}{
		{"confirm", confirm, "paid", bought, "3 tea sold, hold released", "3 tea sold, hold expired"},
		{"cancel", cancelPart, "RESERVATION_ENDED", "order, awaiting_payment 1 creation, 3 tea cancelled, hold held",
			"3 tea cancelled, hold released", "3 tea cancelled, hold expired"},
		{"release", func(no string) flow.Command { return flow.Ledger(ledger.ReleaseOf(caller, 0, no+"/hold")) },
			"HOLD_NOT_HELD", "order, awaiting_payment 1 creation, 3 tea reserved, hold released",
			"3 tea cancelled, hold released", "3 tea expired, hold released"},
		{"all", take("1"), "HOLD_NOT_HELD", "order, awaiting_payment 1 creation, 3 tea reserved, hold captured",
			"3 tea cancelled, hold captured", "3 tea expired, hold captured"},
		{"some", take("0.4"), "paid", bought, "3 tea cancelled, hold released", "3 tea expired, hold expired"},
		{"number", func(no string) flow.Command { return flow.Ledger(transfer(no+"/pay", "world", user(3), "1")) },
			"ORDER_PART_EXISTS", open + ", transfer", "3 tea cancelled, hold released, transfer",
			"3 tea expired, hold expired, transfer"},
	}
	for _, x := range cases {
		for _, end := range []string{"-paid", "-cancelled", "-expired"} {
			no := x.what + end
			m.wants(newOrder(no, func(c *flow.CreateOrder) { c.Balance.Amount = dec("1") }), no+" awaiting_payment")
			if got := m.batch(1, x.part(no))[0]; refusal(got) {
				t.Errorf("%s: %s", no, got)
			}
		}
		m.equal(x.what, strings.TrimPrefix(m.batch(1, pay(x.what+"-paid"))[0], x.what+"-paid "), x.pay)
		m.wantRows(x.what+"-paid", x.rows)
		m.wants(cancelOrder(x.what+"-cancelled"), x.what+"-cancelled cancelled")
		m.wantRows(x.what+"-cancelled", "order, cancelled 2 cancel, "+x.cancelled)
	}
	m.clock.Set(t, 31*time.Minute)
	for _, x := range cases {
		m.wants(fire(x.what+"-expired", "order"), "true")
		m.wantRows(x.what+"-expired", "order, cancelled 2 timer, "+x.expired)
	}
}

// Parts of an order live as long as its first state. An order with parts is refused if its machine would not free them
// at the end of that time.
func TestMachinesThatWouldKeepParts(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("sleeps", "asleep")
	m.define("waits", "")
	m.define("years", "cancelled",
		func(d *machine.Definition) { d.States[0].Timer.AfterMs = 401 * 24 * time.Hour.Milliseconds() })
	m.define("many", "cancelled", func(d *machine.Definition) {
		d.States = append(d.States, machine.State{Name: "paid_too", Parts: machine.ConfirmParts},
			machine.State{Name: "gone", Parts: machine.CancelParts})
		d.Moves = append(d.Moves, machine.Allowed{From: []string{"pending"}, To: "paid_too"},
			machine.Allowed{From: []string{"pending"}, To: "gone"})
	})
	m.define("never", "", func(d *machine.Definition) {
		d.States[1].Parts, d.States[2].Parts = machine.KeepParts, machine.KeepParts
	})
	only := map[string]func(*flow.CreateOrder){
		"reserve": func(c *flow.CreateOrder) { c.Balance = nil },
		"hold":    func(c *flow.CreateOrder) { c.Reserve = false },
		"plain":   plain,
		"paid":    paidAtOnce,
	}
	for name, want := range map[string]string{
		"sleeps": "plain pending, paid paid, hold FIELD_INVALID, reserve FIELD_INVALID",
		"waits":  "plain pending, paid paid, hold FIELD_INVALID, reserve FIELD_INVALID",
		"years":  "plain pending, paid paid, hold FIELD_INVALID, reserve FIELD_INVALID",
		"many":   "plain pending, paid FIELD_INVALID, hold pending, reserve pending",
		"never":  "plain pending, paid FIELD_INVALID, hold FIELD_INVALID, reserve FIELD_INVALID",
		"none":   "plain MACHINE_NOT_FOUND, paid MACHINE_NOT_FOUND, hold MACHINE_NOT_FOUND, reserve MACHINE_NOT_FOUND",
	} {
		var ends []string
		for _, kind := range []string{"plain", "paid", "hold", "reserve"} {
			no := name + "-" + kind
			end := strings.TrimPrefix(m.batch(0, newOrder(no, at(name), only[kind], func(c *flow.CreateOrder) {
				c.Lines[0].Quantity, c.Amount = 1, dec("2")
				if c.Balance != nil {
					c.Balance.Amount = dec("1")
				}
				if kind == "paid" {
					paidAtOnce(c)
				}
			}))[0], no+" ")
			if refusal(end) {
				m.wantRows(no, "")
			}
			ends = append(ends, kind+" "+end)
		}
		m.equal(name, strings.Join(ends, ", "), want)
	}
	m.wants(cancelOrder("many-hold"), "FIELD_INVALID")
	m.wants(moveOrder("many-hold", "gone", "c"), "many-hold gone")
	m.wants(cancelOrder("never-plain"), "FIELD_INVALID")
	// A caller may move an order to a state without a timer. Its parts expire at the end of their own life.
	m.define("naps", "cancelled")
	m.wants(newOrder("nap", at("naps")), "nap pending")
	m.wants(moveOrder("nap", "asleep", "tired"), "nap asleep")
	m.clock.Set(t, time.Hour)
	m.wants(pay("nap"), "RESERVATION_ENDED")
	m.wants(fire("nap", "naps"), "false")
	m.wants(cancelOrder("nap"), "nap cancelled")
	m.wantRows("nap", "order, naps cancelled 3 cancel, 3 tea expired, hold expired")
}

// 100 lines, of which many name the same items, some in segments. On the second engine no item is known yet.
func TestOrderOfAHundredLines(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	lines := func(c *flow.CreateOrder) {
		c.Lines = nil
		for i := range 100 {
			c.Lines = append(c.Lines, order.Line{Item: []string{"tea", "milk"}[i%2], Quantity: 1})
		}
	}
	no := strings.Repeat("n", 64)
	m.wants(newOrder(no, lines), no+" awaiting_payment")
	m.wantLeft("tea 50, milk 50, ann 50 held 4")
	if got := m.batch(1, cancelOrder(no))[0]; got != no+" cancelled" {
		t.Error(got)
	}
	m.wantLeft("tea 100, milk 100, ann 50 held 0")
	for engine, no := range []string{"a", "b"} {
		if got := m.batch(engine, newOrder(no, lines), pay(no)); strings.Join(got,
			", ") != no+" awaiting_payment, "+no+" paid" {
			t.Error(got)
		}
	}
	m.wantLeft("tea 0, milk 0, ann 42 held 0")
	_, err := m.engines[1].Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 200, Bytes: 400,
		Command: newOrder("c", lines)})
	if f := fault.Of(err); f == nil || f.Reason != stock.OutOfStock || f.Metadata["line"] != "0" {
		t.Error(err)
	}
	m.wantRows("c", "")
	two := func(c *flow.CreateOrder) {
		c.Lines, c.Balance = []order.Line{{Item: "tea", Quantity: 1}, {Item: "soap", Quantity: 1}}, nil
	}
	m.wants(item(&stock.ChangeCommand{Caller: caller, Item: "tea", ChangeNo: "more", Kind: stock.Restock, Quantity: 1}),
		"ok")
	_, err = m.engines[1].Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 200, Bytes: 400,
		Command: newOrder("c", two)})
	if f := fault.Of(err); f == nil || f.Reason != stock.ItemNotFound || f.Metadata["line"] != "1" {
		t.Error(err)
	}
	m.wantLeft("tea 1, milk 0, ann 42 held 0")
}

// A call makes an order and is refused. In the same batch another one makes an order of the same number, with other
// content, and a third one ends it: with the parts of the second.
func TestOrderOfARefusedCallIsForgotten(t *testing.T) {
	t.Parallel()
	for i, first := range []together{
		{newOrder("o"), flow.Ledger(transfer("t", user(1), "world", "1"))},
		{newOrder("o"), pay("o"), flow.Ledger(transfer("t", user(1), "world", "1"))},
		{newOrder("o", paidAtOnce), flow.Ledger(transfer("t", user(1), "world", "1"))},
		{newOrder("o", at("own"), sameAs("x")), cancelOrder("o"), flow.Ledger(transfer("t", user(1), "world", "1"))},
		{newOrder("o", at("own"), sameAs("x")), flow.Ledger(transfer("t", user(1), "world", "1"))},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := newMarket(t)
			m.define("own", "cancelled")
			milk := newOrder("o", sameAs("x"), func(c *flow.CreateOrder) {
				c.Lines, c.Balance.Amount = []order.Line{{Item: "milk", Quantity: 1}, {Item: "tea", Quantity: 2}},
					dec("1")
			})
			got := m.batch(0, first, milk, newOrder("p", sameAs("x")), cancelOrder("o"), newOrder("p", sameAs("x")),
				pay("p"))
			m.equal("ends", strings.Join(got, ", "), "INSUFFICIENT_FUNDS, o awaiting_payment, "+
				"o awaiting_payment existed, o cancelled, p awaiting_payment, p paid")
			m.wantRows("o", "order, cancelled 2 cancel, 1 milk cancelled, 2 tea cancelled, hold released")
			m.wantRows("p", bought+", purchase")
			m.wantLeft("tea 97, milk 100, ann 46 held 0")
		})
	}
}

// A refund that is called off leads back to paid: its parts have been confirmed once already.
func TestRefundCalledOff(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	back := func(c *flow.MoveOrder) { c.Params.From = "refunding" }
	for _, x := range []*flow.CreateOrder{newOrder("held"), newOrder("whole", paidAtOnce), newOrder("plain", plain)} {
		no := x.OrderNo
		m.wants(x, map[bool]string{true: no + " paid", false: no + " awaiting_payment"}[no == "whole"])
		if no != "whole" {
			m.wants(pay(no), no+" paid")
		}
		rows := m.rowsOfOrder(no)
		for round := range 2 {
			m.wants(moveOrder(no, "refunding", fmt.Sprint("r", round)), no+" refunding")
			m.wants(cancelOrder(no), "MOVE_NOT_ALLOWED")
			m.wants(moveOrder(no, "paid", fmt.Sprint("off", round), back), no+" paid")
		}
		_, parts, _ := strings.Cut(rows, map[bool]string{true: "balance", false: "pay"}[no == "whole"])
		m.wantRows(no, "order, paid 6 off1"+parts)
	}
	m.wantLeft("tea 94, milk 100, ann 36 held 0")
}

// An order can use an asset, accounts and an item that the same Execute creates.
func TestOrderOfWhatTheSameExecuteMakes(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	jpy := transfer("fund-jpy", "world-jpy", "ann-jpy", "7")
	jpy.Postings[0].Asset = "JPY"
	x := newOrder("o", func(c *flow.CreateOrder) {
		c.Asset, c.Payee, c.Balance.Account, c.Lines[0].Item = "JPY", "world-jpy", "ann-jpy", "rice"
	})
	decimals := *x
	decimals.Amount = dec("10.5")
	for _, c := range []*flow.CreateOrder{&decimals, x} {
		got := m.batch(0, together{flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
			Assets: []ledger.NewAsset{{Code: "JPY"}}}),
			flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller,
				Accounts: []ledger.NewAccount{{Code: "world-jpy", Asset: "JPY", Kind: "equity"},
					{Code: "ann-jpy", Asset: "JPY", Kind: "liability"}}}), flow.Ledger(jpy),
			item(&stock.PutItemCommand{Caller: caller, Item: "rice"}),
			item(&stock.ChangeCommand{Caller: caller, Item: "rice", ChangeNo: "r", Kind: stock.Restock, Quantity: 3}),
			c, pay("o")})[0]
		if c == x {
			m.equal("ends", got, "ok; ok; ok; ok; ok; o awaiting_payment; o paid")
		} else {
			m.equal("ends", got, "AMOUNT_TOO_PRECISE")
		}
	}
	m.wantRows("o", "order, paid 2 pay, 3 rice sold, hold captured, transfer")
	y := newOrder("none", plain)
	y.Asset = "XYZ"
	m.wants(y, "ASSET_NOT_FOUND")
}

// Events and messages commit with the order and with its moves, once; no event is sent by repeats or refusals.
func TestOrdersSendOnce(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	for name, types := range map[string][]string{"all": nil, "paid": {"order.paid"}} {
		m.wants(flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: name, URL: "https://example.com",
			Types: types}), "ok")
	}
	message := func(text string) []notify.SendCommand {
		return []notify.SendCommand{{Caller: caller,
			Params: notify.Params{Channel: send.Email, Recipient: "ann@example.com",
				Content: send.Content{Subject: text, Text: text}, BusinessType: text, Priority: notify.Normal}}}
	}
	told := func(c *flow.CreateOrder) { c.Messages = message("made") }
	m.wants(newOrder("a", told), "a awaiting_payment")
	m.wants(newOrder("a", told), "a awaiting_payment existed")
	m.wants(newOrder("b", told, sameAs("b")), "b awaiting_payment")
	m.wants(newOrder("b2", told, sameAs("b")), "b awaiting_payment existed")
	m.wants(newOrder("poor", told, func(c *flow.CreateOrder) { c.Balance.Account = user(1) }), "INSUFFICIENT_FUNDS")
	paid := func(no string) *flow.MoveOrder {
		return moveOrder(no, "paid", "pay", func(c *flow.MoveOrder) { c.Messages = message("thanks") })
	}
	m.wants(paid("a"), "a paid")
	m.wants(paid("a"), "a paid existed")
	m.wants(newOrder("c", paidAtOnce), "c paid")
	m.clock.Set(t, 31*time.Minute)
	m.wants(paid("b"), "MOVE_NOT_ALLOWED")
	m.wants(newOrder("b3", told, sameAs("b")), "b3 awaiting_payment")
	m.wants(fire("b", "order"), "false")
	m.equal("messages", m.text(`select string_agg(concat_ws(' ', recipient, business_type, n.biz_no), ', '
		order by n.biz_no, business_type, recipient) from notify_contents c
		join notify_messages m using (tenant_id, message_id) left join notify_names n using (tenant_id, message_id)`),
		"ann@example.com made a/message/1, ann@example.com made b/message/1, ann@example.com made b3/message/1, "+
			"all order.cancelled, all order.paid, all order.paid, paid order.paid, paid order.paid, "+
			"ann@example.com thanks")
	m.wants(newOrder("a/message/x", told), "a/message/x awaiting_payment") // other numbers than a's messages
	story := m.text(`select string_agg(what || ' ' || regexp_replace(name, '^\d{6,}$', 'ID') || ' ' || detail, ', '
		order by at, n, name, detail)
		from audit.order_story where order_no = 'a'`)
	m.equal("story", story, "move awaiting_payment creation: 10.00 CNY, reservation tea a/1 3 reserved, "+
		"hold a/hold 4.00 CNY held, message a/message/1 email made a***@example.com, move paid pay, "+
		"reservation ended tea a/1 3 sold, hold ended a/hold 4.00 CNY captured, transfer a/pay order: "+
		"user:0 to world 4.00 CNY, message ID webhook order.paid all, message ID webhook order.paid paid, "+
		"message ID email thanks a***@example.com")
}

// A dry run checks everything, and writes nothing: not even the move of a timer that has fired.
func TestDryRunsOfOrdersWriteNothing(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(newOrder("o", sameAs("o")), "o awaiting_payment")
	state := func() string {
		return m.text(`select (select count(*) from commit_batches) || ' ' || (select count(*)
			from machine_history) || ' ' ||
			(select count(*) from order_orders) || ' ' || (select count(*)
			from stock_reservations) || ' ' || (select count(*) from machine_definitions)`)
	}
	dry := func(c flow.Command, want string) {
		t.Helper()
		out, err := m.engines[0].Do(t.Context(),
			flow.Submission{Tenant: 1, RequestID: "r", Rows: rowsOf(c), Bytes: 400, Command: c, DryRun: true})
		m.equal("dry run", describeOrder(out.Answer, err), want)
	}
	before := state()
	dry(newOrder("p"), "p awaiting_payment")
	dry(newOrder("p", at("simple_order")), "p pending")
	dry(newOrder("p", paidAtOnce), "p paid")
	dry(newOrder("p", func(c *flow.CreateOrder) { c.Lines[0].Quantity = 98 }), "OUT_OF_STOCK")
	dry(pay("o"), "o paid")
	dry(cancelOrder("o"), "o cancelled")
	m.clock.Set(t, 31*time.Minute)
	dry(newOrder("p", sameAs("o")), "p awaiting_payment")
	dry(newOrder("o", sameAs("o")), "o cancelled")
	m.equal("rows", state(), before)
	m.wantRows("o", open+", purchase")
}
