package rpc_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/server"
)

// refused makes a call that must be refused for a reason.
func (c *caller) refused(name string, m proto.Message, reason string) answer {
	c.T.Helper()
	a := c.call(connectJSON, name, m)
	if a.Code == "" || a.Reason(c.T) != reason {
		c.T.Errorf("%s: %s, want %s", name, a.Raw, reason)
	}
	return a
}

func TestOrderIsCreatedAndEndedInOneExecute(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	got, _ := c.executed(execute(operation("", anOrder("o-1", 3)), operation("", moveOrder("o-1", "paid", "p")),
		operation("", anOrder("o-2", 3)), operation("", cancelOrder("o-2"))))
	if o := got[1].(*orderv1.MoveOrderResponse).GetOrder(); o.GetState() != "paid" {
		t.Errorf("%v", o)
	}
	if o := got[3].(*orderv1.CancelOrderResponse).GetOrder(); o.GetState() != "cancelled" {
		t.Errorf("%v", o)
	}
	c.wantItem("tea", "87/5/8/100")
	undone := execute(operation("", anOrder("o-3", 3)), operation("", cancelOrder("o-1")))
	c.refused("Batch.Execute", undone, "MOVE_NOT_ALLOWED")
	c.refused("Order.GetOrder", &orderv1.GetOrderRequest{OrderNo: "o-3"}, "ORDER_NOT_FOUND")
	c.wantItem("tea", "87/5/8/100")
}

func TestManyOrdersEndInOneExecute(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	own := ownMachine("own", machinev1.OrderParts_ORDER_PARTS_CANCEL)
	ok(c, "Machine.DefineMachine", own, new(machinev1.DefineMachineResponse))
	var create, end []*batchv1.Operation
	for i := range 20 {
		r := plainOrder(fmt.Sprint("o-", i), "tea", 2)
		if i%2 == 1 {
			r.Machine = "own"
		}
		create = append(create, operation("", r))
		if end = append(end, operation("", cancelOrder(r.GetOrderNo()))); i%4 == 0 {
			end[i] = operation("", moveOrder(r.GetOrderNo(), "paid", "p"))
		}
	}
	c.executed(execute(create...))
	c.wantItem("tea", "50/45/5/100")
	c.executed(execute(end...))
	c.wantItem("tea", "80/5/15/100")
}

// The rows that the end of an order needs are known only from its instance. The second attempt knows those of all
// orders.
func TestAnExecuteFindsTheRowsOfAllOrdersAtOnce(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	var all []*batchv1.Operation
	for i := range 20 {
		no := fmt.Sprint("o-", i)
		all = append(all, operation("", plainOrder(no, "tea", 2)), operation("", cancelOrder(no)))
	}
	const incomplete = `ledgerd_commit_attempts_total{ending="incomplete"}`
	before := c.metric(incomplete)
	c.executed(execute(all...))
	if n := c.metric(incomplete) - before; n > 3 {
		t.Errorf("%d attempts lacked rows", n)
	}
	c.wantItem("tea", "90/5/5/100")
}

// ownMachine has a timer from its first state to one with the given effect on parts.
func ownMachine(name string, parts machinev1.OrderParts) *machinev1.DefineMachineRequest {
	timer := []machinev1.Actor{machinev1.Actor_ACTOR_CALLER, machinev1.Actor_ACTOR_TIMER}
	return &machinev1.DefineMachineRequest{Machine: name, Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "new", Initial: true,
			Timer: &machinev1.Timer{After: durationpb.New(time.Hour), To: "gone"}},
			{Name: "gone", OrderParts: parts}, {Name: "bought", OrderParts: machinev1.OrderParts_ORDER_PARTS_CONFIRM}},
		Moves: []*machinev1.AllowedMove{{From: []string{"new"}, To: "gone", By: timer},
			{From: []string{"new"}, To: "bought"}}}}
}

// An order never adopts a part that another call has made under the number of its own.
func TestPartsOfOtherCallsAreNotTaken(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	ok(c, "Order.CreateOrder", anOrder("first", 1), new(orderv1.CreateOrderResponse)) // makes the machine
	for no, taken := range map[string]struct {
		call   string
		m      proto.Message
		reason string
	}{
		"reserved": {"Stock.Reserve", &stockv1.ReserveRequest{Item: "tea", ReservationNo: "reserved/1", Quantity: 3,
			Life: durationpb.New(30 * time.Minute), Ref: "reserved"}, "ORDER_PART_EXISTS"},
		"other": {"Stock.Reserve", reserve("tea", "other/1", 1), "ORDER_PART_EXISTS"},
		"fence": {"Stock.Cancel", cancel("tea", "fence/1"), "RESERVATION_ENDED"},
		"held": {"Hold", &ledgerv1.HoldRequest{BizNo: "held/hold", From: "u:a", To: "world", Asset: "COIN", Amount: "4",
			Life: durationpb.New(30 * time.Minute)}, "ORDER_PART_EXISTS"},
		"made": {"Machine.CreateInstance", &machinev1.CreateInstanceRequest{Machine: "order", Key: "made",
			Owner: secretNote}, "ORDER_PART_EXISTS"},
	} {
		if a := c.call(connectJSON, taken.call, taken.m); a.Code != "" {
			t.Fatalf("%s: %s", no, a.Raw)
		}
		before := c.dump("mine")
		c.refused("Order.CreateOrder", anOrder(no, 3), taken.reason)
		for table, rows := range c.dump("mine") {
			if rows != before[table] {
				t.Errorf("%s: a refused order has changed %s", no, table)
			}
		}
	}
	ok(c, "Transfer", pay("paid/pay", "u:a", "world", "10"), new(ledgerv1.TransferResponse))
	whole := anOrder("paid", 3)
	whole.Balance.Amount = ""
	c.refused("Order.CreateOrder", whole, "ORDER_PART_EXISTS")
}

// A caller may end a part of an order directly. The order can then still end, with its remaining parts, but cannot be
// paid.
func TestPartsThatEndedBefore(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for _, no := range []string{"sold", "free", "gone", "released"} {
		c.createOrder(anOrder(no, 3))
	}
	ok(c, "Stock.Confirm", confirm("tea", "sold/1"), new(stockv1.ConfirmResponse))
	ok(c, "Order.CancelOrder", cancelOrder("sold"), new(orderv1.CancelOrderResponse))
	ok(c, "Stock.Cancel", cancel("tea", "free/1"), new(stockv1.CancelResponse))
	ok(c, "Order.CancelOrder", cancelOrder("free"), new(orderv1.CancelOrderResponse))
	ok(c, "Stock.Cancel", cancel("tea", "gone/1"), new(stockv1.CancelResponse))
	c.refused("Order.MoveOrder", moveOrder("gone", "paid", "p"), "RESERVATION_ENDED")
	ok(c, "Release", &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "released/hold"}},
		new(ledgerv1.ReleaseResponse))
	c.refused("Order.MoveOrder", moveOrder("released", "paid", "p"), "HOLD_NOT_HELD")
	if o := c.order("released"); o.GetState() != "awaiting_payment" {
		t.Errorf("%v", o)
	}
	c.wantItem("tea", "84/8/8/100")
}

func TestMachinesThatGiveNothingBackAreRefused(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	timeless := ownMachine("timeless", machinev1.OrderParts_ORDER_PARTS_CANCEL)
	timeless.Definition.States[0].Timer = nil
	long := ownMachine("long", machinev1.OrderParts_ORDER_PARTS_CANCEL)
	long.Definition.States[0].Timer.After = durationpb.New(401 * 24 * time.Hour)
	for _, m := range []*machinev1.DefineMachineRequest{timeless, long,
		ownMachine("keeps", machinev1.OrderParts_ORDER_PARTS_UNSPECIFIED)} {
		ok(c, "Machine.DefineMachine", m, new(machinev1.DefineMachineResponse))
		r := anOrder("o-"+m.GetMachine(), 3)
		r.Machine = m.GetMachine()
		c.refused("Order.CreateOrder", r, "FIELD_INVALID")
		r.Reserve, r.Balance = false, nil
		c.createOrder(r)
		ok(c, "Sale.IssueCoupons", issue("c", m.GetMachine()), new(salev1.IssueCouponsResponse))
		ok(c, "Sale.ClaimCoupon", claimCoupon(m.GetMachine(), secretNote+m.GetMachine()),
			new(salev1.ClaimCouponResponse))
		r.OrderNo, r.Purchase, r.Coupon, r.Subject = r.GetOrderNo()+"c", nil, m.GetMachine(), secretNote+m.GetMachine()
		c.refused("Order.CreateOrder", r, "FIELD_INVALID")
	}
	c.refused("Machine.DefineMachine", ownMachine("confirms", machinev1.OrderParts_ORDER_PARTS_CONFIRM),
		"MACHINE_INVALID")
	r := anOrder("o-1", 3)
	r.Machine, r.Reserve, r.Balance, r.PayWithin = "timeless", false, nil, durationpb.New(time.Hour)
	if a := c.refused("Order.CreateOrder", r, "FIELD_INVALID"); !strings.Contains(a.Message, "payWithin") {
		t.Errorf("%s", a.Raw)
	}
	r.Machine, r.PayWithin = "none", nil
	c.refused("Order.CreateOrder", r, "MACHINE_NOT_FOUND")
}

func TestLinesMayRepeatAnItem(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	ok(c, "Stock.PutItem", &stockv1.PutItemRequest{Item: "tea", Segments: 7}, new(stockv1.PutItemResponse))
	r := plainOrder("o-1", "tea", 1)
	for range 59 {
		r.Lines = append(r.Lines, &orderv1.OrderLine{Item: "tea", Quantity: 1})
	}
	c.createOrder(r)
	c.wantItem("tea", "30/65/5/100")
	big := plainOrder("o-2", "tea", 20)
	big.Lines = append(big.Lines, &orderv1.OrderLine{Item: "tea", Quantity: 11})
	if a := c.refused("Order.CreateOrder", big, "OUT_OF_STOCK"); a.State("line") != "1" ||
		a.State("available") != "10" {
		t.Errorf("%s", a.Raw)
	}
	ok(c, "Order.CancelOrder", cancelOrder("o-1"), new(orderv1.CancelOrderResponse))
	c.wantItem("tea", "90/5/5/100")
}

func TestRefundLeadsBackToPaid(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.createOrder(anOrder("o-1", 3))
	ok(c, "Order.MoveOrder", moveOrder("o-1", "paid", "p"), new(orderv1.MoveOrderResponse))
	ok(c, "Order.MoveOrder", moveOrder("o-1", "refunding", "r"), new(orderv1.MoveOrderResponse))
	back := moveOrder("o-1", "paid", "no")
	back.From = "refunding"
	if o := ok(c, "Order.MoveOrder", back, new(orderv1.MoveOrderResponse)).GetOrder(); o.GetRevision() != 4 {
		t.Errorf("%v", o)
	}
	c.wantItem("tea", "87/5/8/100")
}

func TestDryRunOfAnOrderWritesNothing(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	before := c.dump("mine")
	r := anOrder("o-1", 3)
	r.DryRun = true
	if o := c.createOrder(r).GetOrder(); o.GetState() != "awaiting_payment" {
		t.Errorf("%v", o)
	}
	for table, rows := range c.dump("mine") {
		if rows != before[table] {
			t.Errorf("a dry run has changed %s", table)
		}
	}
}

func TestOrderFieldsAreChecked(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for what, change := range map[string]func(r *orderv1.CreateOrderRequest){
		"amount":            func(r *orderv1.CreateOrderRequest) { r.Amount = "-1" },
		"amount ":           func(r *orderv1.CreateOrderRequest) { r.Amount = "11" },
		"balance.amount":    func(r *orderv1.CreateOrderRequest) { r.Balance.Amount = "10.01" },
		"balance.amount ":   func(r *orderv1.CreateOrderRequest) { r.Balance.Amount = "0" },
		"payee":             func(r *orderv1.CreateOrderRequest) { r.Payee = "" },
		"payee ":            func(r *orderv1.CreateOrderRequest) { r.Payee = "u:a" },
		"lines[0].item":     func(r *orderv1.CreateOrderRequest) { r.Lines[0].Item = "te\na" },
		"lines[0].quantity": func(r *orderv1.CreateOrderRequest) { r.Lines[0].Quantity = 0 },
		"reserve":           func(r *orderv1.CreateOrderRequest) { r.Lines = nil },
		"orderNo":           func(r *orderv1.CreateOrderRequest) { r.OrderNo = " x" },
		"purchase.parts[0]": func(r *orderv1.CreateOrderRequest) { r.Purchase.Parts = []string{"a\x00"} },
		"purchase.life":     func(r *orderv1.CreateOrderRequest) { r.Purchase.Life = durationpb.New(1) },
		"SaleService and Paymen": func(r *orderv1.CreateOrderRequest) {
			r.Machine, r.Reserve, r.Balance, r.Coupon = machine.CouponMachine, false, nil, ""
		},
		"messages[0].businessTy": func(r *orderv1.CreateOrderRequest) { r.Messages = badMessages() },
	} {
		r := anOrder("o-1", 3)
		change(r)
		if a := c.refused("Order.CreateOrder", r, "FIELD_INVALID"); !strings.Contains(string(a.Raw),
			strings.TrimSpace(what)) {
			t.Errorf("%s: %s", what, a.Raw)
		}
	}
	r := anOrder("o-1", 3)
	r.Asset = "GOLD"
	c.refused("Order.CreateOrder", r, "ASSET_NOT_FOUND")
	for field, change := range map[string]func(r *orderv1.CreateOrderRequest){ // and no other error follows
		"amount":          func(r *orderv1.CreateOrderRequest) { r.Amount = "x" },
		"lines[0].amount": func(r *orderv1.CreateOrderRequest) { r.Lines[0].Amount = "x" },
		"balance.amount":  func(r *orderv1.CreateOrderRequest) { r.Balance.Amount = "x" },
	} {
		r := anOrder("o-1", 3)
		change(r)
		a := c.refused("Order.CreateOrder", r, "FIELD_INVALID")
		if got := a.Fields(t); !slices.Equal(got, []string{field}) ||
			!strings.HasPrefix(a.Message, field+": must be a decimal") {
			t.Errorf("%s: %v, %s", field, got, a.Message)
		}
	}
	r = anOrder("o-1", 3)
	r.Amount, r.Reserve, r.Lines = "x", true, nil
	if a := c.refused("Order.CreateOrder", r, "FIELD_INVALID"); !strings.HasSuffix(a.Message, " (and 1 more)") {
		t.Errorf("%s", a.Message)
	}
}

// A payee that is paid later is looked up when the order is created, because an order keeps its payee for ever.
func TestPayeeExists(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	r := &orderv1.CreateOrderRequest{OrderNo: "o-1", Subject: "u", Asset: "COIN", Amount: "1", Payee: "late"}
	if a := c.refused("Order.CreateOrder", r, "ACCOUNT_NOT_FOUND"); !slices.Equal(a.Fields(t), []string{"payee"}) {
		t.Errorf("%s", a.Raw)
	}
	s := saleOf("s", "tea", "COIN")
	s.GetOrder().Payee = "late"
	if a := c.refused("Sale.PutSale", putSale(s), "ACCOUNT_NOT_FOUND"); !slices.Equal(a.Fields(t),
		[]string{"sale.order.payee"}) {
		t.Errorf("%s", a.Raw)
	}
	c.executed(execute(operation("", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "late", Asset: "COIN"}}}), operation("", r))) // in the same commit
	ok(c, "Sale.PutSale", putSale(s), new(salev1.PutSaleResponse))
	r.OrderNo = "o-2"
	c.createOrder(r)
	r.OrderNo, r.Amount = "o-3", ""
	c.executed(execute(operation("first", &orderv1.CreateOrderRequest{OrderNo: "o-4", Subject: "u", Asset: "COIN",
		Amount: "1"}),
		operation("", r, "amount=first:order.amount")))
}

// Payments, cancellations and expiries race for the same orders, on two servers.
func TestOneEndOfEachOrderWins(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	two := c.second()
	wantSold := int64(5)
	for round := range 3 {
		var work sync.WaitGroup
		for i := range 10 {
			r := plainOrder(fmt.Sprint("o-", round, "-", i), "tea", 2)
			if i%2 == 0 {
				r.PayWithin = durationpb.New(time.Second)
			}
			c.createOrder(r)
			for n := range 6 {
				from := c
				if n%2 == 0 {
					from = two
				}
				work.Go(func() {
					if r.PayWithin != nil {
						<-time.After(r.PayWithin.AsDuration())
					}
					name, m := "Order.CancelOrder", proto.Message(cancelOrder(r.GetOrderNo()))
					if n < 3 {
						name, m = "Order.MoveOrder", moveOrder(r.GetOrderNo(), "paid", "p")
					}
					if a := from.call(connectJSON, name, m); a.Code != "" && a.Reason(t) != "MOVE_NOT_ALLOWED" &&
						a.Reason(t) != "STATE_TAKEN" {
						t.Errorf("%s", a.Raw)
					}
				})
			}
		}
		work.Wait()
		paid := 0
		for i := range 10 {
			if o := c.order(fmt.Sprint("o-", round, "-", i)); o.GetState() == "paid" {
				paid++
			} else if o.GetState() != "cancelled" {
				t.Errorf("%v", o)
			}
		}
		wantSold += int64(2 * paid)
		if i := c.item("tea"); i.GetReserved() != 5 || i.GetSold() != wantSold {
			t.Errorf("round %d, %d paid: %v", round, paid, i)
		}
	}
}

func badMessages() []*notifyv1.SendRequest {
	m := sms("x")
	m.BusinessType = "a\x00"
	return []*notifyv1.SendRequest{m}
}

// Messages and events commit once, with the order and with its moves, also with those of timers.
func TestOrderSendsMessagesAndEvents(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.Server.Stop()
	c.Start(server.Options{Secret: secret.New()})
	ok(c, "Webhook.CreateEndpoint", endpoint("shop"), new(notifyv1.CreateEndpointResponse))
	endpoints := c.Count("select count(*) from notify_endpoints")
	events := func(kind string) int {
		return c.Count("select count(*) from notify_messages where channel = 'webhook' and business_type = $1", kind)
	}
	paid, cancelled := events("order.paid"), events("order.cancelled") // of the orders that were prepared
	r := anOrder("o-1", 3)
	r.Messages = []*notifyv1.SendRequest{sms("a"), mail("b")}
	r.Messages[0].BizNo = ""
	for range 2 {
		c.createOrder(r)
	}
	told := moveOrder("o-1", "paid", "p")
	told.Messages = []*notifyv1.SendRequest{sms("c")}
	for range 2 {
		ok(c, "Order.MoveOrder", told, new(orderv1.MoveOrderResponse))
	}
	late := anOrder("o-2", 3)
	late.PayWithin = durationpb.New(time.Second)
	c.createOrder(late)
	eventually(t, 30*time.Second, "its time is over", func() bool {
		return c.Count("select count(*) from machine_history where key = 'o-2' and actor = 'timer'") == 1
	})
	for biz, want := range map[string]int{"biz_no = 'o-1/message/1'": 1, "biz_no = 'mail-b'": 1, "biz_no = 'sms-c'": 1,
		"channel = 'webhook' and business_type = 'order.paid'":      paid + endpoints,
		"channel = 'webhook' and business_type = 'order.cancelled'": cancelled + endpoints} {
		if got := c.Count("select count(*) from notify_messages where " + biz); got != want {
			t.Errorf("%d messages with %s, want %d", got, biz, want)
		}
	}
	failed := anOrder("o-3", 3)
	failed.Messages = badMessages()
	failed.Messages[0].BusinessType, failed.Messages[0].Recipient = "", "nobody"
	if a := c.call(connectJSON, "Order.CreateOrder", failed); !strings.Contains(string(a.Raw),
		"messages[0].recipient") {
		t.Errorf("%s", a.Raw)
	}
	c.wantItem("tea", "87/5/8/100")
}
