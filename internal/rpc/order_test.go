package rpc_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func anOrder(no string, n int64) *orderv1.CreateOrderRequest {
	return &orderv1.CreateOrderRequest{OrderNo: no, Subject: secretNote, Asset: "COIN", Amount: "10",
		Metadata: manyNames,
		Lines:    []*orderv1.OrderLine{{Item: "tea", Quantity: n, Amount: "10", Description: "green"}}, Reserve: true,
		Payee: "world", Balance: &orderv1.BalancePart{Account: "u:a", Amount: "4"},
		Purchase: &orderv1.PurchaseKey{Parts: []string{no}}}
}

func moveOrder(no, to, cause string) *orderv1.MoveOrderRequest {
	return &orderv1.MoveOrderRequest{OrderNo: no, To: to, Cause: cause, Inputs: manyNames}
}

func cancelOrder(no string) *orderv1.CancelOrderRequest {
	return &orderv1.CancelOrderRequest{OrderNo: no, Reason: secretNote}
}

// plainOrder reserves 2 units of the item named by the tag.
func plainOrder(no, tag string, n int64) *orderv1.CreateOrderRequest {
	return &orderv1.CreateOrderRequest{OrderNo: no, Subject: secretNote, Asset: "COIN", Amount: "1", Reserve: true,
		Lines: []*orderv1.OrderLine{{Item: tag, Quantity: n, Description: secretNote}}, Metadata: manyNames}
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		c.stocked(x.paid)
		r := plainOrder("mine-"+x.paid, x.paid, 2)
		r.Asset = x.asset
		ok(c, "Order.CreateOrder", r, new(orderv1.CreateOrderResponse), id...)
	})
	goWell = append(goWell, "Order.ListOrders")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Order.CreateOrder": func(x resources) []proto.Message {
			r := plainOrder("walk-"+x.paid, x.paid, 1)
			r.Asset = x.asset
			return all(r)
		},
		"Order.MoveOrder": func(x resources) []proto.Message {
			return all(moveOrder("mine-"+x.paid, "paid",
				"walk"))
		},
		"Order.CancelOrder": func(x resources) []proto.Message { return all(cancelOrder("mine-" + x.paid)) },
		"Order.GetOrder": func(x resources) []proto.Message {
			return all(&orderv1.GetOrderRequest{OrderNo: "mine-" + x.paid})
		},
		"Order.ListOrders": func(resources) []proto.Message {
			return all(&orderv1.ListOrdersRequest{}, &orderv1.ListOrdersRequest{Subject: secretNote},
				&orderv1.ListOrdersRequest{Machine: "order", State: "awaiting_payment"})
		},
		"Order.ListOrderHistory": func(x resources) []proto.Message {
			return all(&orderv1.ListOrderHistoryRequest{OrderNo: "mine-" + x.paid})
		},
	} {
		examples[name] = example
	}
	preparers["Order"] = func(c *caller, tag string) {
		ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
			new(ledgerv1.CreateAssetsResponse))
		c.stocked(tag)
		c.createOrder(plainOrder("old-"+tag, tag, 2))
	}
	for name, x := range map[string]change{
		"Order.CreateOrder": {reason: "OUT_OF_STOCK",
			well:    func(tag string) proto.Message { return plainOrder("new-"+tag, tag, 88) },
			refused: func(tag string) proto.Message { return plainOrder("new-"+tag, tag, 89) }},
		"Order.MoveOrder": {reason: "MOVE_NOT_ALLOWED",
			well:    func(tag string) proto.Message { return moveOrder("old-"+tag, "paid", "p") },
			refused: func(tag string) proto.Message { return moveOrder("old-"+tag, "refunded", "p") }},
		"Order.CancelOrder": {well: func(tag string) proto.Message { return cancelOrder("old-" + tag) }},
	} {
		changes[name] = x
	}
}

// orderSite returns a caller with an account u:a, and 100 units of tea of which 10 are taken.
func orderSite(t *testing.T) *caller {
	t.Helper()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	c.stocked("tea")
	return c
}

func (c *caller) createOrder(r *orderv1.CreateOrderRequest) *orderv1.CreateOrderResponse {
	c.T.Helper()
	return ok(c, "Order.CreateOrder", r, new(orderv1.CreateOrderResponse))
}

func (c *caller) order(no string) *orderv1.Order {
	c.T.Helper()
	return ok(c, "Order.GetOrder", &orderv1.GetOrderRequest{OrderNo: no}, new(orderv1.GetOrderResponse)).GetOrder()
}

func TestOrderIsPaidWithItsParts(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	first := c.createOrder(anOrder("o-1", 3))
	o := first.GetOrder()
	if first.GetExisted() || o.GetState() != "awaiting_payment" || o.GetRevision() != 1 || o.GetAmount() != "10.00" ||
		o.GetPayWithin().AsDuration() != 30*time.Minute || o.GetTimerTo() != "cancelled" ||
		o.GetTimerTime().AsTime().Sub(o.GetCreateTime().AsTime()) != 30*time.Minute ||
		o.GetLines()[0].GetAmount() != "10.00" || o.GetBalance().GetAmount() != "4.00" {
		t.Errorf("created: %v", first)
	}
	if got := c.order("o-1"); !proto.Equal(got, o) {
		t.Errorf("read %v\nwant %v", got, o)
	}
	c.wantItem("tea", "87/8/5/100")
	if again := c.createOrder(anOrder("o-1", 3)); !again.GetExisted() || !proto.Equal(again.GetOrder(), o) {
		t.Errorf("again: %v", again)
	}
	paid := ok(c, "Order.MoveOrder", moveOrder("o-1", "paid", "pay-1"), new(orderv1.MoveOrderResponse))
	if paid.GetExisted() || paid.GetOrder().GetState() != "paid" || paid.GetOrder().GetTimerTime() != nil {
		t.Errorf("paid: %v", paid)
	}
	c.wantItem("tea", "87/5/8/100")
	if again := c.createOrder(anOrder("o-1", 3)); again.GetOrder().GetState() != "paid" {
		t.Errorf("again: %v", again)
	}
	c.refusedOrder("Order.CancelOrder", cancelOrder("o-1"), "MOVE_NOT_ALLOWED",
		"order o-1 cannot move from paid to cancelled")
	c.refusedOrder("Order.MoveOrder", moveOrder("o-1", "paid", "pay-2"), "STATE_TAKEN",
		"order o-1 is paid already, because of pay-1")
	h := ok(c, "Order.ListOrderHistory", &orderv1.ListOrderHistoryRequest{OrderNo: "o-1"},
		new(orderv1.ListOrderHistoryResponse)).GetEntries()
	if len(h) != 2 || h[1].GetTo() != "paid" {
		t.Errorf("history: %v", h)
	}
}

// refusedOrder expects an error about order o-1.
func (c *caller) refusedOrder(name string, m proto.Message, reason, message string) {
	c.T.Helper()
	a := c.refused(name, m, reason)
	if a.State("order_no") != "o-1" || a.State("key") != "" || a.State("state") == "" || a.Message != message {
		c.T.Errorf("%s: %s, want %q", name, a.Raw, message)
	}
}

// Errors of moves name the fields of the call: the number of the order, and inputs only where the call has some.
func TestErrorsOfMovesNameTheOrder(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	needs := &machinev1.DefineMachineRequest{Machine: "needs", Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "open", Initial: true},
			{Name: "gone", OrderParts: machinev1.OrderParts_ORDER_PARTS_CANCEL},
			{Name: "again"}},
		Moves: []*machinev1.AllowedMove{{From: []string{"open"}, To: "gone", Require: []string{"ticket", "reason"}},
			{From: []string{"gone"}, To: "again"}, {From: []string{"again"}, Back: true}}}}
	ok(c, "Machine.DefineMachine", needs, new(machinev1.DefineMachineResponse))
	o := anOrder("o-1", 3)
	o.Machine, o.Reserve, o.Balance = "needs", false, nil
	c.createOrder(o)
	c.refusedOrder("Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: "o-1", To: "gone", Cause: "x", From: "gone"},
		"STATE_CHANGED",
		"order o-1 is open at revision 1 now")
	c.refusedOrder("Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: "o-1", To: "gone", Cause: "x", Reason: "y"},
		"MOVE_INPUT_MISSING",
		"inputs.ticket: the move from open to gone requires it")
	c.refusedOrder("Order.CancelOrder", cancelOrder("o-1"), "MOVE_INPUT_MISSING",
		"orderNo: must be cancelled with MoveOrder, which has inputs.ticket")
	c.refused("Order.MoveOrder", moveOrder("o-1", "no", "x"), "FIELD_INVALID")
	for _, to := range []string{"gone", "again"} {
		ok(c, "Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: "o-1", To: to, Cause: "x", Reason: "y",
			Inputs: map[string]string{"ticket": "1"}}, new(orderv1.MoveOrderResponse))
	}
	c.refusedOrder("Order.CancelOrder", cancelOrder("o-1"), "MOVE_INPUT_MISSING",
		"orderNo: must be cancelled with MoveOrder, which has from")
}

func TestCancelledOrderGivesItsPartsBack(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.createOrder(anOrder("o-1", 3))
	gone := ok(c, "Order.CancelOrder", cancelOrder("o-1"), new(orderv1.CancelOrderResponse))
	if gone.GetExisted() || gone.GetOrder().GetState() != "cancelled" {
		t.Errorf("%v", gone)
	}
	c.wantItem("tea", "90/5/5/100")
	if again := ok(c, "Order.CancelOrder", cancelOrder("o-1"), new(orderv1.CancelOrderResponse)); !again.GetExisted() {
		t.Errorf("%v", again)
	}
	other := anOrder("o-2", 3)
	other.Purchase.Parts = []string{"o-1"}
	if o := c.createOrder(other); o.GetExisted() {
		t.Errorf("the purchase is not free: %v", o)
	}
}

// An order whose time to pay is over ends without a call.
func TestUnpaidOrderEndsByItself(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for _, machine := range []string{"order", "simple_order"} {
		r := anOrder(machine, 3)
		r.Machine, r.PayWithin = machine, durationpb.New(time.Second)
		c.createOrder(r)
	}
	eventually(t, 30*time.Second, "the units are back", func() bool { return c.item("tea").GetAvailable() == 90 })
	eventually(t, 30*time.Second, "the moves are recorded", func() bool {
		h := ok(c, "Order.ListOrderHistory", &orderv1.ListOrderHistoryRequest{OrderNo: "simple_order"},
			new(orderv1.ListOrderHistoryResponse)).GetEntries()
		return len(h) == 2 && h[1].GetTo() == "expired" && h[1].GetReason() == "timeout"
	})
	if o := c.order("order"); o.GetState() != "cancelled" || o.GetCause() != "timer" {
		t.Errorf("%v", o)
	}
	if a := c.call(connectJSON, "Order.MoveOrder", moveOrder("order", "paid", "p")); a.Reason(t) != "MOVE_NOT_ALLOWED" {
		t.Errorf("%s", a.Raw)
	}
}

func TestOrderOfABalanceIsPaidAtOnce(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	r := anOrder("o-1", 3)
	r.Balance.Amount = ""
	if o := c.createOrder(r).GetOrder(); o.GetState() != "paid" || o.GetRevision() != 2 || o.GetCause() != "balance" {
		t.Errorf("%v", o)
	}
	c.wantItem("tea", "87/5/8/100")
	free := &orderv1.CreateOrderRequest{OrderNo: "free", Subject: "u", Asset: "COIN", Amount: "0"}
	if o := c.createOrder(free).GetOrder(); o.GetState() != "paid" {
		t.Errorf("%v", o)
	}
	r = anOrder("o-2", 3)
	r.Amount, r.Balance.Amount, r.Lines[0].Amount = "1000000", "", ""
	if a := c.call(connectJSON, "Order.CreateOrder", r); a.Reason(t) != "INSUFFICIENT_FUNDS" {
		t.Errorf("%s", a.Raw)
	}
	c.wantItem("tea", "87/5/8/100")
}

func TestOtherContentNamesTheFields(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.createOrder(anOrder("o-1", 3))
	for field, change := range map[string]func(r *orderv1.CreateOrderRequest){
		"machine":  func(r *orderv1.CreateOrderRequest) { r.Machine = "simple_order" },
		"subject":  func(r *orderv1.CreateOrderRequest) { r.Subject = "other" },
		"lines":    func(r *orderv1.CreateOrderRequest) { r.Lines[0].Quantity = 4 },
		"payee":    func(r *orderv1.CreateOrderRequest) { r.Payee = "u:b" },
		"reserve":  func(r *orderv1.CreateOrderRequest) { r.Reserve = false },
		"balance":  func(r *orderv1.CreateOrderRequest) { r.Balance.Amount = "5" },
		"purchase": func(r *orderv1.CreateOrderRequest) { r.Purchase = nil },
		"metadata": func(r *orderv1.CreateOrderRequest) { r.Metadata = nil },
		"asset":    func(r *orderv1.CreateOrderRequest) { r.Asset = "none" },
		"coupon":   func(r *orderv1.CreateOrderRequest) { r.Coupon = "none" },
		"pay_within": func(r *orderv1.CreateOrderRequest) {
			r.PayWithin = durationpb.New(time.Hour)
		},
		"amount,lines": func(r *orderv1.CreateOrderRequest) { r.Amount, r.Lines[0].Amount = "11", "11" },
	} {
		r := anOrder("o-1", 3)
		change(r)
		if a := c.call(connectJSON, "Order.CreateOrder", r); a.Reason(t) != "ORDER_EXISTS_DIFFERENT" ||
			a.State("differs") != field || a.State("first_id") == "" {
			t.Errorf("%s: %s", field, a.Raw)
		}
	}
	c.wantItem("tea", "87/8/5/100")
}

func TestSamePurchaseIsOneOrder(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	buy := func(no string) *orderv1.CreateOrderRequest {
		return &orderv1.CreateOrderRequest{OrderNo: no, Subject: "u", Asset: "COIN", Amount: "1",
			Lines:    []*orderv1.OrderLine{{Item: "b", Quantity: 1}, {Item: "a", Quantity: 1}},
			Purchase: &orderv1.PurchaseKey{}}
	}
	if o := c.createOrder(buy("o-1")); o.GetExisted() ||
		strings.Join(o.GetOrder().GetPurchase().GetParts(), " ") != "u a b" {
		t.Errorf("%v", o)
	}
	twice := buy("o-2") // in two lines: the same items
	twice.Lines = append(twice.Lines, twice.Lines[0])
	for _, r := range []*orderv1.CreateOrderRequest{buy("o-2"), twice} {
		if o := c.createOrder(r); !o.GetExisted() || o.GetOrder().GetOrderNo() != "o-1" {
			t.Errorf("%v", o)
		}
	}
	vague := buy("o-2")
	vague.Lines = nil // otherwise all orders of the user would be one purchase
	if a := c.call(connectJSON, "Order.CreateOrder", vague); a.Reason(t) != "FIELD_INVALID" ||
		!strings.Contains(a.Message, "purchase.parts") {
		t.Errorf("%s", a.Raw)
	}
	refused := buy("o-3")
	refused.Purchase.Refuse = true
	if a := c.call(connectJSON, "Order.CreateOrder", refused); a.Reason(t) != "PURCHASE_REPEATED" ||
		a.State("order_no") != "o-1" || a.State("state") != "awaiting_payment" {
		t.Errorf("%s", a.Raw)
	}
	ok(c, "Order.MoveOrder", moveOrder("o-1", "paid", "p"), new(orderv1.MoveOrderResponse))
	if o := c.createOrder(buy("o-4")); !o.GetExisted() || o.GetOrder().GetState() != "paid" {
		t.Errorf("%v", o)
	}
	var work sync.WaitGroup
	numbers, existed := sync.Map{}, make([]bool, 50)
	for i := range existed {
		work.Go(func() {
			r := buy(fmt.Sprint("at-once-", i))
			r.Subject = "other"
			res := c.createOrder(r)
			numbers.Store(res.GetOrder().GetOrderNo(), true)
			existed[i] = res.GetExisted()
		})
	}
	work.Wait()
	count := 0
	numbers.Range(func(any, any) bool { count++; return true })
	if made := strings.Count(fmt.Sprint(existed), "false"); count != 1 || made != 1 {
		t.Errorf("%d orders, made %d times", count, made)
	}
}

// Machine.Move moves the instance of an order as MoveOrder does, with all parts.
func TestMoveOfTheInstanceEndsTheParts(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.createOrder(anOrder("o-1", 3))
	ok(c, "Machine.Move", &machinev1.MoveRequest{Machine: "order", Key: "o-1", To: "cancelled", Cause: "c"},
		new(machinev1.MoveResponse))
	c.wantItem("tea", "90/5/5/100")
}

func TestOrderNumberIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	r := &orderv1.CreateOrderRequest{Subject: "u", Asset: "COIN", Amount: "1"}
	first := ok(c, "Order.CreateOrder", r, new(orderv1.CreateOrderResponse), "Idempotency-Key", "k").GetOrder()
	if n := len(first.GetOrderNo()); n == 0 || n > 32 {
		t.Errorf("number %q", first.GetOrderNo())
	}
	again := ok(c, "Order.CreateOrder", r, new(orderv1.CreateOrderResponse), "Idempotency-Key", "k").GetOrder()
	if again.GetOrderNo() != first.GetOrderNo() {
		t.Errorf("%s, then %s", first.GetOrderNo(), again.GetOrderNo())
	}
	got, _ := c.executed(execute(operation("o", r), operation("", deduct("tea", "", 1),
		"reservation_no=o:order.order_no"), operation("", cancelOrder(""), "order_no=o:order.order_no")))
	o := got[0].(*orderv1.CreateOrderResponse).GetOrder()
	if s := got[2].(*orderv1.CancelOrderResponse).GetOrder(); s.GetOrderNo() != o.GetOrderNo() ||
		s.GetState() != "cancelled" {
		t.Errorf("%v, then %v", o, s)
	}
}

func TestPurchaseKeysMayBeLong(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	parts := make([]string, 16)
	for i := range parts {
		parts[i] = strings.Repeat("é", 63) + fmt.Sprintf("%02d", i)
	}
	buy := func(no string) *orderv1.CreateOrderRequest {
		return &orderv1.CreateOrderRequest{OrderNo: no, Subject: "u", Asset: "COIN", Amount: "1",
			Purchase: &orderv1.PurchaseKey{Parts: parts}}
	}
	c.createOrder(buy("o-1"))
	if o := c.createOrder(buy("o-2")); o.GetOrder().GetOrderNo() != "o-1" {
		t.Errorf("%v", o)
	}
	parts[15] = "other"
	if o := c.createOrder(buy("o-3")); o.GetExisted() {
		t.Errorf("%v", o)
	}
	all := buy("o-4")
	for i := range 100 {
		all.Lines = append(all.Lines, &orderv1.OrderLine{Item: strings.Repeat("x", 120) + fmt.Sprint(i), Quantity: 1})
	}
	all.Purchase.Parts = nil
	c.createOrder(all)
	all.OrderNo = "o-5"
	if o := c.createOrder(all); o.GetOrder().GetOrderNo() != "o-4" {
		t.Errorf("%v", o)
	}
}

// A retry gets the recorded answer although its token is spent, even if the order existed before the first call.
func TestAnAnswerThatSpentATokenIsRecorded(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	c.createOrder(anOrder("o-1", 3))
	issued := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{Count: 2},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()
	for range 2 {
		o := ok(c, "Order.CreateOrder", anOrder("o-1", 3), new(orderv1.CreateOrderResponse), "Idempotency-Key", "k",
			"Submit-Token", issued[0])
		if !o.GetExisted() {
			t.Errorf("%v", o)
		}
	}
	claim := []string{"Idempotency-Key", "l", "Claim-Key", `"page-1"`}
	for range 2 {
		ok(c, "Order.CreateOrder", anOrder("o-1", 3), new(orderv1.CreateOrderResponse), claim...)
	}
	claimed := ok(c, "Idempotency.GetClaim", &idempotencyv1.GetClaimRequest{Key: "page-1"},
		new(idempotencyv1.GetClaimResponse)).GetClaim()
	if claimed.GetUses() != 1 {
		t.Errorf("%v", claimed)
	}
}

// A call that finds its change already made is recorded under its key. A later repeat gets that answer, although a call
// without the key would then end differently: the order of the same purchase has been cancelled, or the order has moved
// on.
func TestRepeatsAreRecordedUnderTheirKey(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	same := func(procedure string, m proto.Message, meanwhile func()) {
		t.Helper()
		first := c.call(connectJSON, procedure, m, "Idempotency-Key", "k")
		meanwhile()
		again := c.call(connectJSON, procedure, m, "Idempotency-Key", "k")
		if first.Code != "" || !first.Replayed() || !again.Replayed() || !bytes.Equal(first.Raw, again.Raw) {
			t.Errorf("%s: %s, then %s", procedure, first.Raw, again.Raw)
		}
	}
	buy := func(no string) *orderv1.CreateOrderRequest {
		r := anOrder(no, 1)
		r.Purchase.Parts = []string{"p"}
		return r
	}
	c.createOrder(buy("o-1"))
	same("Order.CreateOrder", buy("o-2"), func() {
		ok(c, "Order.CancelOrder", cancelOrder("o-1"), new(orderv1.CancelOrderResponse))
	})
	c.createOrder(anOrder("o-3", 1))
	paid := &orderv1.MoveOrderRequest{OrderNo: "o-3", To: "paid", Cause: "p"}
	ok(c, "Order.MoveOrder", paid, new(orderv1.MoveOrderResponse))
	same("Order.MoveOrder", paid, func() {
		ok(c, "Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: "o-3", To: "awaiting_shipment", Cause: "w"},
			new(orderv1.MoveOrderResponse))
	})
	a := c.call(connectJSON, "Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: "o-3", To: "x", Cause: "p"},
		"Idempotency-Key", "k")
	if a.Reason(t) != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("%s", a.Raw)
	}
}

func TestOrderSpendsItsSubmitToken(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	token := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	ok(c, "Order.CreateOrder", anOrder("o-1", 3), new(orderv1.CreateOrderResponse), "Submit-Token", token)
	a := c.call(connectJSON, "Order.CreateOrder", anOrder("o-2", 3), "Submit-Token", token)
	if a.Reason(t) != "TOKEN_SPENT" || a.State("first_order_no") != "o-1" {
		t.Errorf("%s", a.Raw)
	}
	poor := anOrder("o-3", 1000)
	token = ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	for _, want := range []string{"OUT_OF_STOCK", "TOKEN_SPENT"} {
		if a := c.call(connectJSON, "Order.CreateOrder", poor, "Submit-Token", token); a.Reason(t) != want {
			t.Errorf("%s, want %s", a.Raw, want)
		}
	}
	ok(c, "Order.CreateOrder", anOrder("o-4", 3), new(orderv1.CreateOrderResponse), "Claim-Key", `"page-1"`)
	claimed := ok(c, "Idempotency.GetClaim", &idempotencyv1.GetClaimRequest{Key: "page-1"},
		new(idempotencyv1.GetClaimResponse)).GetClaim()
	if claimed.GetResult() != "o-4" {
		t.Errorf("%v", claimed)
	}
	for _, scope := range []string{"order.purchase", "sale.unit", "coupon.campaign"} {
		r := &idempotencyv1.ClaimKeyRequest{Scope: scope, Key: "k"}
		if a := c.call(connectJSON, "Idempotency.ClaimKey", r); a.Reason(t) != "FIELD_INVALID" {
			t.Errorf("%s", a.Raw)
		}
		drop := &idempotencyv1.DropClaimRequest{Scope: scope, Key: "k", Owner: "o-4"}
		if a := c.call(connectJSON, "Idempotency.DropClaim", drop); a.Reason(t) != "FIELD_INVALID" {
			t.Errorf("%s", a.Raw)
		}
		get := &idempotencyv1.GetClaimRequest{Scope: scope, Key: "k"}
		if a := c.call(connectJSON, "Idempotency.GetClaim", get); a.Reason(t) != "CLAIM_NOT_FOUND" {
			t.Errorf("%s", a.Raw)
		}
	}
}

// An order that an Execute creates has, in its story, the submit token of the call, the claim on the purchase, and the
// transfers of the same call.
func TestTheStoryOfAnOrderHasItsWholeCall(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	token := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{Purpose: "checkout"},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	ok(c, "Batch.Execute", execute(operation("order", anOrder("o-1", 3)),
		operation("points", &ledgerv1.TransferRequest{BizNo: "o-1/points", Type: "points",
			Postings: []*ledgerv1.Posting{{From: "world", To: "u:a", Asset: "COIN", Amount: "1"}}}),
		operation("second", anOrder("o-2", 1))),
		new(batchv1.ExecuteResponse), "Submit-Token", token+`; purpose="checkout"`)
	// A transfer of a caller under a number that looks like one of an order, and a reversal of the order's own.
	r := anOrder("o-3", 1)
	r.Balance, r.Payee, r.Reserve, r.Purchase = nil, "", false, nil
	ok(c, "Batch.Execute", execute(operation("order", r), operation("pay", pay("o-3/pay", "world", "u:a", "1"))),
		new(batchv1.ExecuteResponse))
	whole := anOrder("o-4", 1)
	whole.Balance.Amount, whole.Purchase = "", nil
	whole.Amount, whole.Lines[0].Amount = "1", "1"
	ok(c, "Batch.Execute", execute(operation("order", whole), operation("back", &ledgerv1.ReverseRequest{BizNo: "back",
		Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "o-4/pay"}})), new(batchv1.ExecuteResponse))
	if n := c.Count(`select count(*) from audit.order_story where what = 'transfer' and (order_no, name) in
		(('o-3', 'o-3/pay'), ('o-4', 'o-4/pay'), ('o-4', 'back'))`); n != 3 {
		t.Errorf("the stories have %d of 3 transfers", n)
	}
	ok(c, "Transfer", pay("other", "world", "u:a", "1"), new(ledgerv1.TransferResponse))
	ok(c, "Batch.Execute", execute(operation("move", moveOrder("o-1", "paid", "p")),
		operation("bonus", pay("o-1/bonus", "world", "u:a", "1"))), new(batchv1.ExecuteResponse))
	sum := sha256.Sum256([]byte(token))
	var got string
	if err := c.Pool.QueryRow(t.Context(), `select string_agg(what || '|' || name || '|' || detail, E'\n'
		order by at, n, name)
		from audit.order_story where order_no = 'o-1' and what !~ '^message'`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	want := "token spent|" + hex.EncodeToString(sum[:]) + `|checkout
move|awaiting_payment|creation: 10.00 COIN
reservation|tea o-1/1|3 reserved
hold|o-1/hold|4.00 COIN held
purchase|["o-1"]|claimed for 00:05:00
transfer|o-1/points|points: world to u:a 1.00 COIN
move|paid|p {"one": "1", "two": "2", "five": "5", "four": "4", "three": "3"}
reservation ended|tea o-1/1|3 sold
hold ended|o-1/hold|4.00 COIN captured
transfer|o-1/pay|order: u:a to world 4.00 COIN
transfer|o-1/bonus|transfer: world to u:a 1.00 COIN`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Fields of expiry messages that the order decides are refused. Errors about the others name them by their path in the
// request.
func TestExpiryMessagesAreRefusedByField(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for field, change := range map[string]func(*notifyv1.SendRequest){
		"expiryMessages[0].bizNo": func(m *notifyv1.SendRequest) { m.BizNo = "mine" },
		"expiryMessages[0].notBefore": func(m *notifyv1.SendRequest) {
			m.NotBefore = timestamppb.New(time.Unix(2e9,
				0))
		},
		"expiryMessages[0].repeatWindow": func(m *notifyv1.SendRequest) { m.RepeatWindow = durationpb.New(0) },
		"expiryMessages[0].recipient":    func(m *notifyv1.SendRequest) { m.Recipient = "not a number" },
		"expiryMessages[0].content":      func(m *notifyv1.SendRequest) { m.GetContent().Text = "" },
	} {
		m := &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "It has expired."}}}
		change(m)
		r := anOrder("o-1", 3)
		r.ExpiryMessages = []*notifyv1.SendRequest{m}
		if a := c.call(connectJSON, "Order.CreateOrder", r); a.Reason(t) != "FIELD_INVALID" ||
			!slices.Equal(a.Fields(t), []string{field}) {
			t.Errorf("%s: %s", field, a.Raw)
		}
	}
	r := anOrder("o-1", 3)
	r.PayWithin = durationpb.New(31 * 24 * time.Hour)
	r.ExpiryMessages = []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
		Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "It has expired."}}}}
	if a := c.call(connectJSON, "Order.CreateOrder", r); a.Reason(t) != "FIELD_INVALID" ||
		!slices.Equal(a.Fields(t), []string{"payWithin"}) {
		t.Errorf("%s", a.Raw)
	}
}

// A token that an operation of an Execute spends is in the story too. No token is spent twice by one call.
func TestTokensOfOperations(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	tokens := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{Count: 2},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()
	spend := operation("", spendToken(tokens[0], ""))
	for at, call := range map[string]answer{
		"operations[1].request.token": c.call(connectJSON, "Batch.Execute",
			execute(operation("", anOrder("o-1", 3)), spend),
			"Submit-Token", tokens[0]),
		"operations[2].request.token": c.call(connectJSON, "Batch.Execute", execute(operation("a", anOrder("o-1", 3)),
			operation("b", spendToken(tokens[0], "")), operation("c", spendToken(tokens[0], "")))),
	} {
		if call.Reason(t) != "FIELD_INVALID" || !slices.Equal(call.Fields(t), []string{at}) {
			t.Errorf("%s: %s", at, call.Raw)
		}
	}
	ok(c, "Batch.Execute", execute(operation("a", anOrder("o-1", 3)), operation("b", spendToken(tokens[0], "")),
		operation("c", spendToken(tokens[1], ""))), new(batchv1.ExecuteResponse))
	sum := sha256.Sum256([]byte(tokens[0]))
	if n := c.Count("select count(*) from audit.order_story where order_no = 'o-1' and what = 'token spent' "+
		"and name = $1",
		hex.EncodeToString(sum[:])); n != 1 {
		t.Errorf("the story has %d such tokens", n)
	}
}

// Whether an order is paid at once may depend on a reference. The expiry message of a paid order is not sent; that of
// an unpaid one waits. If an operation cancels a message, later operations of the same call find it cancelled.
func TestExpiryMessagesInAnExecute(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	sms := func(text string) *notifyv1.SendRequest {
		return &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: text}}}
	}
	for no, paid := range map[string]string{"partly": "0.5", "whole": "1"} {
		r := anOrder(no, 1)
		r.Amount, r.Lines[0].Amount, r.Balance.Amount = "1", "1", ""
		r.ExpiryMessages = []*notifyv1.SendRequest{sms(no + " has expired")}
		ok(c, "Batch.Execute", execute(operation("h", pay("t-"+no, "world", "u:a", paid)),
			operation("order", r, "balance.amount=h:transfer.postings[0].amount")), new(batchv1.ExecuteResponse))
	}
	r := anOrder("off", 1)
	r.ExpiryMessages = []*notifyv1.SendRequest{sms("off")}
	again := sms("off")
	again.BizNo, again.RepeatWindow = "off/message/1", durationpb.New(0)
	a := ok(c, "Batch.Execute", execute(operation("order", r), operation("cancel", cancelOrder("off")),
		operation("again", again)),
		new(batchv1.ExecuteResponse))
	sent := new(notifyv1.SendResponse)
	if err := a.GetResults()[2].GetResponse().UnmarshalTo(sent); err != nil ||
		sent.GetMessage().GetState() != notifyv1.MessageState_MESSAGE_STATE_CANCELLED || !sent.GetExisted() {
		t.Errorf("%v, %v", sent, err)
	}
	var got string
	if err := c.Pool.QueryRow(t.Context(), `select string_agg(biz_no || ' ' || state, ', ' order by biz_no)
		from audit.notifications where biz_no like '%/%'`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "off/message/1 cancelled, partly/message/1 queued"; got != want {
		t.Errorf("messages: %s, want %s", got, want)
	}
}

// Each order sends its message, even one that equals that of another order, such as "Your order was received."
func TestEqualMessagesOfTwoOrdersAreTwo(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	before := c.Count("select count(*) from notify_messages where channel = 'sms'")
	for i, no := range []string{"first", "second"} {
		ok(c, "Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: no, Subject: "u", Asset: "COIN", Amount: "5",
			Messages: []*notifyv1.SendRequest{byText("+8613800000009", "received", "")}},
			new(orderv1.CreateOrderResponse))
		ok(c, "Order.MoveOrder", &orderv1.MoveOrderRequest{OrderNo: no, To: "paid", Cause: "till",
			Messages: []*notifyv1.SendRequest{byText("+8613800000009", "paid", "")}}, new(orderv1.MoveOrderResponse))
		if n := c.Count("select count(*) from notify_messages where channel = 'sms'"); n-before != 2*(i+1) {
			t.Errorf("%d messages after order %d", n-before, i+1)
		}
	}
}

// A repeat of a message is validated like a new message.
func TestRepeatOfAMessageIsChecked(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	m := byText("+8613800000019", "once", "")
	ok(c, "Notify.Send", m, new(notifyv1.SendResponse))
	m.NotBefore = timestamppb.New(time.Now().Add(60 * 24 * time.Hour))
	c.call(connectJSON, "Notify.Send", m).wants(t, "a repeat", "FIELD_INVALID")
}
